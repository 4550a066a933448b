//! Bytes of the rings → facts. Pure. By kind and length; what fits neither is counted, never
//! guessed at.

use coroner_core::{
    ids::{CgroupId, Tgid},
    input::{
        Disposition, ExitStatus, KernelEvent, KernelFact, KilledProcess, NamespaceKilled,
        ProcessRef, SentTo, SignalGenerated, SignalResult, TargetState, Task,
    },
    time::BootTime,
};
use coroner_ebpf::{
    record::{self, Header},
    signal_bit,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record of kind {kind} with {len} bytes")]
pub struct Undecodable {
    pub kind: u32,
    pub len: usize,
}

/// Records of the ABI: `repr(C)`, integers only, no padding.
///
/// # Safety
/// Any bytes must be a value of the type.
unsafe trait RawRecord: Copy {}
// SAFETY: see the const assertions in `coroner_ebpf::record`.
unsafe impl RawRecord for Header {}
unsafe impl RawRecord for record::Mkdir {}
unsafe impl RawRecord for record::Moment {}
unsafe impl RawRecord for record::Generate {}
unsafe impl RawRecord for record::Deliver {}
unsafe impl RawRecord for record::Exec {}
unsafe impl RawRecord for record::Exit {}
unsafe impl RawRecord for record::Victim {}
unsafe impl RawRecord for record::Zapped {}

fn read<T: RawRecord>(bytes: &[u8]) -> Option<T> {
    // SAFETY: as many bytes are there as are read, in any alignment, and any are a `T`.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Reads one record.
pub fn decode(bytes: &[u8]) -> Result<KernelEvent, Undecodable> {
    let header: Option<Header> = bytes.get(..size_of::<Header>()).and_then(read);
    let wrong = Undecodable { kind: header.map_or(0, |header| header.kind), len: bytes.len() };
    let header = header.ok_or(wrong)?;
    let cgroup = CgroupId(header.cgroup);
    let fact = match header.kind {
        record::MKDIR => read(bytes).map(mkdir),
        record::RMDIR => {
            let moment = read::<record::Moment>(bytes);
            moment.map(|_| KernelFact::CgroupRemoved { cgroup })
        }
        record::EMPTY => {
            let moment = read::<record::Moment>(bytes);
            moment.map(|_| KernelFact::CgroupEmpty { cgroup })
        }
        record::FROZEN => {
            let frozen = |moment: record::Moment| moment.value != 0;
            read(bytes).map(|moment| KernelFact::CgroupFrozen { cgroup, frozen: frozen(moment) })
        }
        record::GENERATE => read(bytes).map(generate),
        record::DELIVER => {
            read(bytes).map(|deliver: record::Deliver| KernelFact::SignalDelivered {
                cgroup,
                task: task(&deliver.task),
                signal: deliver.signal as u8,
                disposition: disposition(deliver.handler),
            })
        }
        record::EXEC => read(bytes).map(|exec: record::Exec| KernelFact::Exec {
            cgroup,
            task: task(&exec.task),
            parent: peer(&exec.parent),
        }),
        record::EXIT => read(bytes).map(exit),
        record::VICTIM => read(bytes).map(|victim: record::Victim| KernelFact::OomVictim {
            cgroup: (header.cgroup != 0).then_some(cgroup),
            pid: victim.pid as u32,
        }),
        record::SPENT => read(bytes).map(|moment: record::Moment| KernelFact::BudgetSpent {
            cgroup,
            until: BootTime(moment.value),
        }),
        record::ZAPPED => read(bytes).map(zapped),
        _ => None,
    };
    Ok(KernelEvent { time: BootTime(header.time), fact: fact.ok_or(wrong)? })
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
    // A group that exits as one keeps its status in `signal`; else the leader's own status is the
    // group's, be it the last thread or the first to go (`wait_task_zombie` in kernel/exit.c).
    let as_one = record.task.signal_flags & record::SIGNAL_GROUP_EXIT != 0;
    let raw = if as_one { record.group_exit_code } else { record.leader_exit_code };
    KernelFact::Exit {
        cgroup: CgroupId(record.header.cgroup),
        task: task(&record.task),
        status: ExitStatus::from_wait(raw),
        parent: Some(peer(&record.parent)),
    }
}

fn zapped(record: record::Zapped) -> KernelFact {
    let (silent, others) = record.examples.split_at(record::EXAMPLES / 2);
    let own = record.killed.saturating_sub(record.entered);
    let taken = |examples: &[record::Example], count: u32| {
        examples.iter().take(count as usize).map(example).collect::<Vec<_>>()
    };
    let examples = [taken(silent, record.silent), taken(others, own.saturating_sub(record.silent))];
    let sent = (1..).zip(record.sent).filter(|(_, processes)| *processes > 0);
    KernelFact::NamespaceKilled(NamespaceKilled {
        cgroup: CgroupId(record.header.cgroup),
        init: Tgid(record.init),
        killed: record.killed,
        entered: record.entered,
        nested: record.nested,
        uncertain: record.uncertain != 0,
        sent: sent.map(|(signal, processes)| SentTo { signal, processes }).collect(),
        examples: examples.concat(),
    })
}

fn example(example: &record::Example) -> KilledProcess {
    KilledProcess { comm: text(&example.comm), sent: example.sent }
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

fn peer(peer: &record::Peer) -> ProcessRef {
    ProcessRef {
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

#[cfg(test)]
mod tests {
    use super::*;
    use record::{Exit, Generate, Moment};

    fn bytes<T: RawRecord>(record: &T) -> Vec<u8> {
        // SAFETY: a `RawRecord` is integers without padding.
        unsafe { std::slice::from_raw_parts((&raw const *record).cast(), size_of::<T>()) }.to_vec()
    }

    fn header(kind: u32) -> Header {
        Header { kind, reserved: 0, time: 7, cgroup: 42 }
    }

    fn fact<T: RawRecord>(record: &T) -> KernelFact {
        let event = decode(&bytes(record)).unwrap();
        assert_eq!(event.time, BootTime(7));
        event.fact
    }

    #[test]
    fn sigkills_own_bit_is_not_what_was_pending_before_it() {
        let kill = Generate {
            header: header(record::GENERATE),
            signal: 9,
            pending: signal_bit(9) | signal_bit(15),
            handler: 0x5000,
            state_known: 1,
            ..Generate::default()
        };
        let KernelFact::SignalGenerated(record) = fact(&kill) else { panic!("another fact") };
        assert_eq!(record.state.unwrap().pending, signal_bit(15));
        assert_eq!(record.state.unwrap().disposition, Disposition::Handler);
    }

    #[test]
    fn the_exit_status_is_the_groups_if_it_exits_as_one_and_else_its_leaders() {
        let status = |flags, group, leader| {
            let exit = Exit {
                header: header(record::EXIT),
                task: record::Task { signal_flags: flags, ..record::Task::default() },
                group_exit_code: group,
                leader_exit_code: leader,
                ..Exit::default()
            };
            match fact(&exit) {
                KernelFact::Exit { status, .. } => status,
                other => panic!("{other:?}"),
            }
        };
        let signal = |signal, core| ExitStatus::Signal { signal, core };
        assert_eq!(status(record::SIGNAL_GROUP_EXIT, 0x700, 0), ExitStatus::Code(7));
        assert_eq!(status(record::SIGNAL_GROUP_EXIT, 9, 0), signal(9, false));
        assert_eq!(status(record::SIGNAL_GROUP_EXIT, 0x8b, 0), signal(11, true));
        assert_eq!(status(0, 0, 0x300), ExitStatus::Code(3), "Linux 5.10, one thread");
    }

    #[test]
    fn what_fits_no_kind_or_length_is_refused() {
        let good = bytes(&Moment { header: header(record::EMPTY), value: 0 });
        for len in 0..good.len() {
            assert!(decode(&good[..len]).is_err(), "cut to {len}");
        }
        let long = [&good[..], &[0]].concat();
        assert_eq!(decode(&long).unwrap_err(), Undecodable { kind: record::EMPTY, len: 33 });
        for kind in [0, record::ZAPPED + 1, u32::MAX] {
            let unknown = bytes(&Moment { header: header(kind), value: 0 });
            assert_eq!(decode(&unknown).unwrap_err(), Undecodable { kind, len: 32 });
        }
    }
}
