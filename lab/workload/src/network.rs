//! The lab's network: a bridge in a network namespace that is the lab's own, and a veth pair from it to
//! each pod. The lab makes the bridge, its network plugin the pairs. Nothing of it is in the machine's
//! namespace, and all of it goes with the last process in the lab's.

use crate::{
    loopback,
    netlink::{LinkEnd, Netlink, index},
};
use std::{
    fs::{self, File},
    io::{Error, ErrorKind, Result},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// The first two bytes of every IPv4 address.
pub const NETWORK: [u8; 2] = [10, 244];
/// The first bits that all of them share.
pub const PREFIX: u8 = 16;
/// The third byte of addresses that no pod has: of clients on other nodes.
pub const ELSEWHERE: u8 = 255;
/// A prefix for local use (RFC 4193). Before the IPv4 address, which is the end of each IPv6 address.
const NETWORK_V6: [u16; 6] = [0xfd63, 0x6f72, 0x6f6e, 0, 0, 0];
/// The first bits that all of them share.
pub const PREFIX_V6: u8 = 64;
/// The node's own address.
pub const NODE: Ipv4Addr = Ipv4Addr::new(NETWORK[0], NETWORK[1], 0, 1);

const BRIDGE: &str = "lab0";
/// One port of the bridge is always there: without any it has no carrier, and no IPv6 address that works.
const ANCHOR: [&str; 2] = ["anchor0", "anchor1"];
/// Of each hardware address, before the IPv4 address: locally administered.
const NETWORK_MAC: [u8; 2] = [0x02, 0x63];

/// How long the kernel may take until an address can be used: some work queued behind a carrier's coming.
const SETTLED: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);
/// Of an IPv6 address that cannot be used yet (linux/if_addr.h).
const TENTATIVE: u32 = 0x40;

/// What an interface of the lab's network has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dual {
    /// IPv4.
    pub v4: Ipv4Addr,
    /// Its IPv6 address; `None`: this machine has no IPv6, or has it switched off.
    pub v6: Option<Ipv6Addr>,
}

/// The IPv6 address that belongs to an IPv4 address of the network.
pub fn v6_of(v4: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = NETWORK_V6;
    let [w, x, y, z] = v4.octets();
    Ipv6Addr::new(a, b, c, d, e, f, u16::from_be_bytes([w, x]), u16::from_be_bytes([y, z]))
}

fn mac_of(v4: Ipv4Addr) -> [u8; 6] {
    let ([a, b], [w, x, y, z]) = (NETWORK_MAC, v4.octets());
    [a, b, w, x, y, z]
}

/// Does it on a thread of its own, which is in the network namespace: a socket stays in the one in which it
/// was made.
pub fn inside<T: Send>(namespace: &File, what: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let enter = || {
        loopback::enter(namespace)?;
        what()
    };
    thread::scope(|scope| scope.spawn(enter).join())
        .unwrap_or_else(|_| Err(Error::other("a thread in a network namespace panicked")))
}

/// A new network namespace, in which nothing but `lo` is. It lives as long as the file.
pub fn make() -> Result<File> {
    let make = || {
        loopback::make_and_bring_up()?;
        File::open("/proc/thread-self/ns/net")
    };
    thread::scope(|scope| scope.spawn(make).join())
        .unwrap_or_else(|_| Err(Error::other("a thread in a network namespace panicked")))
}

/// Makes the bridge in the node's namespace, with the node's addresses.
pub fn make_bridge(node: &File) -> Result<Dual> {
    inside(node, || {
        loopback::bring_up()?;
        let kernel = Netlink::connect()?;
        kernel.add_bridge(BRIDGE, mac_of(NODE))?;
        let bridge = index(BRIDGE)?;
        let [port, other] = ANCHOR;
        kernel.add_veth(
            &LinkEnd { bridge: Some(bridge), ..LinkEnd::here(port) },
            &LinkEnd::here(other),
        )?;
        kernel.bring_up(other)?;
        give(&kernel, BRIDGE, NODE, true)
    })
}

/// Connects a namespace with the node's bridge: an interface of this name there, with this address and the
/// IPv6 address that belongs to it.
pub fn attach(node: &File, guest: &File, port: &str, name: &str, v4: Ipv4Addr) -> Result<Dual> {
    let has_v6 = inside(node, || {
        let near = LinkEnd { bridge: Some(index(BRIDGE)?), ..LinkEnd::here(port) };
        // Who has the address next has the same: it stays in others' tables of neighbours for a while.
        let mac = Some(mac_of(v4));
        let far = LinkEnd { namespace: Some(guest.as_raw_fd()), mac, ..LinkEnd::here(name) };
        Netlink::connect()?.add_veth(&near, &far)?;
        Ok(state(BRIDGE, v6_of(NODE))?.is_some())
    })?;
    inside(guest, || {
        let kernel = Netlink::connect()?;
        kernel.bring_up(name)?;
        give(&kernel, name, v4, has_v6)
    })
}

/// Removes what [`attach`] made under this name, if it is there.
pub fn detach(node: &Path, port: &str) -> Result<()> {
    match File::open(node) {
        Ok(node) => inside(&node, || Netlink::connect()?.remove(port)),
        // Nothing is left of the node's network.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// How many [`attach`] has connected with the node's bridge, and are still.
pub fn ports(node: &File) -> Result<usize> {
    let interfaces = inside(node, || fs::read_to_string("/proc/thread-self/net/dev"))?;
    let names =
        interfaces.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
    Ok(names.filter(|name| !ANCHOR.contains(name) && !["lo", BRIDGE].contains(name)).count())
}

/// What waits to be accepted or read at a TCP port: connections and bytes.
pub fn unread(namespace: &File, port: u16) -> Result<u64> {
    let tables = inside(namespace, || {
        let v6 = match fs::read_to_string("/proc/thread-self/net/tcp6") {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            table => table?,
        };
        Ok(fs::read_to_string("/proc/thread-self/net/tcp")? + &v6)
    })?;
    Ok(tables.lines().filter_map(|line| received(line, port)).sum())
}

/// From a line of /proc/net/tcp, whose fifth field is `tx_queue:rx_queue`. A listener's is the number of
/// connections to be accepted (`get_tcp4_sock`).
fn received(line: &str, port: u16) -> Option<u64> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (_, local) = fields.get(1)?.rsplit_once(':')?;
    let (_, queue) = fields.get(4)?.split_once(':')?;
    (u16::from_str_radix(local, 16) == Ok(port)).then(|| u64::from_str_radix(queue, 16).ok())?
}

/// Gives an interface that is up its addresses, and waits until they can be used.
fn give(kernel: &Netlink, name: &str, v4: Ipv4Addr, wants_v6: bool) -> Result<Dual> {
    let interface = index(name)?;
    kernel.add_address(interface, IpAddr::V4(v4), PREFIX)?;
    let v6 = v6_of(v4);
    let added = if wants_v6 {
        kernel.add_address(interface, IpAddr::V6(v6), PREFIX_V6)
    } else {
        Err(Error::from_raw_os_error(libc::EAFNOSUPPORT))
    };
    match added {
        Ok(()) => {}
        Err(error) if lacks_v6(&error) => return Ok(Dual { v4, v6: None }),
        Err(error) => return Err(error),
    }
    let deadline = Instant::now() + SETTLED;
    while state(name, v6)?.is_none_or(|flags| flags & TENTATIVE != 0) {
        if Instant::now() > deadline {
            let why = format!("{name} cannot use its address {v6} after {SETTLED:?}");
            return Err(Error::new(ErrorKind::TimedOut, why));
        }
        thread::sleep(LOOK);
    }
    Ok(Dual { v4, v6: Some(v6) })
}

/// Built without, booted with `ipv6.disable=1`, or `disable_ipv6` inherited from the machine.
fn lacks_v6(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EACCES))
}

/// The flags of an interface's IPv6 address; `None`: it has no such address.
fn state(name: &str, address: Ipv6Addr) -> Result<Option<u32>> {
    match fs::read_to_string("/proc/thread-self/net/if_inet6") {
        Ok(table) => Ok(flags(&table, name, address)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// From if_inet6: address, index, prefix, scope, flags and name, the numbers in hex (`if6_seq_show`).
fn flags(table: &str, name: &str, address: Ipv6Addr) -> Option<u32> {
    let wanted = format!("{:032x}", address.to_bits());
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [of, _, _, _, flags, at] if of == wanted && at == name => {
                u32::from_str_radix(flags, 16).ok()
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_ends_with_the_ipv4_address() {
        assert_eq!(v6_of(NODE).to_string(), "fd63:6f72:6f6e::af4:1");
        let other = v6_of(Ipv4Addr::new(10, 244, 3, 200));
        assert_eq!(other.segments()[6..], [0x0af4, 0x03c8]);
    }

    #[test]
    fn what_waits_is_of_its_port() {
        let line =
            "   1: 0200F40A:1F90 0100F40A:D2F0 01 00000000:0000001A 00:00000000 00000000 0 0 1";
        assert_eq!(received(line, 8080), Some(26));
        assert_eq!(received(line, 8081), None);
        assert_eq!(received("  sl  local_address rem_address   st tx_queue rx_queue", 8080), None);
    }

    #[test]
    fn an_address_is_found_with_its_flags() {
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fd636f726f6e0000000000000af40001 02 40 00 c2     lab0\n";
        assert_eq!(flags(table, "lab0", v6_of(NODE)), Some(0xc2));
        assert_eq!(flags(table, "lo", v6_of(NODE)), None);
        assert_eq!(flags("nonsense", "lo", v6_of(NODE)), None);
    }
}
