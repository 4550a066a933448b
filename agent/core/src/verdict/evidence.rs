//! The evidence of a verdict as data, and the milestones that follow from it.

use super::{DeathFacts, HookRun};
use crate::{input::*, report::*};

impl<'a> DeathFacts<'a> {
    pub(super) fn evidence(&self) -> Vec<Evidence> {
        let kernel = |at: BootTime, kind| Evidence { at: at.into(), source: Source::Kernel, kind };
        let mut list = Vec::new();
        let inner_kill = self.inner_kill();
        for sent in [self.stop, self.kill, self.kernel_kill, inner_kill].into_iter().flatten() {
            let SignalGenerated { signal, code, result, ref sender, state, .. } = sent.signal;
            let (sender, target) = (Process::from(sender), state.map(Target::from));
            let kind = EvidenceKind::SignalGenerate { signal, code, result, sender, target };
            list.push(kernel(sent.at, kind));
        }
        let taken = self.taken;
        list.extend(taken.map(|t| kernel(t.at, EvidenceKind::SignalDeliver { signal: t.signal })));
        if let Some(hook) = &self.hook {
            let HookRun { began: at, source, .. } = *hook;
            list.push(Evidence { at: at.into(), source, kind: hook.evidence.clone() });
            let ended = hook.ended.zip(hook.status);
            list.extend(ended.map(|(at, status)| kernel(at, EvidenceKind::PreStopExit { status })));
        }
        let victims = self.case.processes.oom.iter();
        list.extend(victims.map(|(at, pid)| kernel(*at, EvidenceKind::MarkVictim { pid: *pid })));
        list.extend(
            self.exit.map(|(at, status)| kernel(at, EvidenceKind::SchedProcessExit { status })),
        );
        list.extend(self.case.processes.empty.map(|at| kernel(at, EvidenceKind::CgroupEmpty)));
        list
    }

    pub(super) fn milestones(&self) -> Vec<Milestone> {
        use MilestoneKind as M;
        let mut list: Vec<Milestone> = Vec::new();
        let mut mark = |kind, at: Option<BootTime>, source| {
            list.extend(Milestone::exact(kind, at, source));
        };
        let (stop, seen) = (self.stop.map(|s| s.at), Source::Kernel);
        let acts = [stop, self.kill.map(|s| s.at)].into_iter().flatten().min();
        match &self.hook {
            Some(hook) if acts.is_none_or(|act| hook.began < act) => {
                mark(M::StopBegan, Some(hook.began), hook.source);
            }
            _ => mark(M::StopBegan, acts, seen),
        }
        if let Some(hook) = &self.hook {
            mark(M::PreStopBegan, Some(hook.began), hook.source);
            mark(M::PreStopEnded, hook.ended, hook.source);
        }
        mark(M::TermSent, stop, seen);
        mark(M::TermHandled, self.taken.map(|t| t.at), seen);
        mark(M::KillSent, self.fatal_kill().map(|s| s.at), seen);
        mark(M::Exited, self.exit.map(|(at, _)| at), seen);
        mark(M::CgroupEmpty, self.case.processes.ended(), seen);
        list.sort_by_key(|m| (m.at, m.kind));
        list
    }
}
