//! The ways in which the benchmark has containers die: every verdict that can be made at speed.

use super::pod::{Blueprint, Part, Site};
use coroner_core::types::Verdict;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, Pod, Volume, VolumeMount};
use std::{path::Path, time::Duration};

/// The container's name.
pub const CONTAINER: &str = "app";
/// Where the container finds its page.
const PAGE: &str = "/beat";

/// A way to die.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DeathMode {
    /// Deleted; the handler takes SIGTERM and leaves.
    Graceful,
    /// The benchmark itself sends SIGTERM, so that it knows when; the handler leaves.
    Signalled,
    /// Deleted; not PID 1, so that SIGTERM's default action ends it.
    Default,
    /// Deleted; PID 1 without a handler, SIGKILL after the floor of 2 s.
    StopSignalIgnored,
    /// Deleted; SIGTERM is blocked, SIGKILL after the floor of 2 s.
    StopSignalBlocked,
    /// Deleted; the handler runs and stays, SIGKILL after the floor of 2 s.
    GraceExceeded,
    /// Deleted; preStop uses the grace up, then the handler leaves.
    PreStop,
    /// The benchmark itself sends SIGKILL.
    ForceKilled,
    /// Leaves with 0.
    Completed,
    /// Leaves with 3.
    Failed,
    /// SIGSEGV.
    Crashed,
    /// More memory than its limit.
    OomKilled,
}

/// What the benchmark does to make it die.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeathTrigger {
    /// Deletes the pod.
    Delete {
        /// From the request to shortly before SIGTERM can come: then the heart beats fast.
        term_after: Duration,
        /// The same of SIGKILL, where that is what ends it.
        kill_after: Option<Duration>,
    },
    /// Has the heart beat fast, then sends the signal.
    Send(rustix::process::Signal),
    /// Has the heart beat fast, then the process end itself.
    Itself,
}

/// The lab's kubelet reacts 150 ms after the request: no signal comes earlier.
const BEFORE_TERM: Duration = Duration::from_millis(100);
/// No SIGTERM comes earlier where a hook takes 2 s before it, and no SIGKILL earlier than the floor
/// of 2 s after a SIGTERM.
const TWO_SECONDS_ON: Duration = Duration::from_millis(2_100);

impl DeathMode {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Graceful,
        Self::Signalled,
        Self::Default,
        Self::StopSignalIgnored,
        Self::StopSignalBlocked,
        Self::GraceExceeded,
        Self::PreStop,
        Self::ForceKilled,
        Self::Completed,
        Self::Failed,
        Self::Crashed,
        Self::OomKilled,
    ];

    /// Also the beginning of the pods' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Graceful => "graceful",
            Self::Signalled => "signalled",
            Self::Default => "default",
            Self::StopSignalIgnored => "stop-signal-ignored",
            Self::StopSignalBlocked => "stop-signal-blocked",
            Self::GraceExceeded => "grace-exceeded",
            Self::PreStop => "pre-stop",
            Self::ForceKilled => "force-killed",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Crashed => "crashed",
            Self::OomKilled => "oom-killed",
        }
    }

    /// What the agent must say of it.
    pub fn verdict(self) -> Verdict {
        match self {
            Self::Graceful | Self::Signalled => Verdict::Graceful,
            Self::Default => Verdict::TerminatedByDefault,
            Self::StopSignalIgnored => Verdict::StopSignalIgnored,
            Self::StopSignalBlocked => Verdict::StopSignalBlocked,
            Self::GraceExceeded => Verdict::GraceExceeded,
            Self::PreStop => Verdict::PrestopExhaustedGrace,
            Self::ForceKilled => Verdict::ForceKilled,
            Self::Completed => Verdict::Completed,
            Self::Failed => Verdict::Failed,
            Self::Crashed => Verdict::Crashed,
            Self::OomKilled => Verdict::OomKilled,
        }
    }

    /// What is done to the running pod.
    pub fn act(self) -> DeathTrigger {
        match self {
            Self::Graceful | Self::Default => {
                DeathTrigger::Delete { term_after: BEFORE_TERM, kill_after: None }
            }
            Self::PreStop => DeathTrigger::Delete { term_after: TWO_SECONDS_ON, kill_after: None },
            Self::StopSignalIgnored | Self::StopSignalBlocked | Self::GraceExceeded => {
                DeathTrigger::Delete { term_after: BEFORE_TERM, kill_after: Some(TWO_SECONDS_ON) }
            }
            Self::Signalled => DeathTrigger::Send(rustix::process::Signal::TERM),
            Self::ForceKilled => DeathTrigger::Send(rustix::process::Signal::KILL),
            Self::Completed | Self::Failed | Self::Crashed | Self::OomKilled => {
                DeathTrigger::Itself
            }
        }
    }

    /// It needs a controller that limits memory.
    pub fn needs_memory_limit(self) -> bool {
        self == Self::OomKilled
    }

    fn life(self) -> &'static str {
        match self {
            Self::Graceful | Self::Signalled | Self::PreStop => "beat --page /beat --term leave",
            Self::GraceExceeded => "beat --page /beat --term stay",
            Self::StopSignalBlocked => "beat --page /beat --term block",
            Self::Failed => "beat --page /beat --exit 3",
            Self::Crashed => "beat --page /beat --end crash",
            Self::OomKilled => "beat --page /beat --end oom",
            Self::Default | Self::StopSignalIgnored | Self::ForceKilled | Self::Completed => {
                "beat --page /beat"
            }
        }
    }

    /// The pod, its heartbeat in the file `page`. With a grace of 1 s, which the kubelet's floor
    /// makes 2 s; a hook needs a whole second to have used up what counts.
    pub fn pod(self, name: &str, node: &str, page: &Path) -> Pod {
        let mut part = Part::new(CONTAINER, self.life());
        if self == Self::PreStop {
            part = part.pre_stop("sleep --for 5s");
        }
        if self.needs_memory_limit() {
            part = part.memory("8Mi");
        }
        let grace = if self == Self::PreStop { 2 } else { 1 };
        let mut pod = alone(part, grace, self == Self::Default, name, node);
        let spec = pod.spec.get_or_insert_default();
        spec.volumes = Some(vec![Volume {
            name: "page".into(),
            host_path: Some(HostPathVolumeSource {
                path: page.display().to_string(),
                type_: Some("File".into()),
            }),
            ..Default::default()
        }]);
        let mount =
            VolumeMount { name: "page".into(), mount_path: PAGE.into(), ..Default::default() };
        for container in &mut spec.containers {
            container.volume_mounts = Some(vec![mount.clone()]);
        }
        pod
    }
}

/// A pod of hundreds of processes, of which the first leaves when it is asked to.
pub fn crowd(name: &str, node: &str) -> Pod {
    alone(Part::new(CONTAINER, "spawn --children 400 --for 10ms"), 10, false, name, node)
}

/// A pod of one container that is not restarted.
fn alone(part: Part, grace: i64, host_pid: bool, name: &str, node: &str) -> Pod {
    let blueprint =
        Blueprint { restart: "Never", host_pid, containers: vec![part], ..Blueprint::new(grace) };
    blueprint.build(name, Site { node, port: 0, listed: Duration::ZERO })
}

/// `deaths` of the given ways, each as often as any other, in an order that the generator chooses.
pub fn shuffled(ways: &[DeathMode], deaths: usize, random: &mut fastrand::Rng) -> Vec<DeathMode> {
    let mut order: Vec<DeathMode> = ways.iter().copied().cycle().take(deaths).collect();
    random.shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_verdict_that_takes_no_loss_of_evidence_is_made() {
        let made: BTreeSet<_> = DeathMode::ALL.iter().map(|way| way.verdict()).collect();
        let wanted: BTreeSet<_> =
            Verdict::ALL.iter().copied().filter(|verdict| *verdict != Verdict::Unknown).collect();
        assert_eq!(made, wanted);
    }

    #[test]
    fn names_are_unique_and_fit_into_a_pods() {
        let names: BTreeSet<_> = DeathMode::ALL.iter().map(|way| way.name()).collect();
        assert_eq!(names.len(), DeathMode::ALL.len());
        assert!(names.iter().all(|n| n.chars().all(|c| c.is_ascii_lowercase() || c == '-')));
    }

    #[test]
    fn the_mix_is_even_and_the_seed_decides_the_order() {
        let order = |seed| shuffled(&DeathMode::ALL, 30, &mut fastrand::Rng::with_seed(seed));
        for way in DeathMode::ALL {
            let count = order(1).iter().filter(|other| **other == way).count();
            assert!((2..=3).contains(&count), "{way:?}: {count}");
        }
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
