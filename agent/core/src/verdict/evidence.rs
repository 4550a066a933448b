//! What proves it, as data: the evidence, and the milestones that follow from it.

use super::Facts;
use crate::{
    observation::{Evidence, Milestone, MilestoneKind, Source},
    pre_stop::HookRun,
    signal,
    time::BootTime,
};
use std::time::Duration;

impl<'a> Facts<'a> {
    pub(super) fn evidence(&self) -> Vec<Evidence> {
        let kernel = |at, what| Evidence { at, source: Source::Kernel, what };
        let mut list = Vec::new();
        let inner_kill = self.inner_kill();
        for sent in [self.stop, self.kill, self.kernel_kill, inner_kill].into_iter().flatten() {
            let s = &sent.signal;
            let mut what = format!(
                "signal_generate sig={} code={} result={:?} sender={}({})",
                signal::name(s.signal),
                s.code,
                s.result,
                s.sender.comm,
                s.sender.tgid
            );
            if let Some(state) = s.state {
                what.push_str(&format!(
                    " disposition={:?} unkillable={} group_exit={} blocked={} pending={:#x}",
                    state.disposition,
                    state.unkillable,
                    state.group_exit,
                    state.blocked,
                    state.pending
                ));
            }
            list.push(kernel(sent.at, what));
        }
        if let Some(taken) = self.taken {
            let what = format!("signal_deliver sig={} to a handler", signal::name(taken.signal));
            list.push(kernel(taken.at, what));
        }
        if let Some(hook) = &self.hook {
            let HookRun { began: at, source, .. } = *hook;
            list.push(Evidence { at, source, what: hook.what.clone() });
            if let Some((at, status)) = hook.ended.zip(hook.status) {
                list.push(kernel(at, format!("exit of the preStop hook: {status:?}")));
            }
        }
        for (at, pid) in &self.case.processes.oom {
            list.push(kernel(*at, format!("mark_victim pid={pid}")));
        }
        if let Some((at, status)) = self.exit {
            list.push(kernel(at, format!("sched_process_exit {status:?}")));
        }
        if let Some(at) = self.case.processes.empty {
            list.push(kernel(at, "cgroup_notify_populated 0".into()));
        }
        list
    }

    pub(super) fn milestones(&self) -> Vec<Milestone> {
        use MilestoneKind::{
            Empty, Exited, KillSent, PreStopBegan, PreStopEnded, StopBegan, TermHandled, TermSent,
        };
        let mut list: Vec<Milestone> = Vec::new();
        let mut mark = |kind, at: Option<BootTime>, source| {
            let uncertainty = Duration::ZERO;
            list.extend(at.map(|at| Milestone { kind, at, uncertainty, source }));
        };
        let (stop, seen) = (self.stop.map(|s| s.at), Source::Kernel);
        let acts = [stop, self.kill.map(|s| s.at)].into_iter().flatten().min();
        match &self.hook {
            Some(hook) if acts.is_none_or(|act| hook.began < act) => {
                mark(StopBegan, Some(hook.began), hook.source);
            }
            _ => mark(StopBegan, acts, seen),
        }
        if let Some(hook) = &self.hook {
            mark(PreStopBegan, Some(hook.began), hook.source);
            mark(PreStopEnded, hook.ended, hook.source);
        }
        mark(TermSent, stop, seen);
        mark(TermHandled, self.taken.map(|t| t.at), seen);
        mark(KillSent, self.fatal_kill().map(|s| s.at), seen);
        mark(Exited, self.exit.map(|(at, _)| at), seen);
        mark(Empty, self.case.processes.ended(), seen);
        list.sort_by_key(|m| (m.at, m.kind));
        list
    }
}
