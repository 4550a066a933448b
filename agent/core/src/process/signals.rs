//! A bounded list of signals.

use super::{SIGKILL, SIGTERM};
use crate::{ids::*, time::*};

/// Bound on each list.
const MAX_SIGNALS: usize = 64;

/// Appends to a bounded list. A full list drops a record of another process first; then, of a signal that is
/// sent again and again (a reload), the oldest but the first; then the middle. Returns the time of the
/// dropped record if that may decide something. `key`: the record's time; its target, signal and other
/// particulars.
pub(super) fn push_bounded<T, K: PartialEq>(
    list: &mut Vec<T>,
    item: T,
    main: Option<Tgid>,
    key: impl Fn(&T) -> (BootTime, (Tgid, u8, K)),
) -> Option<BootTime> {
    let mut lost = None;
    if list.len() >= MAX_SIGNALS {
        let kind = |record: &T| key(record).1;
        let of_another = || list.iter().position(|known| Some(kind(known).0) != main);
        let repeated = || {
            list.iter().enumerate().position(|(n, known)| {
                !matches!(kind(known).1, SIGKILL | SIGTERM)
                    && list.iter().take(n).any(|earlier| kind(earlier) == kind(known))
            })
        };
        let spare = of_another().or_else(repeated);
        let dropped = list.remove(spare.unwrap_or(MAX_SIGNALS / 2));
        lost = spare.is_none().then(|| key(&dropped).0);
    }
    list.push(item);
    lost
}
