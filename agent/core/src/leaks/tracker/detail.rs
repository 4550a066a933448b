//! The budget for leaks that keep their evidence.

use crate::leak::LeakClass;
use std::collections::BTreeMap;

/// Bound on leaks with evidence. Beyond it the node has another problem, and the evidence only uses memory.
const MAX_DETAILED: usize = 1_000;

/// Leaks with evidence so far: sandboxes, orphans and pods each have their own budget.
#[derive(Debug, Default)]
pub(super) struct DetailBudget(BTreeMap<(bool, bool), usize>);

impl DetailBudget {
    /// Uses the budget for one leak, if there is room.
    pub(super) fn take(&mut self, class: LeakClass) -> bool {
        let kind = (class.is_sandbox(), class.orphan().is_some());
        let used = self.0.entry(kind).or_default();
        *used += 1;
        *used <= MAX_DETAILED
    }
}
