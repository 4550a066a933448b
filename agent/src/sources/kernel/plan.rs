//! Facts → which programs are loaded and which hooks are given up, and what that costs. Pure.

use super::btf::Btf;
use coroner_ebpf::backup;

/// A hook: a program of the object and the tracepoint that it is attached to. Both bear the same
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    pub name: &'static str,
    arguments: usize,
    /// It has a second program, [`Hook::second`], for what comes in between on the same CPU: its tracepoint may be
    /// preempted (see [`plan`]), or interrupted by itself.
    pub(super) backup: Option<backup::Hook>,
    /// What coroner cannot tell without it.
    pub loss: &'static str,
}

const fn hook(name: &'static str, arguments: usize, loss: &'static str) -> Hook {
    Hook { name, arguments, backup: None, loss }
}

impl Hook {
    const fn with(self, backup: backup::Hook) -> Self {
        Self { backup: Some(backup), ..self }
    }

    /// Name of the second program, if it has one.
    pub(super) fn second(&self) -> Option<String> {
        self.backup.map(|_| format!("{}_backup", self.name))
    }

    /// Names of its programs, in the order in which they are attached and run.
    pub(super) fn programs(&self) -> Vec<String> {
        [self.name.to_owned()].into_iter().chain(self.second()).collect()
    }

    /// The same, without the first of two: see [`KernelOptions::only_second`](super::KernelOptions::only_second).
    pub(super) fn attached(&self, only_second: bool) -> Vec<String> {
        let mut programs = self.programs();
        if only_second && programs.len() > 1 {
            programs.remove(0);
        }
        programs
    }
}

/// All hooks, in the order in which they are attached: what makes cgroups known comes first.
pub const HOOKS: [Hook; 9] = [
    hook("cgroup_mkdir", 1, "new containers are not detected"),
    hook("cgroup_rmdir", 1, "removed cgroups are not detected"),
    hook("cgroup_notify_populated", 3, "the time of death is unknown"),
    hook("cgroup_notify_frozen", 3, "frozen containers look as if they block signals"),
    hook("sched_process_exit", 1, "the kernel's exit codes are unknown").with(backup::Hook::Exit),
    hook("sched_process_exec", 1, "preStop hooks and probes are not detected")
        .with(backup::Hook::Exec),
    hook("signal_deliver", 3, "signal handler runs are not detected"),
    hook("signal_generate", 5, "senders of signals are unknown"),
    hook("mark_victim", 1, "OOM kills look like other SIGKILLs"),
];

/// Hooks that count the connections of terminating pods, attached only while there are such. Nothing else needs
/// them.
pub const TRAFFIC_HOOKS: [Hook; 2] = [
    hook("inet_sock_set_state", 3, "connections of terminating pods are not counted")
        .with(backup::Hook::Transition),
    // With the reason for the reset (Linux 6.10) came that it is called where there is no socket.
    hook("tcp_send_reset", 3, "refused connections are not visible").with(backup::Hook::Reset),
];

/// What is to become of one hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    pub hook: Hook,
    /// Attach it, or why not.
    pub verdict: Result<(), String>,
}

/// Decides about each hook. `is_preemptible`: the kernel may preempt the programs; where it does not, none of these has a
/// second one.
pub fn plan(btf: &Btf<'_>, is_preemptible: bool) -> Vec<Planned> {
    let planned = |hook: &Hook| {
        let backup = hook.backup.filter(|_| is_preemptible);
        Planned { hook: Hook { backup, ..*hook }, verdict: check(hook, btf) }
    };
    HOOKS.iter().map(planned).collect()
}

/// The same about the hooks that count connections. `offsets`: all that these need was found, or what was not.
pub fn plan_traffic(btf: &Btf<'_>, offsets: &Result<(), String>) -> Vec<Planned> {
    let verdict = |hook: &Hook| match offsets {
        Ok(()) => check(hook, btf),
        Err(error) => Err(format!("{error}: {}", hook.loss)),
    };
    TRAFFIC_HOOKS.iter().map(|hook| Planned { hook: *hook, verdict: verdict(hook) }).collect()
}

fn check(hook: &Hook, btf: &Btf<'_>) -> Result<(), String> {
    let Hook { name, arguments, loss, .. } = hook;
    match btf.tracepoint(name) {
        None => Err(format!("this kernel has no tracepoint {name}: {loss}")),
        // The kernel would refuse the attachment of a program that reads beyond them.
        Some(with) if with.len() < *arguments => Err(format!(
            "this kernel's tracepoint {name} has {} arguments instead of {arguments}: {loss}",
            with.len()
        )),
        Some(_) => Ok(()),
    }
}
