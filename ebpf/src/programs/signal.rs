//! Signals: who sent what to whom, and what the target did with it.

use super::{
    debug_log,
    emit::{To, emit, header, now},
    filter, namespace,
    read::{Address, cgroup_of, current, current_cgroup, identify, is_foreign, layout, tgid},
    traffic,
    watch::{Other, WatchedCgroup, is_chatter},
};
use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use coroner_ebpf::{
    record::{DELIVER, Deliver, GENERATE, Generate},
    signal_bit,
};

const SIGKILL: u32 = 9;
const SIGTERM: u32 = 15;
/// `SEND_SIG_NOINFO` and `SEND_SIG_PRIV` are passed for a pointer (`include/linux/sched/signal.h`).
const SEND_SIG_NOINFO: u64 = 0;
const SEND_SIG_PRIV: u64 = 1;
const SI_USER: i32 = 0;
const SI_KERNEL: i32 = 0x80;

/// `signal_generate(int sig, struct kernel_siginfo *info, struct task_struct *task, int group,
/// int result)`: at the end of `__send_signal_locked`, in the sender's context.
#[raw_tracepoint]
pub fn signal_generate(ctx: RawTracePointContext) -> i32 {
    let signal: u32 = ctx.arg(0);
    if is_chatter(signal) {
        return 0;
    }
    let cgroup = cgroup_of(Address(ctx.arg(2)));
    if filter::may_hold(cgroup) {
        generated(ctx, cgroup);
    }
    0
}

#[inline(never)]
fn generated(ctx: RawTracePointContext, cgroup: u64) {
    let Some(watched) = WatchedCgroup::look_up(cgroup) else { return };
    let owner = watched.owner(cgroup);
    let signal: u32 = ctx.arg(0);
    if !owner.wants(signal) {
        return;
    }

    let task = Address(ctx.arg(2));
    let sender = Other::new(current(), current_cgroup());
    let inside = sender.owner != 0 && sender.owner == owner.owner_id();
    let (info, result): (u64, u32) = (ctx.arg(1), ctx.arg(4));
    let tgid = tgid(task);
    if is_foreign(tgid) {
        return;
    }
    let code = || match info {
        SEND_SIG_NOINFO => SI_USER,
        SEND_SIG_PRIV => SI_KERNEL,
        info => Address(info).read(layout!(siginfo_code)),
    };
    if owner.is_pid_one() && owner.main() != tgid {
        let shared = task.pointer(layout!(task_signal));
        if signal != SIGKILL {
            namespace::note(owner, task, shared, tgid, signal);
        } else if inside && info == SEND_SIG_PRIV {
            let killed = namespace::Killed { task, shared, by: sender.tgid(), took: result == 0 };
            if namespace::count(owner, tgid, killed) {
                return;
            }
        }
        // What a container sends to its own children decides nothing. The kernel may act in the name
        // of any of them: that may be the OOM killer.
        if inside && code() != SI_KERNEL {
            return;
        }
    }
    let time = now();
    let to = if inside {
        // Its own affair: any number of it.
        if !owner.spend(time, cgroup) {
            return;
        }
        To::Detail
    } else if signal == SIGKILL || signal == SIGTERM || owner.stopped_by(signal) {
        // A probe that takes too long is killed from outside too, and the container lives on.
        if owner.may_be_main(tgid) {
            owner.set_dying();
            traffic::stopped(task, time);
        }
        To::DecidingSoon
    } else {
        if !owner.spend(time, cgroup) {
            return;
        }
        To::Detail
    };

    let group: u32 = ctx.arg(3);
    let shared = task.pointer(layout!(task_signal));
    let sighand = task.pointer(layout!(task_sighand));
    let blocked: u64 = task.read(layout!(task_blocked));
    debug_log!(&ctx, "signal {} for cgroup {}, result {}", signal, cgroup, result);
    emit(to, time, || Generate {
        header: header(GENERATE, time, cgroup),
        target: identify(task, shared),
        sender: sender.peer(),
        code: code(),
        signal: signal as u8,
        result: result as u8,
        group: (group != 0) as u8,
        blocked: (blocked & signal_bit(signal) != 0) as u8,
        pending: shared.read::<u64>(layout!(signal_shared_pending))
            | task.read::<u64>(layout!(task_pending)),
        handler: sighand
            .at(layout!(sighand_action))
            .at((signal.wrapping_sub(1) & 63) * layout!(sigaction_size))
            .read(layout!(sigaction_handler)),
        state_known: (sighand.0 != 0 && shared.0 != 0) as u64,
    });
}

/// `signal_deliver(int sig, struct kernel_siginfo *info, struct k_sigaction *ka)`: in
/// `get_signal`, `current` is the target.
#[raw_tracepoint]
pub fn signal_deliver(ctx: RawTracePointContext) -> i32 {
    let signal: u32 = ctx.arg(0);
    // Every thread of a group that exits or execs takes a 9: it proves nothing.
    if signal == SIGKILL || is_chatter(signal) {
        return 0;
    }
    let cgroup = current_cgroup();
    if filter::may_hold(cgroup) {
        delivered(ctx, cgroup);
    }
    0
}

#[inline(never)]
fn delivered(ctx: RawTracePointContext, cgroup: u64) {
    let Some(watched) = WatchedCgroup::look_up(cgroup) else { return };
    let owner = watched.owner(cgroup);
    let signal: u32 = ctx.arg(0);
    if !owner.wants(signal) {
        return;
    }
    let task = current();
    // That one of the others takes a signal decides nothing.
    let number = tgid(task);
    if is_foreign(number) || owner.is_pid_one() && owner.main() != number {
        return;
    }
    let time = now();
    if !owner.spend(time, cgroup) {
        return;
    }
    let action = Address(ctx.arg(2));
    emit(To::Detail, time, || Deliver {
        header: header(DELIVER, time, cgroup),
        task: identify(task, task.pointer(layout!(task_signal))),
        handler: action.read(layout!(sigaction_handler)),
        signal: u64::from(signal),
    });
}
