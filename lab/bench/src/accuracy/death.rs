//! One death: what is true of it, and what everybody said. Pure; nanoseconds of CLOCK_BOOTTIME.

use super::interval::Interval;
use coroner_core::{
    report::ContainerDeath,
    types::{MilestoneKind, Verdict},
};
use coroner_lab_scenarios::death_mode::DeathMode;
use rustix::process::Signal;

/// One death, with all that was said of it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Death {
    /// How it was made.
    pub(super) way: DeathMode,
    /// Under which load.
    pub(super) load: CpuLoad,
    /// From the last heartbeat to the moment at which the observer's pidfd was readable.
    pub(super) truth: Interval,
    /// The delete call, if the pod was deleted.
    pub(super) deleted: Option<Interval>,
    /// The call that sent the signal, if the benchmark itself sent it.
    pub(super) sent: Option<Interval>,
    /// From a heartbeat that was certainly before the stop signal to the first thing that its
    /// handler did.
    pub(super) handled: Option<Interval>,
    /// The agent's account; `None`: it gave none.
    pub(super) account: Option<Account>,
    /// ContainerStatus.finished_at.
    pub(super) cri_finished: Option<u64>,
    /// The first list, one a second, that shows it dead.
    pub(super) relist: Option<u64>,
    /// terminated.finishedAt of the pod's status.
    pub(super) api_finished: Option<u64>,
    /// When the object went, if its deletion was what ended the container.
    pub(super) api_gone: Option<u64>,
}

/// What else the machine did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CpuLoad {
    /// Nothing but the lab.
    Idle,
    /// A spinning process for each CPU.
    Busy,
}

impl CpuLoad {
    pub(super) const ALL: [Self; 2] = [Self::Idle, Self::Busy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "load",
        }
    }
}

/// What the agent says, as far as it is about times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Account {
    pub(super) verdict: Verdict,
    pub(super) term_sent: Option<u64>,
    pub(super) term_handled: Option<u64>,
    pub(super) kill_sent: Option<u64>,
    pub(super) exited: Option<u64>,
    pub(super) empty: Option<u64>,
}

impl Account {
    pub(super) fn of(death: &ContainerDeath) -> Self {
        let at = |kind| death.milestone(kind).map(|milestone| milestone.at.0);
        Self {
            verdict: death.verdict,
            term_sent: at(MilestoneKind::TermSent),
            term_handled: at(MilestoneKind::TermHandled),
            kill_sent: at(MilestoneKind::KillSent),
            exited: at(MilestoneKind::Exited),
            empty: at(MilestoneKind::CgroupEmpty),
        }
    }
}

/// Who claims a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Claim {
    /// coroner: the container's last task left its cgroup.
    CgroupEmpty,
    /// coroner: the init's last thread exited.
    Exited,
    /// The runtime, asked.
    CriFinished,
    /// A list of all containers each second.
    Relist,
    /// The pod's status.
    ApiFinished,
    /// The object's deletion.
    ApiGone,
    /// coroner: SIGTERM was sent, by the runtime.
    TermSent,
    /// coroner: SIGTERM was sent, by the benchmark.
    TermSentByUs,
    /// coroner: the handler of SIGTERM ran.
    TermHandled,
    /// coroner: SIGKILL was sent, by the benchmark.
    KillSentByUs,
}

impl Claim {
    /// In the order of the table.
    pub(super) const ALL: [Self; 10] = [
        Self::CgroupEmpty,
        Self::Exited,
        Self::CriFinished,
        Self::Relist,
        Self::ApiFinished,
        Self::ApiGone,
        Self::TermSent,
        Self::TermSentByUs,
        Self::TermHandled,
        Self::KillSentByUs,
    ];

    /// Those of the moment of death; the others are of signals.
    pub(super) fn is_of_death(self) -> bool {
        matches!(
            self,
            Self::CgroupEmpty
                | Self::Exited
                | Self::CriFinished
                | Self::Relist
                | Self::ApiFinished
                | Self::ApiGone
        )
    }

    /// In the names of figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CgroupEmpty => "cgroup_empty",
            Self::Exited => "exited",
            Self::CriFinished => "cri_finished_at",
            Self::Relist => "relist_1s",
            Self::ApiFinished => "api_finished_at",
            Self::ApiGone => "api_object_gone",
            Self::TermSent => "term_sent",
            Self::TermSentByUs => "term_sent_own_signal",
            Self::TermHandled => "term_handled",
            Self::KillSentByUs => "kill_sent_own_signal",
        }
    }

    /// In the table.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::CgroupEmpty => "coroner: CgroupEmpty",
            Self::Exited => "coroner: Exited",
            Self::CriFinished => "CRI: finished_at",
            Self::Relist => "CRI: relist, 1 s (PLEG)",
            Self::ApiFinished => "API: finishedAt",
            Self::ApiGone => "API: object gone",
            Self::TermSent => "coroner: TermSent",
            Self::TermSentByUs => "coroner: TermSent, own signal",
            Self::TermHandled => "coroner: TermHandled",
            Self::KillSentByUs => "coroner: KillSent, own signal",
        }
    }

    /// What the 99th percentile of the error must not exceed, ms: coroner's own word on the moment
    /// of death and of signals has a goal, the others' is there to compare with.
    pub(super) fn goal(self) -> Option<f64> {
        matches!(
            self,
            Self::CgroupEmpty
                | Self::TermSent
                | Self::TermSentByUs
                | Self::TermHandled
                | Self::KillSentByUs
        )
        .then_some(1.0)
    }

    /// What is true and what is claimed, where both are known of this death.
    pub(super) fn of(self, death: &Death) -> Option<(Interval, u64)> {
        let account = death.account.as_ref();
        let sent = |signal| {
            death.sent.filter(|_| {
                death.way.act() == coroner_lab_scenarios::death_mode::DeathTrigger::Send(signal)
            })
        };
        match self {
            Self::CgroupEmpty => Some((death.truth, account?.empty?)),
            Self::Exited => Some((death.truth, account?.exited?)),
            Self::CriFinished => Some((death.truth, death.cri_finished?)),
            Self::Relist => Some((death.truth, death.relist?)),
            Self::ApiFinished => Some((death.truth, death.api_finished?)),
            Self::ApiGone => Some((death.truth, death.api_gone?)),
            // Not before somebody asked for it, and not after the handler ran.
            Self::TermSent => {
                let handled = death.handled?;
                let truth = Interval::new(handled.from.max(death.deleted?.from), handled.to);
                Some((truth, account?.term_sent?))
            }
            Self::TermSentByUs => {
                let sent = sent(Signal::TERM)?;
                let to = death.handled.map_or(sent.to, |handled| handled.to.min(sent.to));
                Some((Interval::new(sent.from, to), account?.term_sent?))
            }
            Self::TermHandled => {
                let handled = death.handled?;
                let asked = death.sent.or(death.deleted)?.from;
                let truth = Interval::new(handled.from.max(asked), handled.to);
                Some((truth, account?.term_handled?))
            }
            Self::KillSentByUs => Some((sent(Signal::KILL)?, account?.kill_sent?)),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A death at 1,000,000 ns of which everybody tells the truth, more or less.
    pub(crate) fn sample(way: DeathMode, load: CpuLoad) -> Death {
        Death {
            way,
            load,
            truth: Interval::new(1_000_000, 1_010_000),
            deleted: None,
            sent: None,
            handled: None,
            account: Some(Account {
                verdict: way.verdict(),
                term_sent: Some(500_000),
                term_handled: Some(504_000),
                kill_sent: Some(700_000),
                exited: Some(1_001_000),
                empty: Some(1_005_000),
            }),
            cri_finished: Some(3_010_000),
            relist: Some(501_010_000),
            api_finished: Some(0),
            api_gone: None,
        }
    }

    #[test]
    fn a_claim_is_compared_only_where_the_truth_is_known() {
        let mut death = sample(DeathMode::Graceful, CpuLoad::Idle);
        assert_eq!(Claim::CgroupEmpty.of(&death), Some((death.truth, 1_005_000)));
        assert_eq!(Claim::ApiGone.of(&death), None);
        assert_eq!(Claim::TermSent.of(&death), None, "neither request nor handler is known");
        death.deleted = Some(Interval::new(400_000, 410_000));
        death.handled = Some(Interval::new(480_000, 505_000));
        let bounded = Interval::new(480_000, 505_000);
        assert_eq!(Claim::TermSent.of(&death), Some((bounded, 500_000)));
        assert_eq!(Claim::TermHandled.of(&death), Some((bounded, 504_000)));
        death.handled = Some(Interval::new(0, 505_000)); // no heartbeat before: the request bounds
        let bounded = Interval::new(400_000, 505_000);
        assert_eq!(Claim::TermSent.of(&death), Some((bounded, 500_000)));
        death.account = None;
        assert_eq!(Claim::CgroupEmpty.of(&death), None);
        assert_eq!(Claim::CriFinished.of(&death), Some((death.truth, 3_010_000)));
    }

    #[test]
    fn a_signal_of_our_own_is_known_from_both_sides() {
        let mut death = sample(DeathMode::Signalled, CpuLoad::Idle);
        let call = Interval::new(499_000, 509_000);
        death.sent = Some(call);
        assert_eq!(Claim::TermSentByUs.of(&death), Some((call, 500_000)));
        death.handled = Some(Interval::new(450_000, 505_000)); // before the call returned
        let narrower = Interval::new(499_000, 505_000);
        assert_eq!(Claim::TermSentByUs.of(&death), Some((narrower, 500_000)));
        assert_eq!(Claim::TermHandled.of(&death), Some((narrower, 504_000)));
        assert_eq!(Claim::KillSentByUs.of(&death), None, "that was another signal");
        death.way = DeathMode::ForceKilled;
        assert_eq!(Claim::KillSentByUs.of(&death), Some((call, 700_000)));
    }
}
