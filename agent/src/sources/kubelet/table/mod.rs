//! The messages of the kubelet's log that the agent reads: one table, with the versions, the verbosity, the upstream
//! file and the function of each. Compared with kubelets 1.23 to 1.36 (OpenShift's builds, with upstream's logging).

/// Patterns: the message, its statement, and where the kubelet logs it, as `[first-last: level file function]`.
macro_rules! messages {
    ($($text:literal => $statement:ident
       $([$first:literal - $last:literal: $level:literal $file:literal $function:ident])+,)*) => {
        &[$(Pattern {
            text: $text,
            statement: KubeletStatement::$statement,
            logged: &[$(Logged {
                first: $first,
                last: $last,
                level: $level,
                file: $file,
                function: stringify!($function),
            }),+],
        }),*]
    };
}

mod cleanup;
mod events;
mod kill;
mod sandbox;
mod sync_loop;
mod worker;

use coroner_core::input::KubeletStatement;
use std::{collections::HashMap, sync::LazyLock};

/// A message that the kubelet logs.
#[derive(Debug)]
pub struct Pattern {
    /// The message, as it stands between the quotes; of an unstructured line the beginning.
    pub text: &'static str,
    /// What it says.
    pub statement: KubeletStatement,
    /// Where it is logged, oldest version first.
    pub logged: &'static [Logged],
}

/// Where versions of the kubelet log a message.
#[derive(Debug)]
pub struct Logged {
    /// The first minor version that was seen to have it; 23 is the oldest that was compared.
    pub first: u8,
    /// The last one; 36 is the newest that was compared.
    pub last: u8,
    /// `-v` that it needs; errors and warnings need none.
    pub level: u8,
    /// The file's name upstream.
    pub file: &'static str,
    /// The function.
    pub function: &'static str,
}

impl Pattern {
    /// The lowest `-v` at which some version logs the message.
    pub fn level(&self) -> u8 {
        self.logged.iter().map(|logged| logged.level).min().unwrap_or_default()
    }
}

/// All versions that were compared.
#[cfg(test)]
pub(super) const VERSIONS: std::ops::RangeInclusive<u8> = 23..=36;

/// The level of `Event occurred` (kubelet.go, `StartStructuredLogging(3)`).
pub const EVENT_LEVEL: u8 = 3;

/// The message of an Event that is logged.
pub const EVENT: &[u8] = b"Event occurred";

const PARTS: [&[Pattern]; 5] =
    [sync_loop::SYNC_LOOP, worker::WORKER, kill::KILL, sandbox::SANDBOX, cleanup::CLEANUP];

static STRUCTURED: LazyLock<HashMap<&'static [u8], &'static Pattern, foldhash::fast::FixedState>> =
    LazyLock::new(|| {
        let all = PARTS.iter().copied().flatten();
        all.map(|pattern| (pattern.text.as_bytes(), pattern)).collect()
    });

/// The pattern of a structured message.
pub(super) fn structured(message: &[u8]) -> Option<&'static Pattern> {
    STRUCTURED.get(message).copied()
}

/// The pattern of a line that is not structured, by its beginning.
pub(super) fn beginning(text: &[u8]) -> Option<&'static Pattern> {
    // Nearly all lines fail at the first letter.
    if !matches!(text.first(), Some(b'o' | b'U' | b'O')) {
        return None;
    }
    events::BEGINNINGS.iter().find(|pattern| text.starts_with(pattern.text.as_bytes()))
}

/// What an Event with this reason says.
pub(super) fn event(reason: &str) -> Option<KubeletStatement> {
    events::EVENTS.iter().find(|(known, _)| *known == reason).map(|(_, statement)| *statement)
}

/// All patterns, in the order of the table.
pub fn patterns() -> impl Iterator<Item = &'static Pattern> {
    PARTS.iter().copied().flatten().chain(events::BEGINNINGS)
}

/// The reasons of the Events that are read, with what each says.
pub fn event_reasons() -> impl Iterator<Item = (&'static str, KubeletStatement)> {
    events::EVENTS.iter().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_message_stands_once_and_its_versions_do_not_overlap() {
        let mut texts = BTreeSet::new();
        for pattern in patterns() {
            assert!(texts.insert(pattern.text), "{} stands twice", pattern.text);
            assert!(!pattern.logged.is_empty(), "{}", pattern.text);
            for logged in pattern.logged {
                assert!(VERSIONS.contains(&logged.first) && VERSIONS.contains(&logged.last));
                assert!(logged.first <= logged.last && logged.level <= 5, "{}", pattern.text);
            }
        }
    }

    #[test]
    fn every_statement_has_a_pattern_or_an_event() {
        let mut said: BTreeSet<_> = patterns().map(|pattern| pattern.statement).collect();
        said.extend(event_reasons().map(|(_, statement)| statement));
        said.insert(KubeletStatement::CniFailed); // found by the error of a call of the runtime
        assert_eq!(said.len(), KubeletStatement::ALL.len());
    }
}
