//! What it means that a call gave no answer.

use super::calls::Call;
use anyhow::Chain;
use std::{error::Error as _, time::Duration};
use tonic::{Code, Status, TimeoutExpired};

/// Why a call gave no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CallFailure {
    /// The connection is of no more use.
    Broken(CriError),
    /// The runtime answered that it could not, or with more than a message may hold; the
    /// connection is good.
    Refused(CriError),
    /// The runtime has no such call; the connection is good.
    Lacking(CriError),
    /// The thing asked about does not exist (any more).
    NotFound,
}

/// What went wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CriError {
    /// In words, with what to do about it.
    pub(super) text: String,
    /// The status' code, where a call got that far.
    pub(super) code: Option<Code>,
}

impl CriError {
    /// An error before any call.
    pub(super) fn without_code(text: String) -> Self {
        Self { text, code: None }
    }

    /// The code as gRPC spells it (`DEADLINE_EXCEEDED`).
    pub(super) fn code(&self) -> Option<String> {
        self.code.map(|code| canonical(code).to_owned())
    }
}

/// Whom a failing call speaks of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    Runtime,
    /// One thing in it: behind it is a shim that may hang or be dead by itself, so that whatever
    /// the runtime answers (`UNAVAILABLE` too), or that it is late, says nothing of the connection.
    OneThing,
}

/// What a status means for the connection.
pub(super) fn of_status(call: Call, scope: Scope, limit: Duration, status: &Status) -> CallFailure {
    // The deadline sent with the request is watched by tonic, too.
    if Chain::new(status).skip(1).any(|cause| cause.is::<TimeoutExpired>()) {
        return of_silence(call, scope, limit);
    }
    let call = call.name;
    let message = status.message();
    let code = status.code();
    // Only statuses made on this side have a source: they tell of the transport.
    let transport = status.source().is_some();
    let text = match code {
        Code::NotFound => return CallFailure::NotFound,
        // ResourceExhausted is how Go's gRPC says it of itself, OutOfRange how tonic does.
        Code::ResourceExhausted | Code::OutOfRange => format!(
            "{call}: response too large for one message. The CRI's limit is 16 MiB (about 11,000 \
             containers) without streaming lists (containerd 2.4, CRI-O 1.36): {message}"
        ),
        Code::Unimplemented => {
            let text = format!("{call}: not implemented by the runtime: {message}");
            return CallFailure::Lacking(CriError { text, code: Some(code) });
        }
        _ if transport => {
            // As Go's gRPC does: whatever this side's library made of it, nobody was reached.
            let text = format!("{call}: {}", crate::chain(status));
            return CallFailure::Broken(CriError { text, code: Some(Code::Unavailable) });
        }
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled if scope == Scope::Runtime => {
            let text = format!("{call}: {}", crate::chain(status));
            return CallFailure::Broken(CriError { text, code: Some(code) });
        }
        code => format!("{call}: {code:?}: {message}"),
    };
    CallFailure::Refused(CriError { text, code: Some(code) })
}

/// What it means that no answer came in time.
pub(super) fn of_silence(call: Call, scope: Scope, limit: Duration) -> CallFailure {
    let text = format!("{}: no answer within {limit:?}", call.name);
    let error = CriError { text, code: Some(Code::DeadlineExceeded) };
    match scope {
        Scope::Runtime => CallFailure::Broken(error),
        Scope::OneThing => CallFailure::Refused(error),
    }
}

/// The names of the gRPC specification (`doc/statuscodes.md`).
fn canonical(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    const LIMIT: Duration = Duration::from_secs(3);

    fn judged(scope: Scope, status: &Status) -> (bool, String) {
        match of_status(Call::LIST_CONTAINERS, scope, LIMIT, status) {
            CallFailure::Broken(error) => (true, error.code().unwrap()),
            CallFailure::Refused(error) => (false, error.code().unwrap()),
            CallFailure::Lacking(_) | CallFailure::NotFound => panic!("{status:?}"),
        }
    }

    #[test]
    fn what_a_status_means() {
        let transport = || Status::from_error(Box::new(io::Error::other("reset")));
        for (status, broken, broken_for_one, code) in [
            (Status::unavailable("gone"), true, false, "UNAVAILABLE"),
            (Status::deadline_exceeded("late"), true, false, "DEADLINE_EXCEEDED"),
            (Status::cancelled("h2"), true, false, "CANCELLED"),
            (transport(), true, true, "UNAVAILABLE"),
            (Status::unknown("shim"), false, false, "UNKNOWN"),
            (Status::internal("shim"), false, false, "INTERNAL"),
            (Status::permission_denied("no"), false, false, "PERMISSION_DENIED"),
        ] {
            assert_eq!(judged(Scope::Runtime, &status), (broken, code.into()), "{status:?}");
            assert_eq!(
                judged(Scope::OneThing, &status),
                (broken_for_one, code.into()),
                "{status:?}"
            );
        }
        for scope in [Scope::Runtime, Scope::OneThing] {
            let lacking = Status::unimplemented("unknown method");
            let failure = of_status(Call::CONTAINER_STATUS, scope, LIMIT, &lacking);
            assert!(matches!(failure, CallFailure::Lacking(_)), "{failure:?}");
            let missing = Status::not_found("c1");
            assert_eq!(
                of_status(Call::CONTAINER_STATUS, scope, LIMIT, &missing),
                CallFailure::NotFound
            );
        }
    }

    #[test]
    fn an_answer_too_large_is_named() {
        for status in [Status::resource_exhausted("too large"), Status::out_of_range("too large")] {
            let failure = of_status(Call::LIST_CONTAINERS, Scope::Runtime, LIMIT, &status);
            let CallFailure::Refused(CriError { text, .. }) = failure else { panic!("{status:?}") };
            assert!(text.contains("16 MiB") && text.contains("ListContainers"), "{text}");
        }
    }

    #[test]
    fn silence_about_one_thing_is_no_outage() {
        let silence = |scope| of_silence(Call::SANDBOX_STATUS, scope, LIMIT);
        assert!(matches!(silence(Scope::Runtime), CallFailure::Broken(_)));
        let CallFailure::Refused(error) = silence(Scope::OneThing) else { panic!("an outage") };
        assert_eq!(error.code().as_deref(), Some("DEADLINE_EXCEEDED"));
        assert!(error.text.contains("3s"), "{}", error.text);
    }

    #[test]
    fn codes_are_spelled_as_grpc_spells_them() {
        for number in 0..=16 {
            let code = Code::from_i32(number);
            let plain = canonical(code).replace('_', "").to_lowercase();
            assert_eq!(plain, format!("{code:?}").to_lowercase());
        }
    }
}
