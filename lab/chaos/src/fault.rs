//! What is done to the agent and to what it stands on: data.

use super::wire::{Refusal, Wire};
use std::time::Duration;

/// One way in which things go wrong.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fault {
    /// Its name, for `--fault`.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub does: &'static str,
    /// How it is done.
    pub deed: Deed,
    /// How long it lasts at least.
    pub lasts: Duration,
}

/// How a fault is done.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Deed {
    /// Not at all: the same demands, of a node on which nothing is wrong.
    Nothing,
    /// containerd gets SIGKILL and is started again, over and over.
    KillRuntime,
    /// Between the agent and its apiserver stands somebody who does this. The kubelet has a way of
    /// its own, and goes on.
    Wire(Wire),
    /// The agent gets SIGKILL at one stage after the other of a pod's end, and is started again.
    KillAgent,
    /// The agent runs with rings of one page, while thousands of cgroups come and go and hundreds of
    /// processes die at once.
    SmallRing,
    /// 2,000 cgroups that look like containers' are made and removed as fast as it goes.
    Cgroups,
    /// As soon as a container's main process is dead, another container has one of that number.
    ReusePids,
}

impl Deed {
    /// The agent that was there before is not there after it.
    pub fn replaces_agent(self) -> bool {
        matches!(self, Self::KillAgent | Self::SmallRing)
    }

    /// Verdicts may be `unknown`: what they rest on is not known, or was not seen. No fault excuses a wrong verdict, or a
    /// leak that is none.
    pub fn loses_evidence(self) -> bool {
        match self {
            Self::Nothing | Self::Cgroups | Self::ReusePids => false,
            Self::KillRuntime | Self::Wire(_) | Self::KillAgent | Self::SmallRing => true,
        }
    }

    /// The runtime, torn from its work, may kill without a stop signal before.
    pub fn may_kill(self) -> bool {
        self == Self::KillRuntime
    }
}

/// How long most of them last at least: some pods are born and some die within. What a round shows on
/// a slower machine is less, and not wrong.
const WHILE: Duration = Duration::from_secs(4);

/// All of them, in the order in which one round goes through them.
pub const FAULTS: &[Fault] = &[
    Fault {
        name: "none",
        does: "Nothing is wrong: what the others are compared with, and the agent's warm-up.",
        deed: Deed::Nothing,
        lasts: WHILE,
    },
    Fault {
        name: "runtime-killed",
        does: "containerd gets SIGKILL again and again and is started again each time.",
        deed: Deed::KillRuntime,
        // Some kills, and between them pods that come and go.
        lasts: Duration::from_secs(6),
    },
    Fault {
        name: "apiserver-gone",
        does: "Nobody listens where the apiserver was, and open connections are reset.",
        deed: Deed::Wire(Wire::Refused),
        lasts: WHILE,
    },
    Fault {
        name: "apiserver-slow",
        does: "Each piece of an answer takes 700 ms.",
        deed: Deed::Wire(Wire::Slow(Duration::from_millis(700))),
        lasts: WHILE,
    },
    Fault {
        name: "apiserver-410",
        does: "Watches under way break, and each new one is answered with 410 Gone.",
        deed: Deed::Wire(Wire::Refuses(Refusal::Gone)),
        lasts: WHILE,
    },
    Fault {
        name: "apiserver-429",
        does: "Every request is answered with 429 Too Many Requests.",
        deed: Deed::Wire(Wire::Refuses(Refusal::TooMany)),
        lasts: WHILE,
    },
    Fault {
        name: "apiserver-500",
        does: "Every request is answered with 500 Internal Server Error.",
        deed: Deed::Wire(Wire::Refuses(Refusal::Broken)),
        lasts: WHILE,
    },
    Fault {
        name: "apiserver-garbage",
        does: "Every request is answered with 200 and bytes that are no JSON.",
        deed: Deed::Wire(Wire::Refuses(Refusal::Garbage)),
        lasts: WHILE,
    },
    Fault {
        name: "apiserver-truncated",
        does: "Every connection is cut after the first 900 bytes of its answers.",
        deed: Deed::Wire(Wire::Cut(900)),
        lasts: WHILE,
    },
    Fault {
        name: "watch-stalled",
        does: "Open connections to the apiserver stay open and carry nothing; new ones work.",
        deed: Deed::Wire(Wire::Stalled),
        // Longer than the threshold: a pod that went unseen must not look leaked.
        lasts: Duration::from_secs(8),
    },
    Fault {
        name: "agent-killed",
        does: "The agent gets SIGKILL at every stage of a pod's end, and is started again.",
        deed: Deed::KillAgent,
        lasts: WHILE,
    },
    Fault {
        name: "ring-shrunk",
        does: "The agent's rings have 4 KiB, while thousands of cgroups come and go and hundreds of processes die.",
        deed: Deed::SmallRing,
        lasts: WHILE,
    },
    Fault {
        name: "cgroups",
        does: "2,000 cgroups that look like pods' containers come and go at once, several times.",
        deed: Deed::Cgroups,
        lasts: WHILE,
    },
    Fault {
        name: "pids-reused",
        does: "The numbers of dead main processes are given to processes of other containers.",
        deed: Deed::ReusePids,
        lasts: WHILE,
    },
];

/// Those that every change is tested with: one of each kind, and the one that leaves the most behind.
pub const GATE: [&str; 4] = ["none", "runtime-killed", "apiserver-410", "agent-killed"];

/// The faults of these names, in the order of [`FAULTS`]; no name: all.
pub fn choose(names: &[String]) -> Result<Vec<&'static Fault>, String> {
    if let Some(unknown) = names.iter().find(|name| FAULTS.iter().all(|f| f.name != **name)) {
        return Err(format!("no fault is called {unknown:?}; there are:\n{}", list()));
    }
    let chosen = |fault: &&Fault| names.is_empty() || names.iter().any(|name| name == fault.name);
    Ok(FAULTS.iter().filter(chosen).collect())
}

/// All of them, for a person.
pub fn list() -> String {
    FAULTS.iter().map(|fault| format!("  {:<20} {}\n", fault.name, fault.does)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_told() {
        let names: BTreeSet<_> = FAULTS.iter().map(|fault| fault.name).collect();
        assert_eq!(names.len(), FAULTS.len());
        assert!(FAULTS.iter().all(|fault| list().contains(fault.name)));
        assert!(
            FAULTS.iter().all(|fault| fault.does.ends_with('.') && fault.lasts > Duration::ZERO)
        );
    }

    #[test]
    fn faults_are_chosen_by_name_in_their_own_order() {
        let names = |chosen: Vec<&Fault>| chosen.iter().map(|f| f.name).collect::<Vec<_>>();
        assert_eq!(names(choose(&[]).unwrap()).len(), FAULTS.len());
        let two = ["watch-stalled".to_owned(), "none".to_owned()];
        assert_eq!(names(choose(&two).unwrap()), ["none", "watch-stalled"]);
        let error = choose(&["rain".to_owned()]).unwrap_err();
        assert!(error.contains("\"rain\"") && error.contains("runtime-killed"), "{error}");
    }

    #[test]
    fn the_gate_s_faults_exist() {
        assert_eq!(choose(&GATE.map(str::to_owned)).unwrap().len(), GATE.len());
    }
}
