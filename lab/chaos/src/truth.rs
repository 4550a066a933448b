//! What is true of a pod's end, whatever the agent says: the way to die that it was made for, and
//! what it left in the page that it shares with the judge. Pure.

use coroner_core::types::Verdict;
use coroner_lab_cluster::kubelet::record::StopCall;
use coroner_lab_scenarios::death_mode::DeathMode;
use serde::Deserialize;
use std::time::Duration;

/// What a pod is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PodKind {
    /// One way to die.
    One(DeathMode),
    /// Hundreds of processes, of which the first leaves when it is told to: the others are killed
    /// with it, all at once.
    Crowd,
}

impl PodKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::One(way) => way.name(),
            Self::Crowd => "crowd",
        }
    }
}

/// What is known of its end from the inside, and from the one who ended it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TrueEnd {
    /// What it was made for.
    pub(super) kind: PodKind,
    /// Its handler for the stop signal ran; `None`: it has none that tells.
    pub(super) handled: Option<bool>,
    /// The runtime was killed meanwhile: it may have killed what it found, without a word before.
    pub(super) may_be_killed: bool,
    /// It was seen to die after its end was asked for. Otherwise it may not have got that far: a runtime
    /// that is killed in StartContainer kills the container when it is back.
    pub(super) died_as_asked: bool,
    /// Its hook's process began so late that of its time nothing counts: whoever sees processes, and
    /// not the kubelet's calls, must take the end for graceful.
    pub(super) hook_was_late: bool,
}

/// What a hook must have run for to count: the kubelet takes whole seconds off the grace.
const COUNTS: Duration = Duration::from_secs(1);

/// Whether the hook's process ran for less than counts before StopContainer was called; also if it
/// never began.
pub(super) fn hook_was_late(stops: &[StopCall]) -> bool {
    #[derive(Deserialize)]
    struct HookLine {
        boot_ns: u64,
    }
    stops.first().is_some_and(|stop| {
        let Some((_, asked)) = stop.hook_began.zip(stop.asked) else { return false };
        // The first line is written when it begins.
        let began =
            stop.hook_said.lines().find_map(|line| serde_json::from_str::<HookLine>(line).ok());
        let ran = began.map_or(0, |began| asked.saturating_sub(began.boot_ns));
        Duration::from_nanos(ran) < COUNTS
    })
}

impl TrueEnd {
    /// The verdicts that are true of it, of which `unknown` is none; `None`: the lab itself cannot know
    /// how it ended.
    pub(super) fn verdicts(self) -> Option<Vec<Verdict>> {
        if self.may_be_killed && !self.died_as_asked {
            return None;
        }
        let PodKind::One(way) = self.kind else {
            return Some(match self.may_be_killed {
                true => vec![Verdict::Graceful, Verdict::ForceKilled],
                false => vec![Verdict::Graceful],
            });
        };
        let mut all = vec![way.verdict()];
        if way == DeathMode::PreStop && (self.may_be_killed || self.hook_was_late) {
            // It ended with the runtime that ran it, and the grace was not used up; or it began late.
            all.push(Verdict::Graceful);
        }
        if !self.may_be_killed {
            return Some(all);
        }
        match (way, self.handled) {
            // It ended by itself, or by our own hand.
            (
                DeathMode::Completed
                | DeathMode::Failed
                | DeathMode::Crashed
                | DeathMode::OomKilled
                | DeathMode::ForceKilled
                | DeathMode::Signalled,
                _,
            ) => {}
            // Its handler ran: it was sent a stop signal.
            (_, Some(true)) => {}
            _ => all.push(Verdict::ForceKilled),
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(way: DeathMode, handled: Option<bool>, may_be_killed: bool) -> Vec<Verdict> {
        TrueEnd {
            kind: PodKind::One(way),
            handled,
            may_be_killed,
            died_as_asked: true,
            hook_was_late: false,
        }
        .verdicts()
        .expect("the lab knows")
    }

    #[test]
    fn of_a_pod_that_a_killed_runtime_did_not_start_nothing_is_known() {
        let of = |may_be_killed| {
            let kind = PodKind::One(DeathMode::Completed);
            let (died_as_asked, hook_was_late) = (false, false);
            TrueEnd { kind, handled: None, may_be_killed, died_as_asked, hook_was_late }.verdicts()
        };
        assert_eq!(of(true), None);
        assert_eq!(of(false), Some(vec![Verdict::Completed]));
    }

    #[test]
    fn where_the_runtime_lives_a_way_has_one_verdict() {
        for way in DeathMode::ALL {
            assert_eq!(end(way, Some(true), false), [way.verdict()]);
        }
    }

    #[test]
    fn a_runtime_that_was_killed_may_kill_whom_it_had_not_told() {
        assert_eq!(end(DeathMode::Graceful, Some(true), true), [Verdict::Graceful]);
        let killed = [Verdict::Graceful, Verdict::ForceKilled];
        assert_eq!(end(DeathMode::Graceful, Some(false), true), killed);
        let ignored = [Verdict::StopSignalIgnored, Verdict::ForceKilled];
        assert_eq!(end(DeathMode::StopSignalIgnored, None, true), ignored);
        assert_eq!(end(DeathMode::Crashed, None, true), [Verdict::Crashed], "its own doing");
        let hook = [Verdict::PrestopExhaustedGrace, Verdict::Graceful];
        assert_eq!(end(DeathMode::PreStop, Some(true), true), hook);
    }

    #[test]
    fn a_hook_that_began_late_may_be_overlooked_and_no_other() {
        let stop = |said: &str| StopCall {
            hook_began: Some(1_000_000_000),
            hook_over: Some(3_000_000_000),
            hook_said: said.into(),
            asked: Some(3_000_000_000),
            ..StopCall::default()
        };
        let started = |ns: u64| format!("{{\"event\":\"start\",\"boot_ns\":{ns},\"pid\":9}}\n");
        assert!(!hook_was_late(&[stop(&started(2_000_000_000))]));
        assert!(hook_was_late(&[stop(&started(2_000_000_001))]));
        assert!(hook_was_late(&[stop("")]), "it never began");
        assert!(!hook_was_late(&[StopCall { asked: Some(9), ..StopCall::default() }]), "no hook");
        assert!(!hook_was_late(&[]));
        let late = |way| {
            let kind = PodKind::One(way);
            let end = TrueEnd {
                kind,
                handled: Some(true),
                may_be_killed: false,
                died_as_asked: true,
                hook_was_late: true,
            };
            end.verdicts().expect("the lab knows")
        };
        assert_eq!(late(DeathMode::PreStop), [Verdict::PrestopExhaustedGrace, Verdict::Graceful]);
        assert_eq!(late(DeathMode::GraceExceeded), [Verdict::GraceExceeded]);
    }

    #[test]
    fn unknown_is_never_the_truth() {
        for way in DeathMode::ALL {
            assert!(!end(way, None, true).contains(&Verdict::Unknown));
        }
    }
}
