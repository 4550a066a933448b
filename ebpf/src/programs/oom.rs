//! The OOM killer's choice.

use super::{
    emit::{To, emit, header, now},
    read::{Address, cgroup_of, layout, tgid, tid},
    watch::WatchedCgroup,
};
use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use coroner_ebpf::record::{VICTIM, Victim};

/// `mark_victim(struct task_struct *task, uid_t uid)`, before that `mark_victim(int pid)`. A pid
/// cannot be filtered: it goes out with cgroup 0, for the reader to join to the SIGKILL before it.
#[raw_tracepoint]
pub fn mark_victim(ctx: RawTracePointContext) -> i32 {
    let (cgroup, pid) = if layout!(mark_victim_is_task) != 0 {
        let task = Address(ctx.arg(0));
        let cgroup = cgroup_of(task);
        let Some(watched) = WatchedCgroup::find(cgroup) else { return 0 };
        let owner = watched.owner(cgroup);
        if owner.may_be_main(tgid(task)) {
            owner.set_dying();
        }
        (cgroup, tid(task))
    } else {
        (0, ctx.arg::<u32>(0))
    };
    let time = now();
    emit(To::DecidingNow, time, || Victim {
        header: header(VICTIM, time, cgroup),
        pid: u64::from(pid),
    });
    0
}
