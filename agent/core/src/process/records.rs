//! A bounded list of the signals of one container: what may be dropped, and what that hides.

use super::{SIGKILL, SIGTERM, Sent, Taken};
use crate::{ids::Tgid, time::BootTime};

/// Bound on either list.
const MAX_SIGNALS: usize = 64;

/// What is told of a signal, as far as it decides what may be dropped.
pub(super) trait Record {
    fn at(&self) -> BootTime;
    fn target(&self) -> Tgid;
    fn signal(&self) -> u8;
    /// Records of one kind say the same but for their time.
    fn same_kind(&self, other: &Self) -> bool;
}

impl Record for Sent {
    fn at(&self) -> BootTime {
        self.at
    }
    fn target(&self) -> Tgid {
        self.signal.target.tgid
    }
    fn signal(&self) -> u8 {
        self.signal.signal
    }
    fn same_kind(&self, other: &Self) -> bool {
        let kind = |s: &Self| (s.signal.target.tgid, s.signal.signal, s.origin);
        kind(self) == kind(other)
    }
}

impl Record for (Tgid, Taken) {
    fn at(&self) -> BootTime {
        self.1.at
    }
    fn target(&self) -> Tgid {
        self.0
    }
    fn signal(&self) -> u8 {
        self.1.signal
    }
    fn same_kind(&self, other: &Self) -> bool {
        let kind = |(tgid, taken): &Self| (*tgid, taken.signal, taken.disposition);
        kind(self) == kind(other)
    }
}

/// Keeps the list bounded: what is not of the main process goes first; then, of a signal that it
/// is sent over and over again (a reload), the oldest but the very first; then the middle. The
/// time of what was dropped, if that may decide something.
pub(super) fn keep<T: Record>(list: &mut Vec<T>, item: T, main: Option<Tgid>) -> Option<BootTime> {
    let mut lost = None;
    if list.len() >= MAX_SIGNALS {
        let of_another = || list.iter().position(|known| Some(known.target()) != main);
        let repeated = || {
            list.iter().enumerate().position(|(n, known)| {
                !matches!(known.signal(), SIGKILL | SIGTERM)
                    && list.iter().take(n).any(|earlier| earlier.same_kind(known))
            })
        };
        let spare = of_another().or_else(repeated);
        let dropped = list.remove(spare.unwrap_or(MAX_SIGNALS / 2));
        lost = spare.is_none().then(|| dropped.at());
    }
    list.push(item);
    lost
}
