//! Findings: contradictions between the sources, missed deadlines, restarts.

use super::PodView;
use crate::{
    api::DeletionRequest,
    cri::Container,
    process::{Children, ContainerProcesses},
    signal,
};
use crate::{ids::*, input::*, report::*};
use std::time::Duration;

/// The interval of lists while a pod terminates, plus the runtime's own delay.
const CRI_LAG: Duration = Duration::from_secs(5);

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

/// The most that the kubelet and the runtime were seen to add to a grace period on a real node.
const DEADLINE_SLACK: Duration = Duration::from_secs(6);

impl<'a> PodView<'a> {
    pub(super) fn deadline_missed(
        &self,
        id: &ContainerId,
        request: Option<&DeletionRequest>,
    ) -> Option<Finding> {
        request?;
        let ended = self.end(id)?.earliest;
        let in_force = self.object()?.in_force(ended)?;
        let grace = in_force.grace_seconds;
        let deadline = in_force.made.latest + seconds(grace);
        let (late, after) = (secs(ended.since(deadline)), secs(ended.since(in_force.made.latest)));
        let detail = match self.object()?.shortened() {
            Some(_) => format!(
                "It ended {late} after its deadline: a later request had shortened the grace period to {grace} s, \
                 {after} before it ended."
            ),
            None => format!(
                "It ended {late} after its deadline, {after} after the request with a grace period of {grace} s."
            ),
        };
        (ended > deadline + DEADLINE_SLACK)
            .then(|| Finding::new(FindingKind::DeadlineMissed, detail))
    }

    /// Contradictions of the runtime or the apiserver with the kernel.
    pub(super) fn contradictions(
        &self,
        id: &ContainerId,
        exit: Option<ExitStatus>,
    ) -> Vec<Finding> {
        let mut findings = exit.map_or_else(Vec::new, |exit| self.exit_codes(id, exit));
        if let Some((container, processes)) = self.container(id).zip(self.processes_of(id)) {
            findings.extend(oom_killed(container, processes));
            findings.extend(processes.ended().and_then(|ended| self.state(container, ended)));
        }
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
                let detail = format!("{who}, the kernel recorded {proven}.");
                findings.push(Finding::contradiction(about, detail));
            }
        };
        if let Some(reported) = self.container(id).and_then(|c| c.status.exit.as_ref()) {
            let code = reported.exit_code;
            let who = format!("The runtime reports exit code {code} ({})", reported.reason);
            differ(Contradiction::RuntimeExitCode, who, code);
        }
        let spec = self.container(id).and_then(|c| self.spec(&c.info.name));
        let mut ends = spec.into_iter().flat_map(|spec| &spec.terminated);
        if let Some(reported) = ends.find(|end| end.id.as_ref() == Some(id)) {
            let phase = self.object().map(|o| o.pod.phase.as_str()).unwrap_or_default();
            let code = reported.exit_code;
            let who = format!("The API reports exit code {code} and phase {phase}");
            differ(Contradiction::ApiExitCode, who, code);
        }
        findings
    }

    /// The runtime's state contradicts the cgroup. `empty`: when the last process was gone.
    fn state(&self, container: &Container, empty: BootTime) -> Option<Finding> {
        let running_until = match container.ended {
            Some(exited) => exited.earliest,
            None if container.info.state == ContainerState::Running => container.asked,
            None => empty,
        };
        // A runtime that was away finds out once it is back.
        let outages = self.stores.cri.connection.gaps.between(empty, running_until);
        let soon = outages.filter(|outage| outage.from <= empty + CRI_LAG);
        let back = soon.filter_map(|outage| outage.to).max().unwrap_or(empty);
        if running_until > empty.max(back) + CRI_LAG {
            let detail = format!(
                "The runtime listed it as running for {} after its last process had exited, according to the \
                 kernel.",
                secs(running_until.since(empty))
            );
            return Some(Finding::contradiction(Contradiction::RunningWithoutProcesses, detail));
        }
        let exited = container.ended.filter(|_| container.info.state == ContainerState::Exited)?;
        (exited.latest + CRI_LAG < empty).then(|| {
            let detail = format!(
                "The runtime listed it as exited {} before its last process exited, according to the kernel.",
                secs(empty.since(exited.latest))
            );
            Finding::contradiction(Contradiction::ExitedWithProcesses, detail)
        })
    }

    /// The kubelet was restarted between `from` and `to`.
    pub(super) fn kubelet_restarted(&self, from: BootTime, to: BootTime) -> Option<Finding> {
        let since = |at: BootTime| secs(at.since(from));
        let kubelet = &self.stores.node.kubelet;
        let ended = kubelet.changes(from, to).find_map(|run| {
            let ended = run.ended.filter(|ended| from <= *ended && *ended <= to)?;
            Some(format!("ended {} after the beginning", since(ended)))
        });
        let began = kubelet.changes(from, to).map(|run| run.began());
        let began = began.filter(|began| from <= *began && *began <= to).last();
        let began = began.map(|at| format!("restarted {} after the beginning", since(at)));
        let parts: Vec<String> = ended.into_iter().chain(began).collect();
        let detail = format!("The kubelet {}.", parts.join(" and "));
        (!parts.is_empty()).then(|| Finding::new(FindingKind::KubeletRestarted, detail))
    }

    /// The runtime was, or may have been.
    pub(super) fn runtime_restarted(&self, from: BootTime, to: BootTime) -> Option<Finding> {
        let mut outages = self.stores.cri.connection.gaps.between(from, to);
        let outage = outages.find(|o| o.to.is_some() && o.reason.restarted != Some(false))?;
        let silent = secs(outage.to.map_or(Duration::ZERO, |to| to.since(outage.from)));
        let how = match outage.reason.restarted {
            Some(true) => "another process answered afterwards",
            _ => "whether it is the same process is not known",
        };
        let detail = format!(
            "The container runtime did not answer for {silent} during the termination: {how}."
        );
        Some(Finding::new(FindingKind::RuntimeRestarted, detail))
    }
}

fn oom_killed(container: &Container, processes: &ContainerProcesses) -> Option<Finding> {
    let says = container.status.exit.as_ref().is_some_and(|e| e.reason == "OOMKilled");
    let whole = processes.created.is_some();
    (says && whole && processes.oom.is_empty()).then(|| {
        let detail =
            "The runtime reports OOMKilled, but the OOM killer chose no process of the container.";
        Finding::contradiction(Contradiction::RuntimeOomKilled, detail)
    })
}
