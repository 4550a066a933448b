//! What else is worth knowing about a death: where the sources disagree, what was missed.

use super::Account;
use crate::{
    ids::ContainerId,
    input::{ApiTerminated, CriState, ExitStatus},
    object::{Object, Request},
    observation::{Contradiction, Finding, FindingKind},
    process::{Children, Processes},
    runtime::Container,
    signal,
    time::BootTime,
    verdict::secs,
};
use std::time::Duration;

/// Past its deadline by more than this counts as missed: the kubelet's floor of 2 s and the most
/// that it was seen to take before it does anything (FACTS §7).
const DEADLINE_SLACK: Duration = Duration::from_secs(6);

/// Lists are made this often while a pod dies, and the runtime may need a moment to notice.
const NOTICE: Duration = Duration::from_secs(5);

/// Children that were never sent the stop signal.
pub(super) fn not_signalled(children: &Children, stop_signal: u8) -> Finding {
    let Children { unsignalled, names, .. } = children;
    let more = if names.len() < *unsignalled as usize { ", …" } else { "" };
    let who = match names.as_slice() {
        [] => String::new(),
        names => format!(" ({}{more})", names.join(", ")),
    };
    let detail = format!(
        "{unsignalled} process(es){who} were killed by the kernel with the PID namespace; none of \
         them had been sent {}.",
        signal::name(stop_signal)
    );
    Finding::new(FindingKind::ChildrenNotSignalled, detail)
}

impl<'a> Account<'a> {
    pub(super) fn deadline_missed(
        &self,
        id: &ContainerId,
        request: Option<&Request>,
    ) -> Option<Finding> {
        request?;
        let ended = self.ended_at_the_earliest(id)?;
        let in_force = self.object()?.in_force(ended)?;
        let grace = u64::try_from(in_force.grace_seconds).ok()?;
        let deadline = in_force.by + Duration::from_secs(grace);
        (ended > deadline + DEADLINE_SLACK).then(|| Finding::new(FindingKind::DeadlineMissed, match self.object().and_then(Object::shortened) {
                Some(_) => format!(
                    "It ended {} after its deadline: a later request had shortened the grace to \
                     {grace} s, {} before it ended.",
                    secs(ended.since(deadline)),
                    secs(ended.since(in_force.by)),
                ),
                None => format!(
                    "It ended {} after its deadline, {} after the request with a grace of {grace} \
                     s.",
                    secs(ended.since(deadline)),
                    secs(ended.since(in_force.by)),
                ),
            }))
    }

    /// Where runtime or apiserver contradict the kernel.
    pub(super) fn contradictions(
        &self,
        id: &ContainerId,
        exit: Option<ExitStatus>,
    ) -> Vec<Finding> {
        let Some(processes) = self.processes_of(id) else {
            return Vec::new();
        };
        let container = self.of.runtime.container(id);
        let mut findings = Vec::new();
        findings.extend(exit.into_iter().flat_map(|exit| self.exit_codes(id, exit)));
        findings.extend(container.and_then(|c| oom_killed(c, processes)));
        findings.extend(container.and_then(|c| state(c, processes.ended()?)));
        findings
    }

    fn exit_codes(&self, id: &ContainerId, exit: ExitStatus) -> Vec<Finding> {
        let proven = match exit {
            ExitStatus::Code(code) => format!("exit code {code}"),
            ExitStatus::Signal { signal, .. } => {
                format!("{} (exit code {})", signal::name(signal), exit.runtime_code())
            }
        };
        let mut findings = Vec::new();
        let mut differ = |about, who: String, code: i32| {
            if code != exit.runtime_code() {
                let detail = format!("{who}, the kernel says {proven}.");
                findings.push(Finding::contradiction(about, detail));
            }
        };
        if let Some(told) = self.of.runtime.container(id).and_then(|c| c.exit.as_ref()) {
            let code = told.exit_code;
            let who = format!("The runtime says exit code {code} ({})", told.reason);
            differ(Contradiction::RuntimeExitCode, who, code);
        }
        if let Some(told) = self.api_terminated(id) {
            let phase = self.object().map(|o| o.pod.phase.as_str()).unwrap_or_default();
            let code = told.exit_code;
            let who = format!("The API says exit code {code} and phase {phase}");
            differ(Contradiction::ApiExitCode, who, code);
        }
        findings
    }

    fn api_terminated(&self, id: &ContainerId) -> Option<&'a ApiTerminated> {
        let name = &self.of.runtime.container(id)?.info.name;
        let told = self.object()?.pod.containers.get(name)?;
        told.terminated.iter().find(|end| end.id.as_ref() == Some(id))
    }

    /// The runtime, or the kubelet, did not run all the while.
    pub(super) fn restarts(&self, from: BootTime, to: BootTime) -> Vec<Finding> {
        let runtime = self.runtime_restarted(from, to);
        runtime.into_iter().chain(self.kubelet_restarted(from, to)).collect()
    }

    fn kubelet_restarted(&self, from: BootTime, to: BootTime) -> Option<Finding> {
        let since = |at: BootTime| secs(at.since(from));
        let kubelet = &self.of.keepers.kubelet;
        let ended = kubelet.changes(from, to).find_map(|run| {
            let ended = run.ended.filter(|ended| from <= *ended && *ended <= to)?;
            Some(format!("ended {} after the beginning", since(ended)))
        });
        let began = kubelet.changes(from, to).map(|run| run.began());
        let began = began.filter(|began| from <= *began && *began <= to).last();
        let began = began.map(|at| format!("began anew {} after the beginning", since(at)));
        let parts: Vec<String> = ended.into_iter().chain(began).collect();
        let detail = format!("The kubelet {}.", parts.join(" and "));
        (!parts.is_empty()).then(|| Finding::new(FindingKind::KubeletRestarted, detail))
    }

    fn runtime_restarted(&self, from: BootTime, to: BootTime) -> Option<Finding> {
        let outage = self
            .of
            .runtime
            .outages(from, to)
            .find(|o| o.to.is_some() && o.restarted != Some(false))?;
        let silent = outage.to.map_or(Duration::ZERO, |to| to.since(outage.from));
        let how = match outage.restarted {
            Some(true) => "another process answered afterwards",
            _ => "whether it is the same process is not known",
        };
        Some(Finding::new(
            FindingKind::RuntimeRestarted,
            format!(
                "The container runtime was away for {} during the termination: {how}.",
                secs(silent)
            ),
        ))
    }
}

fn oom_killed(container: &Container, processes: &Processes) -> Option<Finding> {
    let says = container.exit.as_ref().is_some_and(|e| e.reason == "OOMKilled");
    let whole = processes.created.is_some();
    (says && whole && processes.oom.is_empty()).then(|| {
        let detail = "The runtime says OOMKilled, the kernel killed nothing of it for want of \
                      memory.";
        Finding::contradiction(Contradiction::RuntimeOomKilled, detail)
    })
}

/// What the runtime called it while its cgroup said otherwise. `empty`: its last process was gone.
fn state(container: &Container, empty: BootTime) -> Option<Finding> {
    let running_until = match container.exited {
        Some(exited) => exited.after,
        None if container.info.state == CriState::Running => container.last_listed(),
        None => empty,
    };
    if running_until > empty + NOTICE {
        let detail = format!(
            "The runtime called it running for {} after its last process was gone, as the kernel \
             says.",
            secs(running_until.since(empty))
        );
        return Some(Finding::contradiction(Contradiction::RunningWithoutProcesses, detail));
    }
    let exited = container.exited.filter(|_| container.info.state == CriState::Exited)?;
    (exited.by + NOTICE < empty).then(|| {
        let detail = format!(
            "The runtime called it exited {} before its last process was gone, as the kernel says.",
            secs(empty.since(exited.by))
        );
        Finding::contradiction(Contradiction::ExitedWithProcesses, detail)
    })
}
