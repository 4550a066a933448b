//! Bytes of the rings → facts. Pure. By kind and length; what fits neither is counted, never
//! guessed at.

use crate::domain::{
    ids::{CgroupId, Tgid},
    input::{
        Disposition, ExitStatus, KernelEvent, KernelFact, Sender, SignalGenerated, SignalResult,
        TargetState, Task,
    },
    time::BootTime,
};
use coroner_ebpf::{
    record::{self, Header},
    signal_bit,
};

/// A record of an unknown kind or a wrong length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record of kind {kind} with {len} bytes")]
pub struct Undecodable {
    /// Its kind, if it had one.
    pub kind: u32,
    /// Its length.
    pub len: usize,
}

/// Records of the ABI: `repr(C)`, integers only, no padding.
///
/// # Safety
/// Any bytes must be a value of the type.
unsafe trait Record: Copy {}
// SAFETY: see the const assertions in `coroner_ebpf::record`.
unsafe impl Record for Header {}
unsafe impl Record for record::Mkdir {}
unsafe impl Record for record::Moment {}
unsafe impl Record for record::Generate {}
unsafe impl Record for record::Deliver {}
unsafe impl Record for record::Exec {}
unsafe impl Record for record::Exit {}
unsafe impl Record for record::Victim {}

fn read<T: Record>(bytes: &[u8]) -> Option<T> {
    // SAFETY: as many bytes are there as are read, in any alignment, and any are a `T`.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Reads one record. The second value names its kind, for the metrics.
pub fn decode(bytes: &[u8]) -> Result<(KernelEvent, &'static str), Undecodable> {
    let header: Option<Header> = bytes.get(..size_of::<Header>()).and_then(read);
    let wrong = Undecodable { kind: header.map_or(0, |header| header.kind), len: bytes.len() };
    let header = header.ok_or(wrong)?;
    let cgroup = CgroupId(header.cgroup);
    let (fact, kind) = match header.kind {
        record::MKDIR => (read(bytes).map(mkdir), "cgroup_mkdir"),
        record::RMDIR => {
            let moment = read::<record::Moment>(bytes);
            (moment.map(|_| KernelFact::CgroupRemoved { cgroup }), "cgroup_rmdir")
        }
        record::EMPTY => {
            let moment = read::<record::Moment>(bytes);
            (moment.map(|_| KernelFact::CgroupEmpty { cgroup }), "cgroup_empty")
        }
        record::FROZEN => {
            let frozen = |moment: record::Moment| moment.value != 0;
            let fact = read(bytes)
                .map(|moment| KernelFact::CgroupFrozen { cgroup, frozen: frozen(moment) });
            (fact, "cgroup_frozen")
        }
        record::GENERATE => (read(bytes).map(generate), "signal_generate"),
        record::DELIVER => {
            let fact = read(bytes).map(|deliver: record::Deliver| KernelFact::SignalDelivered {
                cgroup,
                task: task(&deliver.task),
                signal: deliver.signal as u8,
                disposition: disposition(deliver.handler),
            });
            (fact, "signal_deliver")
        }
        record::EXEC => {
            let fact = read(bytes).map(|exec: record::Exec| KernelFact::Exec {
                cgroup,
                task: task(&exec.task),
                parent: peer(&exec.parent),
            });
            (fact, "exec")
        }
        record::EXIT => (read(bytes).map(exit), "exit"),
        record::VICTIM => {
            let fact = read(bytes).map(|victim: record::Victim| KernelFact::OomVictim {
                cgroup: (header.cgroup != 0).then_some(cgroup),
                pid: victim.pid as u32,
            });
            (fact, "oom_victim")
        }
        _ => (None, ""),
    };
    let event = KernelEvent { time: BootTime(header.time), fact: fact.ok_or(wrong)? };
    Ok((event, kind))
}

fn mkdir(record: record::Mkdir) -> KernelFact {
    KernelFact::CgroupCreated {
        cgroup: CgroupId(record.header.cgroup),
        parent: (record.parent != 0).then_some(CgroupId(record.parent)),
        name: text(&record.name),
        scanned: false,
    }
}

fn generate(record: record::Generate) -> KernelFact {
    let signal = record.signal;
    // SIGKILL's own bit says nothing of what was pending before it.
    let own = if signal == 9 { signal_bit(9) } else { 0 };
    KernelFact::SignalGenerated(SignalGenerated {
        cgroup: CgroupId(record.header.cgroup),
        target: task(&record.target),
        signal,
        code: record.code,
        group: record.group != 0,
        result: match record.result {
            0 => SignalResult::Delivered,
            1 => SignalResult::Ignored,
            2 => SignalResult::AlreadyPending,
            3 | 4 => SignalResult::Overflow,
            _ => SignalResult::Unknown,
        },
        sender: peer(&record.sender),
        state: (record.state_known != 0).then_some(TargetState {
            unkillable: record.target.signal_flags & record::SIGNAL_UNKILLABLE != 0,
            group_exit: record.target.signal_flags & record::SIGNAL_GROUP_EXIT != 0,
            disposition: disposition(record.handler),
            blocked: record.blocked != 0,
            pending: record.pending & !own,
        }),
    })
}

fn exit(record: record::Exit) -> KernelFact {
    // A group that exits as one keeps its status in `signal`; a process that just leaves, its only
    // thread's or, where the leader went first, by exit_group: see KERNEL facts in `docs`.
    let as_one = record.task.signal_flags & record::SIGNAL_GROUP_EXIT != 0;
    let raw = if as_one { record.group_exit_code } else { record.leader_exit_code };
    KernelFact::Exit {
        cgroup: CgroupId(record.header.cgroup),
        task: task(&record.task),
        status: ExitStatus::from_wait(raw),
        parent: Some(peer(&record.parent)),
    }
}

fn task(task: &record::Task) -> Task {
    Task {
        tgid: Tgid(task.tgid),
        tid: task.tid,
        ns_pid: (task.ns_pid != 0).then_some(task.ns_pid),
        started: (task.started != 0).then_some(task.started),
        comm: text(&task.comm),
    }
}

fn peer(peer: &record::Peer) -> Sender {
    Sender {
        tgid: Tgid(peer.tgid),
        comm: text(&peer.comm),
        cgroup: (peer.cgroup != 0).then_some(CgroupId(peer.cgroup)),
        in_container: (peer.cgroup != 0).then_some(peer.in_container != 0),
    }
}

fn disposition(handler: u64) -> Disposition {
    match handler {
        0 => Disposition::Default,
        1 => Disposition::Ignore,
        _ => Disposition::Handler,
    }
}

/// Up to the NUL; a name may hold any bytes, so what is not UTF-8 is replaced.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
