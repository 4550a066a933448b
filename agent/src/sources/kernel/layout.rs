//! BTF → [`Layout`]: what the programs are told before they are loaded. Pure.

use super::btf::{Btf, Parameter};
use coroner_ebpf::{Layout, TrafficLayout, signal_bit};

/// Signals that end nobody and come by the thousand: URG (Go's runtime preempts with it), CHLD,
/// CONT, ALRM, VTALRM, PROF, and the two that the C library keeps for itself.
const CHATTER: [u32; 8] = [23, 17, 18, 14, 26, 27, 32, 33];

/// Signals that are reported for every container: HUP, INT, QUIT, ILL, TRAP, ABRT, BUS, FPE, KILL,
/// SEGV, TERM, XCPU, XFSZ, SYS.
const REPORTED: [u32; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 24, 25, 31];

/// Detail records of one container in about a second.
const BUDGET: u32 = 256;

/// Resolves all offsets, or names all that are missing.
///
/// `own_pid_namespace`: the inode of the agent's PID namespace; 0: it is the kernel's first one. `is_preemptible`: see
/// [`plan`](super::plan::plan).
pub fn resolve(
    btf: &Btf<'_>,
    own_pid_namespace: u32,
    is_preemptible: bool,
) -> Result<Layout, String> {
    let mut missing = Vec::new();
    let mut known = |what: String, value: Option<u32>| {
        value.unwrap_or_else(|| {
            missing.push(what);
            0
        })
    };
    let mut at = |of: &str, path: &str| known(format!("{of}.{path}"), btf.offset(of, path));

    let mut layout = Layout {
        chatter_mask: mask(&CHATTER),
        signal_mask: mask(&REPORTED),
        task_cgroups: at("task_struct", "cgroups"),
        task_tgid: at("task_struct", "tgid"),
        task_pid: at("task_struct", "pid"),
        task_comm: at("task_struct", "comm"),
        task_real_parent: at("task_struct", "real_parent"),
        task_group_leader: at("task_struct", "group_leader"),
        task_start_boottime: at("task_struct", "start_boottime"),
        task_signal: at("task_struct", "signal"),
        task_sighand: at("task_struct", "sighand"),
        task_blocked: at("task_struct", "blocked"),
        task_pending: at("task_struct", "pending.signal"),
        task_exit_code: at("task_struct", "exit_code"),
        signal_flags: at("signal_struct", "flags"),
        signal_live: at("signal_struct", "live"),
        signal_group_exit_code: at("signal_struct", "group_exit_code"),
        signal_shared_pending: at("signal_struct", "shared_pending.signal"),
        // PIDTYPE_TGID is 1 (include/linux/pid_types.h).
        signal_pids_tgid: at("signal_struct", "pids[1]"),
        sighand_action: at("sighand_struct", "action"),
        sigaction_handler: at("k_sigaction", "sa.sa_handler"),
        pid_level: at("pid", "level"),
        pid_numbers: at("pid", "numbers"),
        upid_nr: at("upid", "nr"),
        upid_ns: at("upid", "ns"),
        pid_namespace_inum: at("pid_namespace", "ns.inum"),
        task_thread_pid: at("task_struct", "thread_pid"),
        own_pid_namespace,
        css_set_dfl_cgrp: at("css_set", "dfl_cgrp"),
        css_parent: at("cgroup_subsys_state", "parent"),
        cgroup_self: at("cgroup", "self"),
        cgroup_kn: at("cgroup", "kn"),
        cgroup_root: at("cgroup", "root"),
        cgroup_level: at("cgroup", "level"),
        root_hierarchy_id: at("cgroup_root", "hierarchy_id"),
        kn_id: at("kernfs_node", "id"),
        kn_name: at("kernfs_node", "name"),
        siginfo_code: at("kernel_siginfo", "si_code"),
        sigaction_size: 0,
        upid_size: 0,
        exit_has_group_dead: 0,
        is_preemptible: u16::from(is_preemptible),
        mark_victim_is_task: 0,
        budget: BUDGET,
        root_needle: u64::from_le_bytes(*b"kubepods"),
        skip_needle: u64::from_le_bytes(*b"-conmon-"),
        traffic: TrafficLayout::default(),
    };
    layout.sigaction_size = known("size of k_sigaction".into(), btf.size("k_sigaction"));
    layout.upid_size = known("size of upid".into(), btf.size("upid"));
    layout.exit_has_group_dead =
        u16::from(btf.tracepoint("sched_process_exit").is_some_and(|with| with.len() >= 2));
    layout.mark_victim_is_task = u32::from(
        btf.tracepoint("mark_victim").is_some_and(|with| with.first() == Some(&Parameter::Pointer)),
    );
    complete(layout, &missing)
}

/// Resolves what the programs that count connections need, or names all that is missing: then they are not
/// loaded, and all else works.
pub fn resolve_traffic(btf: &Btf<'_>) -> Result<TrafficLayout, String> {
    let mut missing = Vec::new();
    let mut at = |of: &str, path: &str| {
        btf.offset(of, path).unwrap_or_else(|| {
            missing.push(format!("{of}.{path}"));
            0
        })
    };
    let layout = TrafficLayout {
        sock_net: at("sock", "__sk_common.skc_net.net"),
        net_inum: at("net", "ns.inum"),
        net_hash_mix: at("net", "hash_mix"),
        sock_family: at("sock", "__sk_common.skc_family"),
        sock_saddr: at("sock", "__sk_common.skc_rcv_saddr"),
        sock_daddr: at("sock", "__sk_common.skc_daddr"),
        sock_saddr6: at("sock", "__sk_common.skc_v6_rcv_saddr"),
        sock_daddr6: at("sock", "__sk_common.skc_v6_daddr"),
        sock_protocol: at("sock", "sk_protocol"),
        sock_err: at("sock", "sk_err"),
        sock_socket: at("sock", "sk_socket"),
        inet_sport: at("inet_sock", "inet_sport"),
        tcp_sent_at: at("tcp_sock", "lsndtime"),
        tcp_received_at: at("inet_connection_sock", "icsk_ack.lrcvtime"),
        tcp_write_seq: at("tcp_sock", "write_seq"),
        tcp_snd_una: at("tcp_sock", "snd_una"),
        tcp_bytes_sent: at("tcp_sock", "bytes_sent"),
        tcp_bytes_received: at("tcp_sock", "bytes_received"),
        tcp_rcv_nxt: at("tcp_sock", "rcv_nxt"),
        tcp_copied_seq: at("tcp_sock", "copied_seq"),
        task_flags: at("task_struct", "flags"),
        task_nsproxy: at("task_struct", "nsproxy"),
        nsproxy_net: at("nsproxy", "net_ns"),
        skb_dev: at("sk_buff", "dev"),
        skb_head: at("sk_buff", "head"),
        skb_transport: at("sk_buff", "transport_header"),
        skb_network: at("sk_buff", "network_header"),
        dev_net: at("net_device", "nd_net.net"),
        dev_ifindex: at("net_device", "ifindex"),
    };
    complete(layout, &missing)
}

fn complete<L>(layout: L, missing: &[String]) -> Result<L, String> {
    match missing {
        [] => Ok(layout),
        _ => Err(format!(
            "the kernel's BTF lacks {}; the kernel is older than 5.10, or newer than this version of coroner supports",
            missing.join(", ")
        )),
    }
}

fn mask(signals: &[u32]) -> u64 {
    signals.iter().fold(0, |mask, signal| mask | signal_bit(*signal))
}

#[cfg(test)]
mod tests {
    use super::{super::plan, *};

    /// BTF of real kernels, cut down by `examples/trim-btf.rs`.
    const V5_10: &[u8] = include_bytes!("../../../tests/fixtures/btf/5.10.btf");
    const V6_1: &[u8] = include_bytes!("../../../tests/fixtures/btf/6.1.btf");
    const V6_12: &[u8] = include_bytes!("../../../tests/fixtures/btf/6.12.btf");
    const V6_18: &[u8] = include_bytes!("../../../tests/fixtures/btf/6.18.btf");
    const V7_2: &[u8] = include_bytes!("../../../tests/fixtures/btf/7.2.btf");
    const V5_10_ARM64: &[u8] = include_bytes!("../../../tests/fixtures/btf/5.10-arm64.btf");
    /// With pages of 16 KiB.
    const V7_2_ARM64: &[u8] = include_bytes!("../../../tests/fixtures/btf/7.2-arm64.btf");
    const ALL: [&[u8]; 7] = [V5_10, V6_1, V6_12, V6_18, V7_2, V5_10_ARM64, V7_2_ARM64];

    /// A member, and its offset in each of these kernels.
    type OffsetRow<L> = (&'static str, fn(&L) -> u32, [u32; ALL.len()]);

    fn layout(bytes: &[u8]) -> Layout {
        resolve(&Btf::parse(bytes).unwrap(), 0, false).unwrap()
    }

    #[test]
    fn offsets_are_those_that_bpftool_tells() {
        let kernels = ALL.map(layout);
        #[rustfmt::skip]
        let offsets: [OffsetRow<Layout>; 20] = [
            ("task_struct.cgroups", |l| l.task_cgroups, [3328, 3600, 3584, 2376, 4000, 2224, 2856]),
            ("task_struct.pending.signal", |l| l.task_pending, [2888, 3128, 3128, 1904, 3504, 1904, 2512]),
            ("task_struct.comm", |l| l.task_comm, [2736, 2976, 2976, 1752, 3344, 1752, 2352]),
            ("task_struct.start_boottime", |l| l.task_start_boottime, [2544, 2784, 2784, 1560, 3160, 1616, 2168]),
            ("signal_struct.pids[1]", |l| l.signal_pids_tgid, [360, 368, 360, 368, 384, 360, 384]),
            ("signal_struct.shared_pending.signal", |l| l.signal_shared_pending, [80, 80, 80, 80, 80, 80, 80]),
            ("signal_struct.flags", |l| l.signal_flags, [116, 116, 116, 116, 116, 116, 116]),
            ("sighand_struct.action", |l| l.sighand_action, [32, 32, 32, 32, 32, 32, 32]),
            ("pid.numbers", |l| l.pid_numbers, [96, 96, 112, 144, 128, 96, 128]),
            ("upid.ns", |l| l.upid_ns, [8; 7]),
            ("pid_namespace.ns.inum", |l| l.pid_namespace_inum, [136, 128, 128, 136, 344, 136, 344]),
            ("task_struct.thread_pid", |l| l.task_thread_pid, [2336, 2520, 2536, 1368, 2912, 1408, 1920]),
            ("css_set.dfl_cgrp", |l| l.css_set_dfl_cgrp, [120, 128, 128, 112, 128, 120, 128]),
            ("cgroup_subsys_state.parent", |l| l.css_parent, [192, 192, 192, 184, 184, 192, 184]),
            ("cgroup.kn", |l| l.cgroup_kn, [248, 248, 256, 256, 296, 248, 296]),
            ("cgroup.root", |l| l.cgroup_root, [480, 656, 720, 696, 808, 480, 808]),
            ("kernfs_node.id", |l| l.kn_id, [104, 104, 96, 96, 96, 104, 96]),
            ("kernfs_node.name", |l| l.kn_name, [16, 16, 16, 16, 16, 16, 16]),
            ("kernel_siginfo.si_code", |l| l.siginfo_code, [8, 8, 8, 8, 8, 8, 8]),
            ("sizes", |l| l.sigaction_size + l.upid_size, [48, 48, 48, 48, 48, 48, 48]),
        ];
        for (what, of, expected) in offsets {
            assert_eq!(kernels.each_ref().map(of), expected, "{what}");
        }
    }

    #[test]
    fn what_counts_connections_is_found_on_every_kernel() {
        let kernels = ALL.map(|bytes| resolve_traffic(&Btf::parse(bytes).unwrap()).unwrap());
        #[rustfmt::skip]
        let offsets: [OffsetRow<TrafficLayout>; 12] = [
            ("sock_common.skc_net", |l| l.sock_net, [48; 7]),
            ("sock_common.skc_family", |l| l.sock_family, [16; 7]),
            ("sock_common.skc_daddr", |l| l.sock_daddr, [0; 7]),
            ("net.ns.inum", |l| l.net_inum, [136, 144, 136, 176, 280, 136, 280]),
            ("net.hash_mix", |l| l.net_hash_mix, [320, 328, 344, 432, 648, 320, 648]),
            ("inet_sock.inet_sport", |l| l.inet_sport, [776, 804, 806, 814, 830, 776, 830]),
            ("tcp_sock.lsndtime", |l| l.tcp_sent_at, [1472, 1520, 1644, 1584, 1676, 1472, 1676]),
            ("tcp_sock.bytes_sent", |l| l.tcp_bytes_sent, [1440, 1488, 1608, 1544, 1616, 1440, 1616]),
            ("icsk_ack.lrcvtime", |l| l.tcp_received_at, [1248, 1304, 1312, 1264, 1296, 1248, 1296]),
            ("sock.sk_err", |l| l.sock_err, [568, 544, 284, 284, 284, 568, 284]),
            ("sk_buff.transport_header", |l| l.skb_transport, [178, 182, 182, 178, 182, 178, 182]),
            ("net_device.nd_net", |l| l.dev_net, [1264, 1280, 280, 264, 264, 1264, 264]),
        ];
        for (what, of, expected) in offsets {
            assert_eq!(kernels.each_ref().map(of), expected, "{what}");
        }
    }

    #[test]
    fn variants_are_told_by_the_tracepoints_arguments() {
        let variant = |bytes| {
            let layout = layout(bytes);
            (layout.exit_has_group_dead, layout.mark_victim_is_task)
        };
        assert_eq!(variant(V5_10), (0, 0));
        assert_eq!(variant(V6_1), (0, 1), "a stable kernel took the new mark_victim over");
        assert_eq!(variant(V6_12), (0, 1));
        assert_eq!(variant(V6_18), (1, 1));
        assert_eq!(variant(V7_2), (1, 1));
        assert_eq!([V5_10_ARM64, V7_2_ARM64].map(variant), [(0, 0), (1, 1)]);
    }

    #[test]
    fn every_kernel_has_every_hook() {
        for bytes in ALL {
            let btf = Btf::parse(bytes).unwrap();
            let plan = plan::plan(&btf, false);
            assert_eq!(plan.len(), 9);
            assert!(plan.iter().all(|planned| planned.hook.second().is_none()));
            let preemptible = plan::plan(&btf, true);
            let seconds: Vec<_> =
                preemptible.iter().filter_map(|planned| planned.hook.second()).collect();
            assert_eq!(seconds, ["sched_process_exit_backup", "sched_process_exec_backup"]);
            let traffic = plan::plan_traffic(&btf, &Ok(()));
            assert!(traffic.iter().all(|planned| planned.hook.second().is_some()));
            let has_reason = [V6_12, V6_18, V7_2, V7_2_ARM64].contains(&bytes);
            assert!(traffic[0].verdict.is_ok(), "{traffic:#?}");
            assert_eq!(traffic[1].verdict.is_ok(), has_reason, "{traffic:#?}");
            assert!(plan.iter().all(|planned| planned.verdict.is_ok()), "{plan:#?}");
        }
    }

    #[test]
    fn all_that_is_missing_is_named() {
        let nothing =
            [0x9f, 0xeb, 1, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let nothing = Btf::parse(&nothing).unwrap();
        let error = resolve(&nothing, 0, false).unwrap_err();
        assert!(error.contains("task_struct.cgroups, ") && error.contains("size of upid;"));
        for plan::Planned { hook, verdict } in plan::plan(&nothing, true) {
            let reason = format!("this kernel has no tracepoint {}: {}", hook.name, hook.loss);
            assert_eq!(verdict, Err(reason));
        }
    }

    #[test]
    fn what_is_no_btf_is_refused() {
        for len in (0..24).chain((24..V5_10.len()).step_by(997)) {
            assert!(Btf::parse(&V5_10[..len]).is_err(), "cut to {len}");
        }
        let mut swapped = V5_10.to_vec();
        swapped.swap(0, 1);
        assert!(Btf::parse(&swapped).unwrap_err().contains("another byte order"));
        // The kind of the first type.
        let mut unknown = V5_10.to_vec();
        unknown[24 + 7] = 31;
        assert!(Btf::parse(&unknown).unwrap_err().contains("unknown kind 31"));
    }
}
