//! Processes: new programs from outside, and ends.

use super::{
    backup, debug_log,
    emit::{To, copy, header, now},
    filter, namespace,
    read::{Address, current_cgroup, identify, is_foreign, layout, tgid},
    watch::{Other, WatchedCgroup},
};
use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use coroner_ebpf::{
    backup::Hook,
    record::{EXEC, EXIT, Exec, Exit},
};

/// `sched_process_exec(struct task_struct *p, pid_t old_pid, struct linux_binprm *bprm)`: only
/// those of a process whose parent is outside (the container's main process, preStop hooks,
/// probes, `kubectl exec`). A container's own children exec as they please.
#[raw_tracepoint]
pub fn sched_process_exec(ctx: RawTracePointContext) -> i32 {
    backup::seen_in_thread(Hook::Exec);
    exec(ctx);
    0
}

/// See [`backup`].
#[raw_tracepoint]
pub fn sched_process_exec_backup(ctx: RawTracePointContext) -> i32 {
    if backup::was_skipped(Hook::Exec, backup::thread()) {
        exec(ctx);
    }
    0
}

#[inline(always)]
fn exec(ctx: RawTracePointContext) {
    let cgroup = current_cgroup();
    if filter::may_hold(cgroup) {
        executed(ctx, cgroup);
    }
}

#[inline(never)]
fn executed(ctx: RawTracePointContext, cgroup: u64) {
    let Some(watched) = WatchedCgroup::look_up(cgroup) else { return };
    let task = Address(ctx.arg(0));
    let parent = Other::parent(task);
    if parent.owner != 0 {
        return;
    }
    let owner = watched.owner(cgroup);
    let time = now();
    let task = identify(task, task.pointer(layout!(task_signal)));
    if is_foreign(task.tgid) {
        return;
    }
    // The first one, unless a PID 1 comes after it: a runtime may execute itself in here before.
    if owner.owner_id() != 0 && (owner.main() == 0 || task.ns_pid == 1) {
        owner.set_main(task.tgid);
        if task.ns_pid == 1 {
            owner.set_pid_one();
        }
    }
    let main = owner.main() == task.tgid;
    let to = if main {
        To::Deciding
    } else if owner.spend(time, cgroup) {
        To::Detail
    } else {
        return;
    };
    debug_log!(&ctx, "exec of {} in cgroup {}", task.tgid, cgroup);
    let header = header(EXEC, time, cgroup);
    copy(to, &Exec { header, task, parent: parent.peer(), main: u64::from(main) });
}

/// `sched_process_exit(struct task_struct *p[, bool group_dead])`: for each thread; the last one of
/// its group counts.
#[raw_tracepoint]
pub fn sched_process_exit(ctx: RawTracePointContext) -> i32 {
    backup::seen_in_thread(Hook::Exit);
    exit(ctx);
    0
}

/// See [`backup`].
#[raw_tracepoint]
pub fn sched_process_exit_backup(ctx: RawTracePointContext) -> i32 {
    if backup::was_skipped(Hook::Exit, backup::thread()) {
        exit(ctx);
    }
    0
}

#[inline(always)]
fn exit(ctx: RawTracePointContext) {
    if layout!(exit_has_group_dead) != 0 && ctx.arg::<u8>(1) == 0 {
        return;
    }
    let cgroup = current_cgroup();
    if filter::may_hold(cgroup) {
        exited(ctx, cgroup);
    }
}

#[inline(never)]
fn exited(ctx: RawTracePointContext, cgroup: u64) {
    let Some(watched) = WatchedCgroup::look_up(cgroup) else { return };
    let task = Address(ctx.arg(0));
    if layout!(exit_has_group_dead) == 0 {
        // Two threads that exit together may both see 0 here: the reader counts a process once.
        let signal = task.pointer(layout!(task_signal));
        if signal.read::<u32>(layout!(signal_live)) != 0 {
            return;
        }
    }
    let owner = watched.owner(cgroup);
    let tgid = tgid(task);
    if is_foreign(tgid) {
        return;
    }
    namespace::forget(owner, tgid);
    let parent = Other::parent(task);
    let injected = parent.owner == 0;
    // Those that end with their PID 1 decide nothing, and may be any number.
    if !injected && owner.main() != tgid && (owner.is_pid_one() || !owner.is_dying()) {
        return;
    }

    let signal = task.pointer(layout!(task_signal));
    let who = identify(task, signal);
    // A nested PID namespace has an init too: the container's own has its parent outside.
    let main = owner.main() == who.tgid || (injected && who.ns_pid == 1);
    let time = now();
    let to = if owner.main() == who.tgid && !owner.is_pid_one() && who.is_helper() {
        // Executed itself in here, before the container's program. Or it is that program, and ends.
        owner.set_main(0);
        To::DecidingNow
    } else if main {
        owner.set_dying();
        if owner.is_pid_one() && who.ns_pid == 1 {
            namespace::ends(owner, tgid, time, cgroup);
        }
        To::DecidingNow
    } else if owner.spend(time, cgroup) {
        To::Detail
    } else {
        return;
    };
    let leader = task.pointer(layout!(task_group_leader));
    debug_log!(&ctx, "exit of {} in cgroup {}", who.tgid, cgroup);
    let exit = Exit {
        header: header(EXIT, time, cgroup),
        task: who,
        parent: parent.peer(),
        group_exit_code: signal.read(layout!(signal_group_exit_code)),
        leader_exit_code: leader.read(layout!(task_exit_code)),
        main: u64::from(main),
    };
    copy(to, &exit);
}
