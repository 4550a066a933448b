//! TCP connections of marked network namespaces: counted, by mechanical facts. These programs are
//! attached only while some pod terminates, and then run for every connection of the node: what the
//! arguments rule out comes first, then the namespace, and all else only for what is marked.

use super::{
    backup,
    emit::{add_one, now},
    read::{Address, current, layout},
};
use aya_ebpf::{
    macros::{map, raw_tracepoint},
    maps::HashMap,
    programs::RawTracePointContext,
};
use coroner_ebpf::{
    backup::Hook,
    maps::{NODE_ADDRESSES_MAX, TRAFFIC_MAX},
    traffic::{
        CLIENT, CUT, CUT_IDLE, Cell, EVENTS, LISTENER_CLOSED, LISTENER_CUT, NODE, OPENED, PEERS,
        PORTS, REFUSED, TRIAL, Traffic,
    },
};

#[map]
static TRAFFIC: HashMap<u32, Traffic> = HashMap::with_max_entries(TRAFFIC_MAX, 0);

#[map]
static NODE_ADDRESSES: HashMap<Ip, u32> = HashMap::with_max_entries(NODE_ADDRESSES_MAX, 0);

// `include/net/tcp_states.h`.
const ESTABLISHED: u32 = 1;
const SYN_RECV: u32 = 3;
const FIN_WAIT1: u32 = 4;
const CLOSE: u32 = 7;
const LISTEN: u32 = 10;

const IPPROTO_TCP: u16 = 6;
const IPPROTO_MPTCP: u16 = 262;
const AF_INET: u16 = 2;
/// `include/linux/sched.h`.
const PF_EXITING: u32 = 4;
/// Flags in a TCP header.
const SYN: u8 = 2;
const ACK: u8 = 16;
/// The loopback interface is the first of every network namespace.
const LOOPBACK: u32 = 1;

/// An address as IPv6 has it, in the order of the network.
type Ip = [u64; 2];

macro_rules! get {
    ($this:expr, $member:ident) => {
        // SAFETY: the pointer came from a lookup in this run of the program, during which a
        // value's memory stays a value of its map.
        unsafe { core::ptr::read_volatile(&raw const (*$this).$member) }
    };
}

macro_rules! set {
    ($this:expr, $member:ident, $value:expr) => {{
        let value = $value;
        // SAFETY: as above.
        unsafe { core::ptr::write_volatile(&raw mut (*$this).$member, value) }
    }};
}

/// The entry of a namespace, if it is marked. Not if it only has the number of one that was.
#[inline(always)]
fn marked(net: Address) -> Option<*mut Traffic> {
    let pod = TRAFFIC.get_ptr_mut(net.read::<u32>(layout!(traffic.net_inum)))?;
    let identity: u32 = net.read(layout!(traffic.net_hash_mix));
    match get!(pod, identity) {
        0 => set!(pod, identity, identity),
        known if known != identity => return None,
        _ => {}
    }
    Some(pod)
}

/// `inet_sock_set_state(const struct sock *sk, const int oldstate, const int newstate)`: before the
/// state is changed. In the task that closes; for what comes from the network `current` is anybody.
#[raw_tracepoint]
pub fn inet_sock_set_state(ctx: RawTracePointContext) -> i32 {
    backup::seen(Hook::Transition, ctx.arg(0));
    transition(ctx);
    0
}

/// See [`backup`].
#[raw_tracepoint]
pub fn inet_sock_set_state_backup(ctx: RawTracePointContext) -> i32 {
    if backup::was_skipped(Hook::Transition, ctx.arg(0)) {
        transition(ctx);
    }
    0
}

#[inline(always)]
fn transition(ctx: RawTracePointContext) {
    let (old, new): (u32, u32) = (ctx.arg(1), ctx.arg(2));
    let matters = (old == SYN_RECV && new == ESTABLISHED)
        || (old == ESTABLISHED && (new == FIN_WAIT1 || new == CLOSE))
        || (old == LISTEN && new == CLOSE);
    if !matters {
        return;
    }
    let sk = Address(ctx.arg(0));
    if let Some(pod) = marked(sk.pointer(layout!(traffic.sock_net))) {
        changed(pod, sk.0, old << 8 | new);
    }
}

#[inline(never)]
fn changed(pod: *mut Traffic, sk: u64, states: u32) {
    let (sk, old, new) = (Address(sk), states >> 8 & 0xff, states & 0xff);
    let protocol: u16 = sk.read(layout!(traffic.sock_protocol));
    // An MPTCP connection is its subflows, but only it is closed by the process.
    let is_mptcp = protocol == IPPROTO_MPTCP && old == ESTABLISHED && new == FIN_WAIT1;
    if protocol != IPPROTO_TCP && !is_mptcp {
        return;
    }
    let Some(event) = classify(sk, old, new, is_mptcp) else { return };
    let (local, remote) = ends(sk);
    let port = u16::from_be(sk.read(layout!(traffic.inet_sport)));
    if get!(pod, flags) & TRIAL != 0 {
        if port != port_at(pod, 0) {
            return;
        }
    } else {
        let same = local[0] == remote[0] && local[1] == remote[1];
        // Within the pod. A listener has no remote address; of an unspecified one both are 0.
        if is_loopback(&local) || is_loopback(&remote) || (old != LISTEN && same) {
            return;
        }
        if old != ESTABLISHED {
            learn(pod, port);
        }
    }
    // What the pod has opened itself is no client's.
    if old != ESTABLISHED || listens(pod, port) {
        count(pod, if old == LISTEN { CLIENT } else { whose(&remote) }, event);
    }
}

/// What a transition is; `None`: nothing was lost by it, or not by the exit of its process.
#[inline(always)]
fn classify(sk: Address, old: u32, new: u32, is_mptcp: bool) -> Option<u32> {
    if old == SYN_RECV {
        return Some(OPENED);
    }
    // All that follow run in the task that closes, unless the socket has an error or no owner.
    let flags: u32 = current().read(layout!(traffic.task_flags));
    let is_exiting = flags & PF_EXITING != 0;
    if old == LISTEN {
        return Some(if is_exiting { LISTENER_CUT } else { LISTENER_CLOSED });
    }
    // Without an owner: a subflow of MPTCP, or nobody had accepted it.
    if !is_exiting || sk.pointer(layout!(traffic.sock_socket)).0 == 0 {
        return None;
    }
    if new == FIN_WAIT1 {
        // Of MPTCP there is no tcp_sock. What was sent and not acknowledged is still delivered.
        return Some(if !is_mptcp && is_unanswered(sk) { CUT } else { CUT_IDLE });
    }
    (sk.read::<u32>(layout!(traffic.sock_err)) == 0 && is_lost(sk)).then_some(CUT)
}

/// Data came after the last that was sent. Times are in jiffies: a first request within the one of the
/// handshake shows by nothing having been sent yet.
#[inline(always)]
fn is_unanswered(sk: Address) -> bool {
    if sk.read::<u64>(layout!(traffic.tcp_bytes_received)) == 0 {
        return false;
    }
    let sent: u64 = sk.read(layout!(traffic.tcp_bytes_sent));
    let sent_at: u32 = sk.read(layout!(traffic.tcp_sent_at));
    let received_at: u32 = sk.read(layout!(traffic.tcp_received_at));
    sent == 0 || (received_at.wrapping_sub(sent_at) as i32) > 0
}

/// A reset loses something: data unread or not acknowledged, or a request. Without any, only SO_LINGER 0 sends RST, which
/// the process asked for.
#[inline(always)]
fn is_lost(sk: Address) -> bool {
    let read = |offset| sk.read::<u32>(offset);
    read(layout!(traffic.tcp_rcv_nxt)) != read(layout!(traffic.tcp_copied_seq))
        || read(layout!(traffic.tcp_write_seq)) != read(layout!(traffic.tcp_snd_una))
        || is_unanswered(sk)
}

/// The local and the remote address.
#[inline(always)]
fn ends(sk: Address) -> (Ip, Ip) {
    let family: u16 = sk.read(layout!(traffic.sock_family));
    if family == AF_INET {
        let local: u32 = sk.read(layout!(traffic.sock_saddr));
        let remote: u32 = sk.read(layout!(traffic.sock_daddr));
        (mapped(local), mapped(remote))
    } else {
        (sk.read(layout!(traffic.sock_saddr6)), sk.read(layout!(traffic.sock_daddr6)))
    }
}

/// `::ffff:a.b.c.d`.
#[inline(always)]
fn mapped(v4: u32) -> Ip {
    [0, u64::from(v4) << 32 | 0xffff_0000]
}

/// 127.0.0.0/8 or ::1.
#[inline(always)]
fn is_loopback(ip: &Ip) -> bool {
    ip[0] == 0 && (ip[1] & 0x0000_00ff_ffff_ffff == 0x7f_ffff_0000 || ip[1] == 1 << 56)
}

/// Who connects from this address.
#[inline(always)]
fn whose(ip: &Ip) -> u32 {
    if NODE_ADDRESSES.get_ptr(ip).is_some() { NODE } else { CLIENT }
}

/// A port of the pod's; 0: there are not so many.
#[inline(always)]
fn port_at(pod: *mut Traffic, index: usize) -> u16 {
    // SAFETY: in bounds, and as above.
    unsafe {
        let ports = (&raw const (*pod).ports).cast::<u16>();
        core::ptr::read_volatile(ports.wrapping_add(index % PORTS))
    }
}

/// The pod listens on this port, or has.
#[inline(always)]
fn listens(pod: *mut Traffic, port: u16) -> bool {
    let mut found = false;
    for index in 0..PORTS {
        found |= port_at(pod, index) == port;
    }
    found
}

#[inline(always)]
fn learn(pod: *mut Traffic, port: u16) {
    let known = get!(pod, known);
    if known as usize >= PORTS || listens(pod, port) {
        return;
    }
    // SAFETY: in bounds, and as above.
    unsafe {
        let ports = (&raw mut (*pod).ports).cast::<u16>();
        core::ptr::write_volatile(ports.wrapping_add(known as usize % PORTS), port);
    }
    set!(pod, known, known + 1);
}

#[inline(always)]
fn count(pod: *mut Traffic, peer: u32, event: u32) {
    // Those after the stop come next to those before it.
    let is_after = get!(pod, stopped) != 0 && (event == OPENED || event == REFUSED);
    let event = (event + u32::from(is_after)) as usize % EVENTS;
    let time = now();
    // SAFETY: in bounds, and as above.
    unsafe {
        let cell = (&raw mut (*pod).cells).cast::<Cell>();
        let cell = cell.wrapping_add(peer as usize % PEERS * EVENTS + event);
        add_one(&raw mut (*cell).count);
        if core::ptr::read_volatile(&raw const (*cell).first) == 0 {
            core::ptr::write_volatile(&raw mut (*cell).first, time);
        }
        core::ptr::write_volatile(&raw mut (*cell).last, time);
    }
}

/// `tcp_send_reset(const struct sock *sk, const struct sk_buff *skb, const enum sk_rst_reason reason)`,
/// since Linux 6.10: in answer to `skb` also where there is no socket. Before, it was not called then.
#[raw_tracepoint]
pub fn tcp_send_reset(ctx: RawTracePointContext) -> i32 {
    backup::seen(Hook::Reset, ctx.arg(1));
    reset(ctx);
    0
}

/// See [`backup`].
#[raw_tracepoint]
pub fn tcp_send_reset_backup(ctx: RawTracePointContext) -> i32 {
    if backup::was_skipped(Hook::Reset, ctx.arg(1)) {
        reset(ctx);
    }
    0
}

/// A SYN for which there is no listener has no socket.
#[inline(always)]
fn reset(ctx: RawTracePointContext) {
    let (sk, skb) = (ctx.arg::<u64>(0), Address(ctx.arg(1)));
    if sk != 0 || skb.0 == 0 {
        return;
    }
    let device = skb.pointer(layout!(traffic.skb_dev));
    if let Some(pod) = marked(device.pointer(layout!(traffic.dev_net))) {
        answered(pod, skb.0, device.0);
    }
}

#[inline(never)]
fn answered(pod: *mut Traffic, skb: u64, device: u64) {
    let skb = Address(skb);
    let head = skb.pointer(layout!(traffic.skb_head));
    let transport: u16 = skb.read(layout!(traffic.skb_transport));
    let network: u16 = skb.read(layout!(traffic.skb_network));
    let (tcp, ip) = (head.at(u32::from(transport)), head.at(u32::from(network)));
    if tcp.read::<u8>(13) & (SYN | ACK) != SYN {
        return;
    }
    let port = u16::from_be(tcp.read(2));
    let (remote, local) = match ip.read::<u8>(0) >> 4 {
        4 => (mapped(ip.read(12)), mapped(ip.read(16))),
        _ => (ip.read(8), ip.read(24)),
    };
    let known = get!(pod, known) as usize;
    let is_refusal = if get!(pod, flags) & TRIAL != 0 {
        port == port_at(pod, 0)
    } else {
        let is_same = remote[0] == local[0] && remote[1] == local[1];
        let index: u32 = Address(device).read(layout!(traffic.dev_ifindex));
        // To a port that was never open somebody connects whether the pod terminates or not.
        index != LOOPBACK
            && !is_same
            && !is_loopback(&remote)
            && (known == 0 || known == PORTS || listens(pod, port))
    };
    if is_refusal {
        count(pod, whose(&remote), REFUSED);
    }
}

/// A stop signal from outside comes to the main process of a container.
#[inline(always)]
pub(super) fn stopped(task: Address, time: u64) {
    if layout!(traffic.task_nsproxy) == 0 {
        return;
    }
    let namespaces = task.pointer(layout!(traffic.task_nsproxy));
    if let Some(pod) = marked(namespaces.pointer(layout!(traffic.nsproxy_net)))
        && get!(pod, stopped) == 0
    {
        set!(pod, stopped, time);
    }
}
