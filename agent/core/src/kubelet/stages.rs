//! The kubelet's stages of a pod's end: from statements to a lane of spans, and what each stage waited for.

use super::Statement;
use crate::{
    input::{KubeletChange, KubeletEntry, KubeletPodSource, KubeletStatement as Says},
    report::{KubeletStage, StageWait},
    time::BootTime,
    types::StageKind as Kind,
};

/// Bound on the stages of one pod.
const MAX_STAGES: usize = 64;

/// A statement, and the name of the container that it is about.
pub type Named<'a> = (&'a Statement, Option<&'a str>);

/// What a statement is for a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Edge {
    Begin,
    End,
    Failed,
    /// It has no length.
    Moment,
    /// The stage lasts from the first such statement to the last.
    Part,
}

impl Kind {
    /// `-v` that shows the stage whole, whatever ends the pod: a deletion is noticed at 2, an eviction at 3 and a
    /// completed pod at 4; PLEG's event for a pod that is gone is at 4.
    pub fn level(self) -> u8 {
        match self {
            Self::Removed | Self::MirrorRemoved | Self::MirrorCreate => 2,
            Self::PreStop | Self::Kill | Self::Unmount | Self::ApiDelete | Self::MirrorDelete => 3,
            Self::Noticed | Self::Pleg | Self::Housekeeping => 4,
            Self::Terminating | Self::Terminated | Self::Cgroup | Self::StatusUpdate => 4,
            Self::ContainerRemoval | Self::GarbageCollection => 4,
        }
    }

    /// `-v` that shows a part of the stage, or the stage at some pods' ends.
    pub fn lowest_level(self) -> u8 {
        match self {
            Self::Noticed | Self::Kill | Self::Pleg => 2,
            Self::Housekeeping => 3,
            other => other.level(),
        }
    }

    /// Each end of a pod of this sort has the stage.
    pub fn is_of_each(self, is_static: bool) -> bool {
        match self {
            Self::PreStop | Self::Unmount | Self::MirrorCreate | Self::ContainerRemoval => false,
            Self::StatusUpdate | Self::MirrorDelete | Self::MirrorRemoved => is_static,
            Self::ApiDelete | Self::Removed => !is_static,
            _ => true,
        }
    }

    /// What it may have waited for: a stage, and whether for its end rather than its beginning.
    fn waits_for(self) -> &'static [(Kind, bool)] {
        use Kind::*;
        match self {
            Noticed | MirrorCreate => &[],
            Terminating => &[(Noticed, false)],
            PreStop => &[(Terminating, false), (Noticed, false)],
            Kill => &[(PreStop, true), (Terminating, false), (Noticed, false)],
            Pleg => &[(Kill, true)],
            Terminated => &[(Terminating, true), (Pleg, false)],
            Unmount => &[(Terminated, false)],
            Cgroup => &[(Unmount, true), (Terminated, false)],
            StatusUpdate | ApiDelete => &[(Terminated, true)],
            Removed => &[(ApiDelete, false)],
            Housekeeping => &[(Removed, false), (Terminated, true)],
            MirrorDelete => &[(Terminated, true)],
            MirrorRemoved => &[(MirrorDelete, false)],
            ContainerRemoval => &[(Pleg, false)],
            GarbageCollection => &[(Removed, false), (MirrorRemoved, true), (Terminated, true)],
        }
    }
}

fn edge(entry: &KubeletEntry, is_static: bool) -> Option<(Kind, Edge)> {
    use Edge::*;
    let by_api = entry.source == Some(KubeletPodSource::Api);
    Some(match entry.statement {
        Says::SyncLoopDelete if is_static => (Kind::MirrorRemoved, Begin),
        Says::SyncLoopRemove if is_static && by_api => (Kind::MirrorRemoved, End),
        Says::SyncLoopRemove if by_api => (Kind::Removed, Moment),
        Says::SyncLoopDelete
        | Says::SyncLoopRemove
        | Says::Evicting
        | Says::Preempting
        | Says::ShutdownKill
        | Says::CompletedNaturally => (Kind::Noticed, Moment),
        Says::TerminatingBegin => (Kind::Terminating, Begin),
        Says::TerminatingEnd => (Kind::Terminating, End),
        Says::PreStopBegin => (Kind::PreStop, Begin),
        Says::PreStopEnd => (Kind::PreStop, End),
        Says::PreStopFailed | Says::PreStopTimedOut => (Kind::PreStop, Failed),
        Says::KillBegin => (Kind::Kill, Begin),
        Says::KillEnd => (Kind::Kill, End),
        Says::KillFailed => (Kind::Kill, Failed),
        Says::PlegEvent | Says::PlegEventIgnored
            if entry.change.is_none_or(|change| change == KubeletChange::Died) =>
        {
            (Kind::Pleg, Moment)
        }
        Says::TerminatedBegin => (Kind::Terminated, Begin),
        Says::TerminatedEnd => (Kind::Terminated, End),
        Says::UnmountBegin => (Kind::Unmount, Begin),
        Says::UnmountEnd => (Kind::Unmount, End),
        Says::UnmountFailed => (Kind::Unmount, Failed),
        Says::CgroupsRemoved => (Kind::Cgroup, Moment),
        Says::SyncLoopReconcile if is_static => (Kind::StatusUpdate, Moment),
        Says::ApiRemoved | Says::ApiGone => (Kind::ApiDelete, Moment),
        Says::ApiRemoveFailed => (Kind::ApiDelete, Failed),
        Says::WorkerRemoved
        | Says::WorkerRemovedForRestart
        | Says::OrphanVolumesRemoved
        | Says::OrphanDirRemoving
        | Says::OrphanCgroupsRemoving => (Kind::Housekeeping, Part),
        Says::MirrorDeleteTried | Says::MirrorDeleting => (Kind::MirrorDelete, Begin),
        Says::MirrorDeleted | Says::MirrorOutdated => (Kind::MirrorDelete, End),
        Says::MirrorDeleteFailed => (Kind::MirrorDelete, Failed),
        Says::MirrorCreating => (Kind::MirrorCreate, Moment),
        Says::MirrorCreateFailed => (Kind::MirrorCreate, Failed),
        Says::ContainerRemoving => (Kind::ContainerRemoval, Moment),
        Says::ContainerRemoveFailed => (Kind::ContainerRemoval, Failed),
        Says::SandboxRemoving | Says::PodLogsRemoving => (Kind::GarbageCollection, Part),
        Says::SandboxRemoveFailed => (Kind::GarbageCollection, Failed),
        _ => return None,
    })
}

/// The lane of a pod: its stages in the order in which they began. `statements` are in order of time.
pub(super) fn stages(statements: &[Named<'_>], is_static: bool) -> Vec<KubeletStage> {
    let mut stages: Vec<KubeletStage> = Vec::new();
    for (said, container) in statements {
        let entry = &said.entry;
        let Some((mut kind, mut edge)) = edge(entry, is_static) else { continue };
        // The kubelet's own delete with grace 0 comes back as another deletion, then as the removal.
        let is_cleaned_up = || stages.iter().any(|stage| stage.kind == Kind::Terminated);
        match kind {
            Kind::Noticed if entry.statement == Says::SyncLoopDelete && is_cleaned_up() => {
                (kind, edge) = (Kind::Removed, Edge::Begin);
            }
            Kind::Removed => edge = Edge::End,
            _ => {}
        }
        // A collection is one, of all containers and the sandbox.
        let container = container.filter(|_| edge != Edge::Part).map(str::to_owned);
        let same = |stage: &&mut KubeletStage| stage.kind == kind && stage.container == container;
        let has_room = stages.len() < MAX_STAGES;
        let last = stages.iter_mut().rev().find(same);
        let is_open = last.as_ref().is_some_and(|last| last.to.is_none());
        match (edge, last) {
            (Edge::Begin, Some(_)) if is_open => {}
            (Edge::End, Some(last)) => last.to = last.to.max(Some(entry.time)),
            (Edge::Failed, Some(last)) => {
                last.failed = true;
                last.to = last.to.max(Some(entry.time));
            }
            (Edge::Part, Some(last)) => last.to = last.to.max(Some(entry.time)),
            _ if has_room => stages.push(KubeletStage {
                kind,
                from: entry.time,
                to: (edge != Edge::Begin).then_some(entry.time),
                uncertainty: entry.uncertainty(),
                container,
                failed: edge == Edge::Failed,
                waited: None,
            }),
            _ => {}
        }
    }
    for at in 0..stages.len() {
        stages[at].waited = waited(&stages, &stages[at]);
    }
    stages
}

/// The latest of the stages that it may have waited for.
fn waited(stages: &[KubeletStage], of: &KubeletStage) -> Option<StageWait> {
    let is_its = |other: &&KubeletStage| {
        other.container == of.container || other.container.is_none() || of.container.is_none()
    };
    let reached = |kind: Kind, by_end: bool| -> Option<BootTime> {
        let all = stages.iter().filter(|other| other.kind == kind).filter(is_its);
        let at = all.filter_map(|other| if by_end { other.to } else { Some(other.from) });
        at.filter(|at| *at <= of.from).max()
    };
    let all = of.kind.waits_for().iter();
    let all = all.filter_map(|(kind, by_end)| Some((reached(*kind, *by_end)?, *kind)));
    let (at, stage) = all.max_by_key(|(at, _)| *at)?;
    Some(StageWait { stage, time: of.from.since(at) })
}

/// A failure that is evidence for a leak, or for a cleanup that takes long.
pub fn is_trouble(says: Says) -> bool {
    matches!(
        says,
        Says::WorkerStuck
            | Says::SyncFailed
            | Says::KillFailed
            | Says::KillPodFailed
            | Says::EventKillPodFailed
            | Says::EventExceededGrace
            | Says::SandboxStopFailed
            | Says::SandboxRemoveFailed
            | Says::RuntimeStopSandboxFailed
            | Says::RuntimeStopContainerFailed
            | Says::RuntimeRemoveSandboxFailed
            | Says::RuntimeRemoveContainerFailed
            | Says::ContainerRemoveFailed
            | Says::VolumesLeft
            | Says::OrphanDirFailed
            | Says::CgroupFailed
            | Says::CgroupLeft
            | Says::ApiRemoveFailed
            | Says::MirrorDeleteFailed
            | Says::UnmountFailed
            | Says::VolumeOperationFailed
            | Says::CniFailed
            | Says::PreemptFailed
            | Says::EvictFailed
            | Says::ShutdownKillFailed
    )
}
