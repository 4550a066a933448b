//! The kubelet's lane in the report of a termination.

use super::{
    KUBELET_REACTION, KUBELET_SLACK, KubeletState, Named, Statement, is_trouble, stages::stages,
};
use crate::{
    input::KubeletLogGap,
    report::{KubeletLane, KubeletStage, KubeletTrouble, PodTermination},
    time::BootTime,
    types::{Cause, StageKind},
};
use std::time::Duration;

/// What comes later than this after a pod's end is not about it.
const COLLECTED_AFTER: Duration = Duration::from_secs(600);
/// Bound on failures in a report.
const MAX_TROUBLES: usize = 16;

impl KubeletState {
    /// The lane from `began` to `ended`. `statements`: what was said of the pod, in order of time.
    pub fn lane(
        &self,
        statements: &[Named<'_>],
        is_static: bool,
        began: BootTime,
        ended: BootTime,
    ) -> KubeletLane {
        let mut stages = stages(statements, is_static);
        // Of what was before the end, only the mirror pod belongs to it; garbage collection comes last.
        let until = ended + COLLECTED_AFTER;
        let is_of_the_end = |stage: &KubeletStage| {
            stage.kind.is_of_a_mirror()
                || stage.to.is_none_or(|to| to + KUBELET_REACTION >= began) && stage.from <= until
        };
        stages.retain(is_of_the_end);
        let mut missing: Vec<KubeletLogGap> = self.gaps_in(began, ended).collect();
        if !self.is_read() {
            missing.push(KubeletLogGap::NotRead);
        }
        missing.sort();
        missing.dedup();
        let level = self.level(ended);
        // A line that is missing may have been one of a lower verbosity.
        let needed = |kind: &StageKind| match missing.is_empty() {
            true => kind.level(),
            false => kind.lowest_level(),
        };
        let hidden = |kind: &&StageKind| {
            kind.is_of_each(is_static)
                && needed(kind) > level.unwrap_or_default()
                && !stages.iter().any(|stage| stage.kind == **kind)
        };
        let not_logged = StageKind::ALL.iter().filter(hidden).copied().collect();
        let troubles = statements.iter().filter(|(said, _)| {
            is_trouble(said.entry.statement) && said.last + KUBELET_SLACK >= began
        });
        let trouble = |(said, name): &Named<'_>| KubeletTrouble {
            at: said.entry.time,
            last: said.last,
            count: said.count,
            statement: said.entry.statement,
            container: name.map(str::to_owned),
            error: said.entry.error.clone(),
        };
        let troubles = troubles.take(MAX_TROUBLES).map(trouble).collect();
        KubeletLane { level, stages, not_logged, missing, troubles }
    }

    /// The lane of a report that was made without the log.
    pub fn lane_of(&self, report: &PodTermination) -> KubeletLane {
        let (began, ended) = (report.began, report.ended);
        let pod = &report.pod;
        let mut all: Vec<&Statement> = self.of(pod.uid.as_str()).collect();
        let ids = report.containers.iter().flat_map(|one| self.of(one.id.as_str()));
        all.extend(ids);
        let near = |said: &&Statement| {
            said.last + KUBELET_SLACK >= began && said.entry.time <= ended + KUBELET_SLACK
        };
        all.extend(self.of_name(&pod.namespace, &pod.name).filter(near));
        all.sort_by_key(|said| said.entry.time);
        let named = |said: &&'_ Statement| {
            let id = said.entry.container_id.as_ref();
            let known = report.containers.iter().find(|one| Some(&one.id) == id);
            known.map(|one| one.name.clone())
        };
        let names: Vec<_> = all.iter().map(named).collect();
        let statements: Vec<Named<'_>> = all
            .iter()
            .zip(&names)
            .map(|(said, name)| (*said, said.entry.container.as_deref().or(name.as_deref())))
            .collect();
        self.lane(&statements, report.cause == Cause::StaticRemoved, began, ended)
    }
}
