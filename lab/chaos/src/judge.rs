//! What is demanded after each round. Pure.

use super::{SETTLE, fault::Fault, truth::TrueEnd, vitals::Vitals};
use coroner_core::types::Verdict;
use coroner_lab_cluster::wait::LIMIT;
use coroner_lab_harness::{ground_truth::Truth, monitor::ReportedDeath};
use std::{collections::BTreeMap, fmt, time::Duration};

/// The goal: how much more memory than before the agent holds when all has settled, bytes. What the
/// allocator keeps of a burst, and the history's share of long sentences.
pub(super) const MEMORY_GOAL: u64 = 4 << 20;
/// The goal: how many more descriptors, which are connections that the lab keeps open.
pub(super) const FD_GOAL: u64 = 4;
/// The goal: how long after the fault the agent takes to be ready. The longest pause before it tries
/// the apiserver again is 5 s, which jitter at most doubles, and the spread of a fleet's agents adds
/// 2; then it lists all.
pub(super) const READY_GOAL: Duration = Duration::from_secs(25);
/// So much more memory, beyond twice as much as before, is a leak on any machine.
const MEMORY_LIMIT: u64 = 16 << 20;
/// Likewise so many descriptors.
const FD_LIMIT: u64 = 32;
/// Before an absence of the agent: what it had seen and not yet reported is lost with it. The longest
/// that a settled report takes to reach the lab on a machine that is busy.
const UNTOLD: Duration = Duration::from_secs(13);

/// One pod that lived in the round.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) name: String,
    pub(super) end: TrueEnd,
    /// When its main process was seen dead, ns of CLOCK_BOOTTIME; `None`: it never ran.
    pub(super) died: Option<u64>,
    /// What the agent said, by container id.
    pub(super) told: BTreeMap<String, ReportedDeath>,
}

/// Something that the agent reported as leaked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stray {
    /// Which, for a person.
    pub(super) what: String,
    /// Whether it was.
    pub(super) truth: Truth,
}

/// All that is known after a round.
#[derive(Debug)]
pub(super) struct RoundFacts {
    pub(super) lives: Vec<Life>,
    pub(super) strays: Vec<Stray>,
    /// When the agent was not there.
    pub(super) absences: Vec<(u64, u64)>,
    /// From the end of the fault to ready; `None`: not within [`LIMIT`].
    pub(super) ready: Option<Duration>,
    /// At rest, when the agent had warmed up; `None`: this is what warms it up.
    pub(super) before: Option<Vitals>,
    /// At rest, after this round.
    pub(super) after: Vitals,
    /// What the agent counted as lost within the round and may have been a death.
    pub(super) lost: u64,
}

/// What came of it.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Judgement {
    /// Pods that ran and died.
    pub(super) deaths: usize,
    /// Of them: told, with a verdict that is true.
    pub(super) right: usize,
    /// Told as `unknown`.
    pub(super) unknown: usize,
    /// Not told.
    pub(super) missing: usize,
    /// Told with a verdict that is not true.
    pub(super) wrong: usize,
    /// Told as left behind though it was not.
    pub(super) false_leaks: usize,
    /// Left behind in truth, by what the fault did to others.
    pub(super) left_behind: Vec<String>,
    /// Where it falls short, as sentences. Empty: all that is demanded holds.
    pub(super) complaints: Vec<String>,
    /// Goals that were missed, as sentences: they depend on the machine as well.
    pub(super) missed_goals: Vec<String>,
}

impl Judgement {
    pub(super) fn is_good(&self) -> bool {
        self.complaints.is_empty()
    }
}

/// Judges a whole round in which this fault was done: nothing may be proven by nothing.
pub(super) fn judge_round(fault: &Fault, facts: &RoundFacts) -> Judgement {
    let mut judgement = judge(fault, facts);
    if judgement.deaths == 0 {
        judgement.complaints.push("nobody died: this round proves nothing".to_owned());
    } else if judgement.right == 0 && !fault.deed.loses_evidence() {
        judgement.complaints.push("no death was told rightly".to_owned());
    }
    judgement
}

/// Judges what was told while this fault was done.
fn judge(fault: &Fault, facts: &RoundFacts) -> Judgement {
    let mut judgement = Judgement::default();
    let mut missing = Vec::new();
    for life in &facts.lives {
        if judgement.life(fault, facts, life) == Word::Owed {
            missing.push(format!("{}: died, and was never told of", life.name));
        }
    }
    if missing.len() as u64 > facts.lost {
        missing.push(format!("{} of what decides counted as lost", facts.lost));
        judgement.complaints.append(&mut missing);
    }
    for stray in &facts.strays {
        match &stray.truth {
            Truth::Leaked(why) => judgement.left_behind.push(format!("{}: {why}", stray.what)),
            Truth::NotLeaked(why) => {
                judgement.false_leaks += 1;
                judgement.complaints.push(format!("false leak: {}: {why}", stray.what));
            }
        }
    }
    match facts.ready {
        None => judgement.complaints.push(format!("not ready within {LIMIT:?}")),
        Some(ready) if ready > READY_GOAL => {
            judgement.missed_goals.push(format!("ready after {ready:.1?}, not {READY_GOAL:?}"));
        }
        Some(_) => {}
    }
    if let Some(before) = &facts.before {
        judgement.vitals(before, &facts.after);
    }
    judgement
}

/// An agent was there to report a death of this moment.
pub(super) fn is_owed(died: u64, absences: &[(u64, u64)]) -> bool {
    let untold = u64::try_from((UNTOLD + SETTLE).as_nanos()).unwrap_or(u64::MAX);
    !absences.iter().any(|(from, to)| (from.saturating_sub(untold)..=*to).contains(&died))
}

/// Whether a pod's end was told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    Given,
    /// It was not, and the agent was there.
    Owed,
    /// It was not, and need not have been.
    Spared,
}

impl Judgement {
    fn life(&mut self, fault: &Fault, facts: &RoundFacts, life: &Life) -> Word {
        let Some(true_ones) = life.end.verdicts() else { return Word::Spared };
        let (mut wrong, mut unknown, mut right) = (false, false, false);
        for told in life.told.values() {
            for verdict in &told.verdicts {
                if *verdict == Verdict::Unknown {
                    unknown = true;
                } else if true_ones.contains(verdict) {
                    right = true;
                } else {
                    wrong = true;
                    let wanted = Names(&true_ones);
                    self.complaints.push(format!(
                        "{}: told {verdict}, true is {wanted}: {}",
                        life.name, told.message
                    ));
                }
            }
            let excused = fault.deed.loses_evidence() || told.marked;
            if told.verdicts.contains(&Verdict::Unknown) && !excused {
                self.complaints.push(format!(
                    "{}: told unknown, though nothing was lost: {}",
                    life.name, told.message
                ));
            }
        }
        let Some(died) = life.died else { return Word::Spared };
        self.deaths += 1;
        self.wrong += usize::from(wrong);
        self.unknown += usize::from(unknown && !wrong);
        self.right += usize::from(right && !wrong && !unknown);
        if wrong || unknown || right {
            return Word::Given;
        }
        self.missing += 1;
        match is_owed(died, &facts.absences) {
            true => Word::Owed,
            false => Word::Spared,
        }
    }

    fn vitals(&mut self, before: &Vitals, after: &Vitals) {
        if after.memory > before.memory + MEMORY_GOAL {
            let text =
                format!("memory: {} at rest, {} before", mib(after.memory), mib(before.memory));
            match after.memory > 2 * before.memory + MEMORY_LIMIT {
                true => self.complaints.push(text),
                false => self.missed_goals.push(text),
            }
        }
        if after.fds > before.fds + FD_GOAL {
            let text = format!("{} descriptors, {} before", after.fds, before.fds);
            match after.fds > 2 * before.fds + FD_LIMIT {
                true => self.complaints.push(text),
                false => self.missed_goals.push(text),
            }
        }
    }
}

/// Bytes for a person.
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

struct Names<'a>(&'a [Verdict]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&names.join(" or "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fault::choose, truth::PodKind};
    use coroner_lab_scenarios::death_mode::DeathMode;

    const SECOND: u64 = 1_000_000_000;

    fn life(way: DeathMode, verdicts: &[Verdict], marked: bool) -> Life {
        let death = ReportedDeath {
            verdicts: verdicts.iter().copied().collect(),
            message: "why".into(),
            marked,
        };
        let told = if verdicts.is_empty() { None } else { Some(("c".to_owned(), death)) };
        Life {
            name: "pod".into(),
            end: TrueEnd {
                kind: PodKind::One(way),
                handled: Some(true),
                may_be_killed: false,
                died_as_asked: true,
                hook_was_late: false,
            },
            died: Some(100 * SECOND),
            told: told.into_iter().collect(),
        }
    }

    fn facts(lives: Vec<Life>) -> RoundFacts {
        RoundFacts {
            lives,
            strays: Vec::new(),
            absences: Vec::new(),
            ready: Some(Duration::ZERO),
            before: Some(Vitals::default()),
            after: Vitals::default(),
            lost: 0,
        }
    }

    fn of(fault: &str, facts: &RoundFacts) -> Judgement {
        judge(choose(&[fault.to_owned()]).unwrap()[0], facts)
    }

    #[test]
    fn a_true_verdict_is_right_and_another_is_wrong_even_if_updated() {
        let right =
            of("none", &facts(vec![life(DeathMode::Graceful, &[Verdict::Graceful], false)]));
        assert_eq!((right.deaths, right.right, right.is_good()), (1, 1, true));
        let both = [Verdict::Graceful, Verdict::GraceExceeded];
        let wrong = of("agent-killed", &facts(vec![life(DeathMode::Graceful, &both, true)]));
        assert_eq!((wrong.wrong, wrong.right), (1, 0));
        assert!(
            wrong.complaints[0].contains("told grace_exceeded, true is graceful: why"),
            "{wrong:?}"
        );
    }

    #[test]
    fn unknown_must_be_explained() {
        let unmarked = facts(vec![life(DeathMode::StopSignalIgnored, &[Verdict::Unknown], false)]);
        assert!(!of("none", &unmarked).is_good());
        assert!(of("watch-stalled", &unmarked).is_good());
        let marked =
            of("none", &facts(vec![life(DeathMode::StopSignalIgnored, &[Verdict::Unknown], true)]));
        assert_eq!((marked.unknown, marked.is_good()), (1, true));
    }

    #[test]
    fn a_missing_death_must_be_counted_or_unseen() {
        let mut lost = facts(vec![life(DeathMode::GraceExceeded, &[], false)]);
        assert!(!of("none", &lost).is_good());
        assert!(!of("ring-shrunk", &lost).is_good(), "nothing was counted");
        lost.lost = 1;
        assert!(of("ring-shrunk", &lost).is_good());
        lost.lives.push(life(DeathMode::Graceful, &[], false));
        let two = of("ring-shrunk", &lost);
        assert_eq!((two.missing, two.complaints.len()), (2, 3), "one loss hides one death");
        lost.lives.pop();
        lost.lost = 0;
        lost.absences = vec![(114 * SECOND, 115 * SECOND)];
        assert!(of("agent-killed", &lost).is_good(), "seen, and not yet told");
        lost.absences = vec![(98 * SECOND, 99 * SECOND)];
        assert!(!of("agent-killed", &lost).is_good(), "it was back");
        lost.absences = vec![(201 * SECOND, 202 * SECOND)];
        let absent = of("agent-killed", &lost);
        assert_eq!((absent.missing, absent.is_good()), (1, false));
        lost.lives[0].died = None;
        assert!(of("none", &lost).is_good(), "it never ran");
    }

    #[test]
    fn a_round_must_have_something_to_tell_of() {
        let round = |lives| judge_round(choose(&["none".to_owned()]).unwrap()[0], &facts(lives));
        assert_eq!(round(Vec::new()).complaints.len(), 1);
        let unknown = life(DeathMode::StopSignalIgnored, &[Verdict::Unknown], true);
        assert_eq!(round(vec![unknown.clone()]).complaints, ["no death was told rightly"]);
        let right = life(DeathMode::Graceful, &[Verdict::Graceful], false);
        assert!(round(vec![unknown, right]).is_good());
    }

    #[test]
    fn only_what_is_there_is_left_behind() {
        let mut left = facts(Vec::new());
        left.strays = vec![
            Stray { what: "a sandbox".into(), truth: Truth::Leaked("it was".into()) },
            Stray { what: "a netns".into(), truth: Truth::NotLeaked("it was not".into()) },
        ];
        let judgement = of("runtime-killed", &left);
        assert_eq!((judgement.false_leaks, judgement.left_behind.len()), (1, 1));
        assert_eq!(judgement.complaints, ["false leak: a netns: it was not"]);
    }

    #[test]
    fn memory_and_descriptors_come_back() {
        let mut grown = facts(Vec::new());
        grown.after.memory = MEMORY_GOAL;
        grown.after.fds = FD_GOAL;
        assert_eq!(of("none", &grown).missed_goals.len(), 0);
        grown.after.memory += 1;
        grown.after.fds += 1;
        grown.ready = Some(READY_GOAL + Duration::from_secs(1));
        let slow = of("none", &grown);
        assert_eq!((slow.missed_goals.len(), slow.is_good()), (3, true), "a slow machine");
        grown.after.memory = MEMORY_LIMIT + 1;
        grown.after.fds = FD_LIMIT + 1;
        grown.ready = None;
        assert_eq!(of("none", &grown).complaints.len(), 3, "no machine does that");
        grown.before = None;
        assert_eq!(of("none", &grown).complaints.len(), 1, "it warms up");
    }
}
