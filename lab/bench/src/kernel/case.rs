//! What is measured: a row for each way to come by a hook, and what is asked of it. Pure.

/// Where the events happen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum CasePlace {
    /// In a cgroup that nobody watches: nearly everything that happens on a node.
    Outside,
    /// In a container.
    Inside,
}

/// What is done so that hooks run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum KernelEvent {
    /// Processes that end, children of others in the same cgroup.
    Exits,
    /// SIGTERM from outside to a process that ignores it, one after the other.
    Term,
    /// The same, with time in between for the agent's reader to fall asleep, so long that each wakes it.
    TermPaced,
    /// SIGKILL from outside to a process that has ended.
    Kill,
    /// SIGTERM to itself, which handles it, within what a container may have reported.
    Handled,
    /// The same, so often that nearly all are beyond it.
    HandledBeyond,
    /// SIGURG, to itself, which handles it: masked out.
    Chatter,
    /// A cgroup is made, a process of one's own is executed in it and ends, the cgroup empties and
    /// is removed.
    Lives,
}

/// One row: a hook during an act.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Case {
    /// The tracepoint.
    pub(super) hook: &'static str,
    /// What is done.
    pub(super) act: KernelEvent,
    /// Where.
    pub(super) place: CasePlace,
    /// Of the figure, without the place.
    pub(super) name: &'static str,
    /// What the program may cost beyond an empty one, ns for each event.
    pub(super) goal: Option<f64>,
}

const fn case(
    hook: &'static str,
    act: KernelEvent,
    place: CasePlace,
    name: &'static str,
    goal: Option<f64>,
) -> Case {
    Case { hook, act, place, name, goal }
}

use CasePlace::{Inside, Outside};
use KernelEvent::{Chatter, Exits, Handled, HandledBeyond, Kill, Lives, Term, TermPaced};

/// All rows, in the order in which they are shown.
pub(super) const CASES: [Case; 26] = [
    case("sched_process_exit", Exits, Outside, "exit", Some(160.0)),
    case("signal_deliver", Handled, Outside, "deliver", Some(60.0)),
    case("signal_deliver", Chatter, Outside, "deliver_masked", Some(10.0)),
    case("signal_generate", Chatter, Outside, "generate_masked", Some(10.0)),
    case("signal_generate", Term, Outside, "generate_term", Some(180.0)),
    case("signal_generate", Kill, Outside, "generate_kill", Some(180.0)),
    case("signal_generate", Handled, Outside, "generate_to_itself", Some(180.0)),
    case("sched_process_exec", Lives, Outside, "exec", None),
    case("cgroup_mkdir", Lives, Outside, "mkdir", None),
    case("cgroup_notify_populated", Lives, Outside, "populated", None),
    case("cgroup_rmdir", Lives, Outside, "rmdir", None),
    case("sched_process_exit", Exits, Inside, "exit", None),
    case("sched_process_exit", Lives, Inside, "exit_of_main", None),
    case("signal_deliver", Handled, Inside, "deliver", None),
    case("signal_deliver", HandledBeyond, Inside, "deliver_beyond_budget", None),
    case("signal_deliver", Chatter, Inside, "deliver_masked", None),
    case("signal_generate", Chatter, Inside, "generate_masked", None),
    case("signal_generate", Term, Inside, "generate_term.reader_behind", None),
    case("signal_generate", TermPaced, Inside, "generate_term.reader_asleep", None),
    case("signal_generate", Kill, Inside, "generate_kill", None),
    case("signal_generate", Handled, Inside, "generate_to_itself", None),
    case("signal_generate", HandledBeyond, Inside, "generate_beyond_budget", None),
    case("sched_process_exec", Lives, Inside, "exec_of_main", None),
    case("cgroup_mkdir", Lives, Inside, "mkdir", None),
    case("cgroup_notify_populated", Lives, Inside, "populated", None),
    case("cgroup_rmdir", Lives, Inside, "rmdir", None),
];

/// Every hook that is measured, once.
pub(super) fn hooks() -> Vec<&'static str> {
    let mut hooks: Vec<_> = CASES.iter().map(|case| case.hook).collect();
    hooks.sort_unstable();
    hooks.dedup();
    hooks
}

/// Every act that is done, once, in the order in which a round does it: what must not be beyond
/// its budget comes first.
pub(super) fn acts() -> Vec<(CasePlace, KernelEvent)> {
    let mut acts: Vec<_> = CASES.iter().map(|case| (case.place, case.act)).collect();
    acts.sort_unstable_by_key(|(place, act)| {
        (*act == HandledBeyond, *act != Handled, *place, *act)
    });
    acts.dedup();
    acts
}

impl CasePlace {
    /// In the names of figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Outside => "outside",
            Self::Inside => "inside",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_rows_have_one_name_and_what_is_asked_is_asked_outside() {
        let mut names: Vec<_> = CASES.iter().map(|case| (case.place, case.name)).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
        assert!(CASES.iter().all(|case| case.goal.is_none() || case.place == Outside));
    }

    #[test]
    fn a_budget_is_spent_last() {
        let acts = acts();
        assert_eq!(acts.first(), Some(&(Outside, Handled)));
        assert_eq!(acts.get(1), Some(&(Inside, Handled)));
        assert_eq!(acts.last(), Some(&(Inside, HandledBeyond)));
        assert_eq!(hooks().len(), 7);
    }
}
