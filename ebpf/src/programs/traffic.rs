//! TCP connections of marked network namespaces: counted, by mechanical facts. These programs are
//! attached only while some pod terminates, and then run for every connection of the node: what the
//! arguments rule out comes first, then the namespace, and all else only for what is marked.

use super::{
    backup,
    emit::{add_one, now},
    read::{Address, cgroup_id, current, layout},
    watch::WatchedCgroup,
};
use aya_ebpf::{
    macros::{map, raw_tracepoint},
    maps::HashMap,
    programs::RawTracePointContext,
};
use coroner_ebpf::{
    backup::Hook,
    maps::{ADDRESSES_MAX, TRAFFIC_MAX},
    traffic::{
        CELLS, CLIENT, CLOSED, CUT_HALF_CLOSED, CUT_HALF_CLOSED_UNREAD, CUT_IDLE, CUT_REQUEST,
        CUT_SENDING, CUT_UNREAD, Cell, INTERNAL, LISTENER_CLOSED, LISTENER_CUT, Marked, NODE,
        OF_NODE, OF_TERMINATING, OPENED, OPENED_AFTER_STOP, OUTBOUND, PEER_CLOSED, PEER_RESET,
        PORTS, REFUSED, REFUSED_AFTER_STOP, RESET, RESET_AFTER_END, RESET_HALF_CLOSED, TABLE,
        TERMINATING, TIMED_OUT, TRIAL, Traffic, UNACCEPTED,
    },
};

#[map]
static TRAFFIC: HashMap<Marked, Traffic> = HashMap::with_max_entries(TRAFFIC_MAX, 0);

#[map]
static STOPS: HashMap<Marked, u64> = HashMap::with_max_entries(TRAFFIC_MAX, 0);

#[map]
static ADDRESSES: HashMap<Ip, u32> = HashMap::with_max_entries(ADDRESSES_MAX, 0);

static CELL_OF: [u8; 256] = TABLE;

// `include/net/tcp_states.h`.
const ESTABLISHED: u32 = 1;
const SYN_RECV: u32 = 3;
const FIN_WAIT1: u32 = 4;
const TIME_WAIT: u8 = 6;
const CLOSE: u32 = 7;
const CLOSE_WAIT: u32 = 8;
const LAST_ACK: u32 = 9;
const LISTEN: u32 = 10;

const IPPROTO_TCP: u16 = 6;
const IPPROTO_MPTCP: u16 = 262;
const AF_INET: u16 = 2;
const ECONNRESET: u32 = 104;
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

/// The entry of a namespace (`cgroup` 0), or of a container in it.
#[inline(always)]
fn entry(netns: u32, cgroup: u64) -> Option<*mut Traffic> {
    TRAFFIC.get_ptr_mut(Marked { netns, reserved: 0, cgroup })
}

/// The entry of a namespace and its number, if it is marked. Not if it only has the number of one that was.
#[inline(always)]
fn marked(net: Address) -> Option<(*mut Traffic, u32)> {
    let netns: u32 = net.read(layout!(traffic.net_inum));
    let pod = entry(netns, 0)?;
    let identity: u32 = net.read(layout!(traffic.net_hash_mix));
    match get!(pod, identity) {
        0 => set!(pod, identity, identity),
        known if known != identity => return None,
        _ => {}
    }
    Some((pod, netns))
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
    let matters = old == ESTABLISHED
        || new == ESTABLISHED
        || (new == CLOSE && (old == LISTEN || old == CLOSE_WAIT))
        || (new == LAST_ACK && old == CLOSE_WAIT);
    if !matters {
        return;
    }
    let sk = Address(ctx.arg(0));
    if let Some((pod, netns)) = marked(sk.pointer(layout!(traffic.sock_net))) {
        changed(pod, sk.0, netns, old << 8 | new);
    }
}

#[inline(never)]
fn changed(pod: *mut Traffic, sk: u64, netns: u32, states: u32) {
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
    let is_listener = old == LISTEN;
    let is_trial = get!(pod, flags) & TRIAL != 0;
    if is_trial {
        let peer_port = u16::from_be(sk.read(layout!(traffic.inet_dport)));
        let tried = port_at(pod, 0);
        if port != tried && (is_listener || peer_port != tried) {
            return;
        }
    }
    // A listener has no remote address; of an unspecified one both are 0.
    let same = !is_listener && local[0] == remote[0] && local[1] == remote[1];
    let is_internal = !is_trial && (same || is_loopback(&local) || is_loopback(&remote));
    let peer = if is_internal {
        INTERNAL
    } else if is_listener || old == SYN_RECV {
        if !is_trial {
            learn(pod, port);
        }
        if is_listener { CLIENT } else { whose(&remote) }
    } else if event == UNACCEPTED || listens(pod, port) {
        whose(&remote)
    } else {
        OUTBOUND
    };
    count(owner(pod, netns, sk), netns, peer, event);
}

/// What a transition is.
#[inline(always)]
fn classify(sk: Address, old: u32, new: u32, is_mptcp: bool) -> Option<u32> {
    if new == ESTABLISHED {
        return Some(OPENED);
    }
    if old == ESTABLISHED && new == CLOSE_WAIT {
        return Some(PEER_CLOSED);
    }
    // All that follow run in the task that closes, unless the socket has an error or no owner.
    let flags: u32 = current().read(layout!(traffic.task_flags));
    let is_exiting = flags & PF_EXITING != 0;
    if old == LISTEN {
        return Some(if is_exiting { LISTENER_CUT } else { LISTENER_CLOSED });
    }
    let is_owned = sk.pointer(layout!(traffic.sock_socket)).0 != 0;
    let error: u32 = sk.read(layout!(traffic.sock_err));
    if old == CLOSE_WAIT {
        let is_cut = is_exiting && is_owned;
        return match (error, new == CLOSE) {
            // tcp_close with unread data, tcp_disconnect: both send RST.
            (0, true) if is_cut && is_lost(sk, 1) => Some(CUT_HALF_CLOSED_UNREAD),
            (0, true) => Some(RESET_HALF_CLOSED),
            (0, false) if is_cut && is_unanswered(sk, 1) => Some(CUT_HALF_CLOSED),
            _ => None,
        };
    }
    if new == FIN_WAIT1 {
        return match (is_owned, is_exiting) {
            (false, _) => None, // a subflow of MPTCP, closed by a kernel thread
            (true, false) => Some(CLOSED),
            (true, true) if is_mptcp => Some(CUT_IDLE), // there is no tcp_sock
            (true, true) => Some(cut(sk)),
        };
    }
    if new != CLOSE {
        return None;
    }
    Some(match error {
        0 if !is_owned => UNACCEPTED,
        0 if is_exiting && is_lost(sk, 0) => CUT_UNREAD,
        0 => RESET,
        ECONNRESET => PEER_RESET,
        _ => TIMED_OUT,
    })
}

/// What the exit of its process has cut.
#[inline(always)]
fn cut(sk: Address) -> u32 {
    if is_unanswered(sk, 0) {
        return CUT_REQUEST;
    }
    if is_sending(sk) { CUT_SENDING } else { CUT_IDLE }
}

/// Not all that was sent has been acknowledged.
#[inline(always)]
fn is_sending(sk: Address) -> bool {
    let written: u32 = sk.read(layout!(traffic.tcp_write_seq));
    let acknowledged: u32 = sk.read(layout!(traffic.tcp_snd_una));
    written != acknowledged
}

/// Data came after the last that was sent. Times are in jiffies: a first request within the one of the
/// handshake shows by nothing having been sent yet. `fin`: 1 if a FIN has come, which counts as a byte.
#[inline(always)]
fn is_unanswered(sk: Address, fin: u64) -> bool {
    let received: u64 = sk.read(layout!(traffic.tcp_bytes_received));
    if received <= fin {
        return false;
    }
    let sent: u64 = sk.read(layout!(traffic.tcp_bytes_sent));
    let sent_at: u32 = sk.read(layout!(traffic.tcp_sent_at));
    let received_at: u32 = sk.read(layout!(traffic.tcp_received_at));
    sent == 0 || (received_at.wrapping_sub(sent_at) as i32) > 0
}

/// A reset loses something: without it only SO_LINGER 0 sends RST, which the process asked for.
#[inline(always)]
fn is_lost(sk: Address, fin: u32) -> bool {
    let expected: u32 = sk.read(layout!(traffic.tcp_rcv_nxt));
    let read: u32 = sk.read(layout!(traffic.tcp_copied_seq));
    expected.wrapping_sub(read) > fin || is_unanswered(sk, u64::from(fin)) || is_sending(sk)
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
    match ADDRESSES.get_ptr(ip) {
        // SAFETY: as above.
        Some(kind) => match unsafe { core::ptr::read_volatile(kind) } {
            OF_NODE => NODE,
            OF_TERMINATING => TERMINATING,
            _ => CLIENT,
        },
        None => CLIENT,
    }
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

/// The entry of the container that a socket belongs to, or the pod's.
#[inline(always)]
fn owner(pod: *mut Traffic, netns: u32, sk: Address) -> *mut Traffic {
    if layout!(traffic.sock_cgroup) == 0 {
        return pod;
    }
    let cgroup = sk.pointer(layout!(traffic.sock_cgroup));
    if cgroup.0 == 0 || cgroup.0 & 1 != 0 {
        return pod;
    }
    let id = cgroup_id(cgroup);
    let container = match WatchedCgroup::find(id).map_or(0, WatchedCgroup::owner_id) {
        0 => id,
        container => container,
    };
    entry(netns, container).unwrap_or(pod)
}

#[inline(always)]
fn count(entry: *mut Traffic, netns: u32, peer: u32, event: u32) {
    let event = match event {
        OPENED if is_stopped(netns) => OPENED_AFTER_STOP,
        REFUSED if is_stopped(netns) => REFUSED_AFTER_STOP,
        event => event,
    };
    // SAFETY: in bounds. Volatile: the compiler would make a switch of it.
    let cell = unsafe {
        let table = (&raw const CELL_OF).cast::<u8>();
        core::ptr::read_volatile(table.wrapping_add((peer << 5 | event) as usize & 0xff))
    };
    let cell = usize::from(cell);
    if cell >= CELLS {
        return;
    }
    let time = now();
    // SAFETY: in bounds, and as above.
    unsafe {
        let cell = (&raw mut (*entry).cells).cast::<Cell>().wrapping_add(cell);
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
    backup::seen(Hook::Reset, answer(&ctx));
    reset(ctx);
    0
}

/// See [`backup`].
#[raw_tracepoint]
pub fn tcp_send_reset_backup(ctx: RawTracePointContext) -> i32 {
    if backup::was_skipped(Hook::Reset, answer(&ctx)) {
        reset(ctx);
    }
    0
}

/// The event: a segment is answered, or (without one) a socket is closed.
#[inline(always)]
fn answer(ctx: &RawTracePointContext) -> u64 {
    let (sk, skb) = (ctx.arg(0), ctx.arg(1));
    if skb == 0 { sk } else { skb }
}

#[inline(always)]
fn reset(ctx: RawTracePointContext) {
    let (sk, skb) = (Address(ctx.arg(0)), Address(ctx.arg(1)));
    if skb.0 == 0 {
        return;
    }
    let net = if sk.0 == 0 {
        skb.pointer(layout!(traffic.skb_dev)).pointer(layout!(traffic.dev_net))
    } else {
        // Data after the end: of a connection that waits, of one that was ended by this data, or of one that is gone
        // while its listener is still there.
        let state: u8 = sk.read(layout!(traffic.sock_state));
        if state != TIME_WAIT && ![CLOSE, LISTEN].contains(&u32::from(state)) {
            return;
        }
        sk.pointer(layout!(traffic.sock_net))
    };
    if let Some((pod, netns)) = marked(net) {
        answered(pod, netns, skb.0);
    }
}

#[inline(never)]
fn answered(pod: *mut Traffic, netns: u32, skb: u64) {
    let skb = Address(skb);
    let head = skb.pointer(layout!(traffic.skb_head));
    let transport: u16 = skb.read(layout!(traffic.skb_transport));
    let network: u16 = skb.read(layout!(traffic.skb_network));
    let (tcp, ip) = (head.at(u32::from(transport)), head.at(u32::from(network)));
    let port = u16::from_be(tcp.read(2));
    let (remote, local) = match ip.read::<u8>(0) >> 4 {
        4 => (mapped(ip.read(12)), mapped(ip.read(16))),
        _ => (ip.read(8), ip.read(24)),
    };
    if get!(pod, flags) & TRIAL != 0 {
        if port != port_at(pod, 0) {
            return;
        }
    } else {
        // What has a socket has lost its device by now.
        let device = skb.pointer(layout!(traffic.skb_dev));
        let is_same = remote[0] == local[0] && remote[1] == local[1];
        let index: u32 = device.read(layout!(traffic.dev_ifindex));
        if index == LOOPBACK || is_same || is_loopback(&remote) {
            return;
        }
    }
    let is_syn = tcp.read::<u8>(13) & (SYN | ACK) == SYN;
    // The answer of a server to what this pod had opened itself is none of a client's; and to a port that was never
    // open somebody connects whether the pod terminates or not.
    let known = get!(pod, known) as usize;
    let may_have_listened = is_syn && (known == 0 || known == PORTS);
    if !may_have_listened && !listens(pod, port) {
        return;
    }
    let event = if is_syn { REFUSED } else { RESET_AFTER_END };
    count(pod, netns, whose(&remote), event);
}

/// A stop signal from outside comes to the main process of a container.
#[inline(always)]
pub(super) fn stopped(task: Address, time: u64) {
    if layout!(traffic.task_nsproxy) == 0 {
        return;
    }
    let namespaces = task.pointer(layout!(traffic.task_nsproxy));
    let Some((_, netns)) = marked(namespaces.pointer(layout!(traffic.nsproxy_net))) else { return };
    if let Some(stop) = STOPS.get_ptr_mut(Marked { netns, reserved: 0, cgroup: 0 }) {
        // SAFETY: as above.
        unsafe {
            if core::ptr::read_volatile(stop) == 0 {
                core::ptr::write_volatile(stop, time);
            }
        }
    }
}

/// A container of the pod was sent its stop signal.
#[inline(always)]
fn is_stopped(netns: u32) -> bool {
    let pod = Marked { netns, reserved: 0, cgroup: 0 };
    // SAFETY: as above.
    STOPS.get_ptr(pod).is_some_and(|stop| unsafe { core::ptr::read_volatile(stop) != 0 })
}
