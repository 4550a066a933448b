//! Removes the free text of errors from an input: it may be private, and no verdict needs it.

use coroner_core::input::{ApiEvent, CriEvent, Input};

/// Phrases in an error, and the kind of error that replaces the text. The text may contain the apiserver's
/// address, a socket's path, a credential plugin's output or a token.
const KINDS: [(&str, &str); 21] = [
    ("connection refused", "connection refused"),
    ("connection reset", "connection reset"),
    ("connection closed", "connection closed"),
    ("broken pipe", "broken pipe"),
    ("does not accept connections", "timed out"),
    ("did not answer", "timed out"),
    ("no such file", "no such file"),
    ("no such socket", "no such file"),
    ("permission denied", "permission denied"),
    ("timed out", "timed out"),
    ("deadline", "timed out"),
    ("timeout", "timed out"),
    ("dns error", "name not resolved"),
    ("certificate", "certificate"),
    ("unauthorized", "unauthorized"),
    ("forbidden", "forbidden"),
    ("has no node", "not found"),
    ("no bootid", "no boot id"),
    ("too old", "resource version too old"),
    ("unimplemented", "unimplemented"),
    ("unavailable", "unavailable"),
];

const OTHER: &str = "another error";

/// The input with each error reduced to its kind. A gRPC code is one of seventeen words and stays. The engine gets
/// the redacted input too, so that its output cannot depend on text that a replay lacks.
pub fn redact(mut input: Input) -> Input {
    if let Input::Cri(CriEvent::Unreachable { error, .. })
    | Input::Api(ApiEvent::OutOfSync { error } | ApiEvent::NodeUnknown { error, .. }) =
        &mut input
    {
        *error = kind(error).to_owned();
    }
    input
}

fn kind(error: &str) -> &'static str {
    let error = error.to_lowercase();
    KINDS.iter().find(|(sign, _)| error.contains(sign)).map_or(OTHER, |(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kind_of_an_error_remains() {
        let cases = [
            ("https://api.corp:6443: Connection refused (os error 111)", "connection refused"),
            ("status: Unavailable, message: \"/run/x.sock\"", "unavailable"),
            ("410 Gone: too old resource version: 5 (9)", "resource version too old"),
            ("the apiserver has no Node \"db-7.corp\": check --node", "not found"),
            ("the Node \"db-7.corp\" has no bootID: no kubelet", "no boot id"),
            ("nodes \"db-7.corp\" is forbidden: User \"me@corp\" cannot get", "forbidden"),
            ("exec plugin printed: token=hunter2", OTHER),
            // Network plugins: bridge, Calico, the AWS CNI, flannel. The reason stays.
            (
                "plugin type=\"bridge\" failed (delete): running [iptables -t nat -D]: exit status 4: Permission denied",
                "permission denied",
            ),
            (
                "plugin type=\"calico\" failed (delete): error getting ClusterInformation: connection is unauthorized",
                "unauthorized",
            ),
            (
                "plugin type=\"aws-cni\" failed (delete): code = Unavailable: dial tcp 127.0.0.1:50051: connection refused",
                "connection refused",
            ),
            (
                "plugin type=\"flannel\" failed (delete): open /run/flannel/subnet.env: no such file or directory",
                "no such file",
            ),
            ("", OTHER),
        ];
        for (text, wanted) in cases {
            let error = text.to_owned();
            for code in [None, Some("UNAVAILABLE".to_owned())] {
                let outage = |error: &str| {
                    Input::Cri(CriEvent::Unreachable { error: error.into(), code: code.clone() })
                };
                assert_eq!(redact(outage(&error)), outage(wanted), "{text}");
            }
            let node = ApiEvent::NodeUnknown { missing: false, error: error.clone() };
            let same = ApiEvent::NodeUnknown { missing: false, error: wanted.into() };
            assert_eq!(redact(Input::Api(node)), Input::Api(same), "{text}");
            let api = redact(Input::Api(ApiEvent::OutOfSync { error }));
            assert_eq!(api, Input::Api(ApiEvent::OutOfSync { error: wanted.into() }), "{text}");
        }
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        for input in [Input::Tick, Input::Api(ApiEvent::Resumed)] {
            assert_eq!(redact(input.clone()), input);
        }
    }
}
