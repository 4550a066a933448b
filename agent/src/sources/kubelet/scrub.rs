//! What is kept of an error: the actions that failed, and a text without commands, addresses and credentials.

use coroner_core::input::KubeletFailure;

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
    let mut out: String = out.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    out.truncate(out.floor_char_boundary(MAX_ERROR));
    out
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
        ];
        for (error, wanted) in cases {
            assert_eq!(scrubbed(error), wanted, "{error}");
        }
        assert!(scrubbed(&"ä".repeat(5000)).len() <= MAX_ERROR);
    }
}
