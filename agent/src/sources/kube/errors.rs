//! What is said of a request that failed or of a configuration that cannot be used.
//!
//! kube-rs shows the lines of a kubeconfig that it stumbles over, and all that a credential plugin
//! wrote. A token may stand in either, and what is said here reaches the log, `/readyz` and
//! `coroner doctor`: of these errors only the kind is told, and the place.

use crate::printable::shown;
use kube::{
    client::{AuthError, RustlsTlsError},
    config::KubeconfigError,
    core::Status,
};
use std::error::Error;

/// An error with its causes and, for what a cluster's administrator can fix, what to do. `right`: what the agent's role must allow.
pub(crate) fn describe(error: &(dyn Error + 'static), code: Option<u16>, right: &str) -> String {
    with_remedy(with_causes(error), code.unwrap_or_default(), right)
}

pub(crate) fn refused(status: &Status, right: &str) -> String {
    with_remedy(refusal(status), status.code, right)
}

fn with_remedy(text: String, code: u16, right: &str) -> String {
    match code {
        401 => text + " (invalid credentials; renew the kubeconfig or token)",
        403 => format!("{text} (RBAC must allow {right})"),
        _ => text,
    }
}

/// The reason that kube-rs gives to an answer that is no Status: its message is whatever was answered.
const NO_STATUS: &str = "Failed to parse error data";
/// Of a refusal so much is shown, bytes.
const MAX_SHOWN: usize = 512;

pub(super) fn refusal(status: &Status) -> String {
    let cut = |text: &str| shown(&text[..text.floor_char_boundary(MAX_SHOWN)]).into_owned();
    let (message, reason, code) = (cut(&status.message), cut(&status.reason), status.code);
    match (message.as_str(), reason.as_str()) {
        (_, NO_STATUS) | ("", "") => format!("status {code} without a Kubernetes reason"),
        (one, "") | ("", one) => format!("{one} ({code})"),
        (message, reason) => format!("{message}: {reason} ({code})"),
    }
}

/// An error with its causes, each once.
pub(super) fn with_causes(error: &(dyn Error + 'static)) -> String {
    withheld(error).unwrap_or_else(|| crate::chain(error))
}

/// What to say instead of all of it where some cause would show what stands in a file or came from
/// a plugin: its own words are in those of every error around it.
fn withheld(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(KubeconfigError::Parse(parser)) = cause.downcast_ref() {
            let place = place(&parser.to_string());
            return Some(format!("cannot parse it{place} (content not shown)"));
        }
        match cause.downcast_ref() {
            Some(AuthError::AuthExecRun { cmd, out }) => {
                return Some(format!(
                    "the credential plugin {cmd:?} failed ({}; output not shown)",
                    out.status
                ));
            }
            Some(AuthError::AuthExecParse(_) | AuthError::ParseTokenKey(_)) => {
                return Some("cannot parse the credential plugin's output (not shown)".to_owned());
            }
            _ => {}
        }
        if let Some(RustlsTlsError::InvalidIdentityPem(_)) = cause.downcast_ref() {
            return Some(
                "the client certificate or its key is not valid PEM (not shown)".to_owned(),
            );
        }
        next = cause.source();
    }
    None
}

/// ` at line 5, column 4`, if the parser says so. Nothing but the numbers is taken over.
fn place(said: &str) -> String {
    let number_after = |word: &str| {
        let rest = said.split_once(word)?.1;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        (!digits.is_empty()).then_some(digits)
    };
    match (number_after("line "), number_after("column ")) {
        (Some(line), Some(column)) => format!(" at line {line}, column {column}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

    #[test]
    fn a_plugins_words_are_kept_to_oneself_however_deep() {
        let out = std::process::Output {
            status: ExitStatus::from_raw(1 << 8),
            stdout: b"hunter2".to_vec(),
            stderr: b"hunter2".to_vec(),
        };
        let plugin = AuthError::AuthExecRun { cmd: "aws eks".into(), out: Box::new(out) };
        let error = kube::Error::Service(Box::new(kube::Error::Auth(plugin)));
        assert!(error.to_string().contains("104, 117") || error.to_string().contains("hunter2"));
        let said = describe(&error, None, "");
        assert_eq!(
            said,
            "the credential plugin \"aws eks\" failed (exit status: 1; output not shown)"
        );
    }

    #[test]
    fn of_a_place_only_its_numbers_are_taken() {
        assert_eq!(place("error: line 5 column 4: oops\n 5 | secret"), " at line 5, column 4");
        assert_eq!(place("line secret column 4"), "");
        assert_eq!(place("secret"), "");
    }
}
