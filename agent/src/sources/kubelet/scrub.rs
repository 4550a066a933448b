//! What is kept of an error: the actions that failed, and a text without commands, addresses and credentials.

use coroner_core::input::KubeletFailure;
use std::net::IpAddr;

/// The longest error that is kept, bytes.
pub(super) const MAX_ERROR: usize = 300;

/// The longest word of a failure, bytes.
const MAX_WORD: usize = 80;

/// Failures of one line.
const MAX_FAILURES: usize = 4;

/// From here on an error may quote a command, an environment or a credential.
const SIGNS: [&str; 16] = [
    "lifecycle hook (",
    "lifecycle hook [",
    "command '",
    "command \"",
    "command [",
    "exec:",
    "exec [",
    "cmd",
    "args",
    "env ",
    "authorization",
    "bearer",
    "token",
    "passw",
    "secret",
    "credential",
];

/// An error without commands, addresses and credentials, cut.
pub(super) fn scrubbed(error: &str) -> String {
    let error = &error[..error.floor_char_boundary(4 * MAX_ERROR)];
    // Letters of ASCII keep their length in the other case.
    let lower = error.to_ascii_lowercase();
    let end = SIGNS.iter().filter_map(|sign| lower.find(sign)).min();
    let mut out = String::new();
    let mut rest = &error[..end.unwrap_or(error.len())];
    while let Some(at) = rest.find("://") {
        let before = &rest[..at];
        let scheme = before.rfind(|c: char| !c.is_ascii_alphanumeric()).map_or(0, |at| at + 1);
        // `rfind` may have found a letter of several bytes.
        let scheme = before.ceil_char_boundary(scheme);
        out.push_str(&before[..scheme]);
        out.push('…');
        let after = &rest[at..];
        rest = after.find([' ', '"', '\\', '\'']).map_or("", |end| &after[end..]);
    }
    out.push_str(rest);
    if end.is_some() {
        out.push('…');
    }
    let mut out: String =
        without_addresses(&out).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    out.truncate(out.floor_char_boundary(MAX_ERROR));
    out
}

/// The text without IP addresses, with a port or not, and `host:port`.
fn without_addresses(text: &str) -> String {
    let of_an_address = |c: char| c.is_ascii_alphanumeric() || ".:%_-".contains(c);
    let mut out = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find(of_an_address) {
        let (before, token) = rest.split_at(begin);
        let end = token.find(|c| !of_an_address(c)).unwrap_or(token.len());
        let (token, after) = token.split_at(end);
        // What belongs to the sentence, or to an arrow.
        let bare = token.trim_end_matches([':', '.', '-']);
        let ends = (bare.len()..=token.len()).rev();
        let address = ends.map(|end| &token[..end]).find(|token| is_address(token));
        out.push_str(before);
        out.push_str(if address.is_some() { "…" } else { token });
        out.push_str(address.map_or("", |address| &token[address.len()..]));
        rest = after;
    }
    out + rest
}

fn is_address(token: &str) -> bool {
    let (ip, _zone) = token.split_once('%').unwrap_or((token, ""));
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    let of_a_host = |host: &str| {
        !host.contains([':', '%']) && host.contains(|c: char| c.is_ascii_alphanumeric())
    };
    ip.parse::<IpAddr>().is_ok()
        || token.rsplit_once(':').is_some_and(|(host, port)| of_a_host(host) && is_port(port))
}

/// The actions that failed: `failed to "KillContainer" for "c" with KillContainerError: …`
/// (`pkg/kubelet/container/sync_result.go`).
pub(super) fn failures(error: &str) -> Vec<KubeletFailure> {
    let mut found = Vec::new();
    let mut rest = error;
    while let Some(at) = rest.find("failed to \"") {
        rest = &rest[at + "failed to \"".len()..];
        let Some(failure) = failure(rest) else { continue };
        found.push(failure);
        if found.len() == MAX_FAILURES {
            break;
        }
    }
    found
}

fn failure(text: &str) -> Option<KubeletFailure> {
    let (action, rest) = text.split_once("\" for \"")?;
    let (target, rest) = rest.split_once("\" with ")?;
    let reason = rest.split([':', ' ', ',']).next()?;
    let word = |text: &str| {
        let fits = !text.is_empty() && text.len() <= MAX_WORD;
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        (fits && plain).then(|| text.to_owned())
    };
    Some(KubeletFailure { action: word(action)?, target: word(target)?, reason: word(reason)? })
}

/// Whether an error of the runtime is about the network of a sandbox (containerd's sandbox_stop.go and
/// sandbox_run.go, CRI-O's ocicni, libcni).
pub(super) fn is_of_the_network(error: &str) -> bool {
    let signs = [
        "network for sandbox",
        "network for pod sandbox",
        "plugin type=",
        "cni plugin",
        "CNI network",
        "cni config uninitialized",
        "pod network",
    ];
    signs.iter().any(|sign| error.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUCK: &str = "[failed to \"KillContainer\" for \"c\" with KillContainerError: \"rpc error: code = Unavailable desc = \
        closed\", failed to \"KillPodSandbox\" for \"4393f462-f293\" with KillPodSandboxError: \"rpc error\"]";

    #[test]
    fn the_actions_that_failed_are_found() {
        let found = failures(STUCK);
        let words: Vec<_> = found.iter().map(|f| (&*f.action, &*f.target, &*f.reason)).collect();
        assert_eq!(
            words,
            [
                ("KillContainer", "c", "KillContainerError"),
                ("KillPodSandbox", "4393f462-f293", "KillPodSandboxError")
            ]
        );
        assert!(failures("failed to \"a b\" for \"c\" with d").is_empty());
    }

    #[test]
    fn commands_addresses_and_credentials_go() {
        let cases = [
            (
                "rpc error: code = Unavailable desc = EOF",
                "rpc error: code = Unavailable desc = EOF",
            ),
            (
                "with PostStartHookError: Exec lifecycle hook ([sh -c x]) failed",
                "with PostStartHookError: Exec …",
            ),
            ("command 'sh -c kill' exited with 137", "…"),
            ("Get \"https://10.0.0.1/?t=7\": refused", "Get \"…\": refused"),
            ("ä://x y", "ä… y"),
            ("bad Token abc", "bad …"),
            ("a\nb", "a b"),
            ("dial tcp 10.96.0.1:443: i/o timeout", "dial tcp …: i/o timeout"),
            ("dial tcp [fd00:10::a]:443: refused", "dial tcp […]:443: refused"),
            ("read 10.0.0.5:3333->10.96.0.1:443: reset", "read …->…: reset"),
            ("from fe80::1%eth0, 10.0.0.0/8 and fd00::.", "from …, …/8 and …."),
            ("dial api.example.com:6443", "dial …"),
            ("at 14:18:35: code = 5; exit::x, v1.36", "at 14:18:35: code = 5; exit::x, v1.36"),
        ];
        for (error, wanted) in cases {
            assert_eq!(scrubbed(error), wanted, "{error}");
        }
        assert!(scrubbed(&"ä".repeat(5000)).len() <= MAX_ERROR);
    }
}
