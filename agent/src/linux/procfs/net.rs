//! /proc/PID/net: the network namespace of a process. Files are opened, read and closed at once, because an open one
//! keeps the namespace alive.
//!
//! The table of TCP sockets is never read whole: the kernel goes through the sockets of all namespaces for it, which
//! takes milliseconds. The listening ones come first.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

/// What is read of a file at the most: a node with thousands of routes has a megabyte of them.
const MOST: u64 = 8 << 20;
/// Addresses of a namespace, of each family.
const MAX_ADDRESSES: usize = 256;
/// Listening sockets of a namespace that are looked at.
const MAX_LISTENERS: usize = 1024;
/// A line of `tcp`; those of `tcp6` are longer. Of a file of the kernel's, a read this long makes it go through no more
/// sockets than fit.
const LINE: usize = 150;

/// A line of /proc/PID/net/tcp or tcp6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SocketLine {
    /// A listening socket, with its address and port.
    Listening(IpAddr, u16),
    /// The line above the first socket, or one that is not understood.
    NoSocket,
    /// A socket that does not listen: none that follows does.
    Other,
}

fn socket_line(line: &str) -> SocketLine {
    let parsed = || {
        let mut fields = line.split_ascii_whitespace();
        fields.next()?.strip_suffix(':')?;
        let (address, port) = fields.next()?.split_once(':')?;
        let state = u8::from_str_radix(fields.nth(1)?, 16).ok()?;
        if state != 0x0a {
            return Some(SocketLine::Other);
        }
        let port = u16::from_str_radix(port, 16).ok()?;
        Some(SocketLine::Listening(hex_address(address)?, port))
    };
    parsed().unwrap_or(SocketLine::NoSocket)
}

/// Words of 32 bits as they are in memory, in hexadecimal (`net/ipv4/tcp_ipv4.c`, `get_openreq4`).
fn hex_address(text: &str) -> Option<IpAddr> {
    let mut octets = [0; 16];
    if !text.is_ascii() || !matches!(text.len(), 8 | 32) {
        return None;
    }
    for (index, into) in octets.chunks_exact_mut(4).take(text.len() / 8).enumerate() {
        let word = u32::from_str_radix(&text[8 * index..8 * index + 8], 16).ok()?;
        into.copy_from_slice(&word.to_ne_bytes());
    }
    Some(match text.len() {
        8 => Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into(),
        _ => Ipv6Addr::from(octets).into(),
    })
}

/// The local addresses in /proc/PID/net/fib_trie, bounded: a node, with its address, is followed by its routes. First
/// those that are part of a connected network: on a node with IPVS each of the cluster's Services has one without.
fn fib_addresses(lines: impl Iterator<Item = String>) -> Vec<Ipv4Addr> {
    let (mut node, mut own, mut networks) = (None, BTreeSet::new(), BTreeSet::new());
    for line in lines {
        let line = line.trim();
        if let Some(address) = line.strip_prefix("|-- ") {
            node = address.parse::<Ipv4Addr>().ok();
            continue;
        }
        let Some(address) = node else { continue };
        let link = line.strip_suffix(" link UNICAST").and_then(|line| line.strip_prefix('/'));
        if line == "/32 host LOCAL" {
            own.insert(address);
        } else if let Some(length) = link.and_then(|length| length.parse::<u32>().ok())
            && (1..32).contains(&length)
        {
            networks.insert((u32::MAX << (32 - length), address));
        }
    }
    let masks: BTreeSet<u32> = networks.iter().map(|(mask, _)| *mask).collect();
    let is_connected = |address: &Ipv4Addr| {
        masks
            .iter()
            .any(|mask| networks.contains(&(*mask, Ipv4Addr::from_bits(address.to_bits() & mask))))
    };
    let (connected, other): (Vec<_>, Vec<_>) = own.into_iter().partition(is_connected);
    connected.into_iter().chain(other).take(MAX_ADDRESSES).collect()
}

/// The addresses in /proc/PID/net/if_inet6, bounded.
fn inet6_addresses(lines: impl Iterator<Item = String>) -> BTreeSet<Ipv6Addr> {
    let address = |line: String| {
        let address = line.split_ascii_whitespace().next().filter(|word| word.len() == 32)?;
        Some(Ipv6Addr::from_bits(u128::from_str_radix(address, 16).ok()?))
    };
    lines.filter_map(address).take(MAX_ADDRESSES).collect()
}

/// `CurrEstab` of a process' namespace, by its folder in /proc; `None`: it has ended, or there is none.
pub fn established(process: &Path) -> Option<u64> {
    let mut snmp = String::new();
    let file = File::open(process.join("net/snmp")).ok()?;
    file.take(MOST).read_to_string(&mut snmp).ok()?;
    established_in(&snmp)
}

/// Of /proc/PID/net/snmp: a line of names and a line of values, which begin with the same word.
fn established_in(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let at = lines.next()?.split_ascii_whitespace().position(|name| name == "CurrEstab")?;
    lines.next()?.split_ascii_whitespace().nth(at)?.parse().ok()
}

/// The ports on which sockets of a process' namespace listen, but those bound to loopback, in order.
pub fn listening_ports(process: &Path) -> io::Result<Vec<u16>> {
    let mut ports = BTreeSet::new();
    let mut add = |line: &str| match socket_line(line) {
        SocketLine::Listening(address, port) => {
            if !address.to_canonical().is_loopback() {
                ports.insert(port);
            }
            true
        }
        SocketLine::NoSocket => true,
        SocketLine::Other => false,
    };
    first_lines(File::open(process.join("net/tcp"))?, &mut add)?;
    match File::open(process.join("net/tcp6")) {
        Ok(file) => first_lines(file, &mut add)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {} // a kernel without IPv6
        Err(error) => return Err(error),
    }
    Ok(ports.into_iter().collect())
}

/// Reads line by line, as long as `wants` is true.
fn first_lines(mut file: impl Read, wants: &mut impl FnMut(&str) -> bool) -> io::Result<()> {
    let (mut text, mut lines) = (Vec::new(), 0);
    loop {
        let mut part = [0; LINE];
        let read = file.read(&mut part)?;
        text.extend_from_slice(&part[..read]);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            lines += 1;
            if !wants(&String::from_utf8_lossy(&line)) || lines > MAX_LISTENERS {
                return Ok(());
            }
        }
        if read == 0 || text.len() > 16 * LINE {
            return Ok(());
        }
    }
}

/// The addresses of a process' namespace, but loopback, bounded.
pub fn local_addresses(process: &Path) -> BTreeSet<IpAddr> {
    let lines = |name: &str| {
        let file = File::open(process.join("net").join(name)).ok();
        file.into_iter()
            .flat_map(|file| BufReader::new(file.take(MOST)).lines().map_while(Result::ok))
    };
    let v4 = fib_addresses(lines("fib_trie")).into_iter().map(IpAddr::from);
    let v6 = inet6_addresses(lines("if_inet6")).into_iter().map(IpAddr::from);
    v4.chain(v6).filter(|address| !address.is_loopback()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn established_connections_are_found_by_name() {
        let snmp =
            "Ip: Forwarding DefaultTTL\nIp: 2 64\nTcp: MaxConn CurrEstab OutRsts\nTcp: -1 7 12\n";
        assert_eq!(established_in(snmp), Some(7));
        assert_eq!(established_in("Tcp: A CurrEstab\nTcp: 1\n"), None, "cut off");
        assert_eq!(established_in("Tcp: A\nTcp: 1\n"), None);
    }

    #[test]
    fn listening_sockets_have_an_address_and_a_port() {
        let v4 =
            "   0: 0200000A:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1";
        assert_eq!(socket_line(v4), SocketLine::Listening("10.0.0.2".parse().unwrap(), 8080));
        let v6 = "   1: 0000000000000000FFFF00000100007F:0050 00000000000000000000000000000000:0000 0A 0";
        let SocketLine::Listening(address, 80) = socket_line(v6) else { panic!("it listens") };
        assert!(address.to_canonical().is_loopback(), "{address}");
        assert_eq!(socket_line(&v4.replace("0A 0", "01 0")), SocketLine::Other);
        for other in ["  sl  local_address rem_address   st", "", "0: x:y z 0A", "0: 0200000A:1F9"]
        {
            assert_eq!(socket_line(other), SocketLine::NoSocket, "{other:?}");
        }
        let odd = v4.replace("0200000A", "é200000");
        assert_eq!(socket_line(&odd), SocketLine::NoSocket, "no byte of a letter is cut");
    }

    #[test]
    fn the_table_of_sockets_is_read_up_to_the_first_that_does_not_listen() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("net")).unwrap();
        let line = |number: u32, address: &str, port: u16, state: &str| {
            let text = format!("{number:4}: {address}:{port:04X} 00000000:0000 {state} 00000000");
            format!("{text:149}\n")
        };
        let tcp = [
            format!("{:149}\n", "  sl  local_address rem_address   st"),
            line(0, "00000000", 8080, "0A"),
            line(1, "0100007F", 9090, "0A"),
            line(2, "00000000", 443, "0A"),
            line(3, "00000000", 8080, "01"),
            line(4, "00000000", 1, "0A"),
        ];
        fs::write(folder.path().join("net/tcp"), tcp.concat()).unwrap();
        assert_eq!(listening_ports(folder.path()).unwrap(), [443, 8080]);
        let any = "0".repeat(32);
        let tcp6 =
            format!("  sl\n   0: {any}:0051 {any}:0000 0A 0\n   1: {any}:0052 {any}:0000 0A");
        fs::write(folder.path().join("net/tcp6"), tcp6).unwrap();
        assert_eq!(listening_ports(folder.path()).unwrap(), [81, 443, 8080], "not half a line");
        fs::write(folder.path().join("net/tcp"), vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(listening_ports(folder.path()).unwrap(), [81], "a line without an end");
    }

    #[test]
    fn only_local_addresses_are_the_namespaces_own() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("net")).unwrap();
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                    \x20    |-- 127.0.0.1\n        /32 host LOCAL\n\
                    \x20    |-- 192.0.2.0\n        /24 link UNICAST\n\
                    \x20    |-- 192.0.2.2\n        /32 host LOCAL\n\
                    \x20    |-- 192.0.2.255\n        /32 link BROADCAST\n";
        fs::write(folder.path().join("net/fib_trie"), trie.repeat(2)).unwrap();
        let inet6 = "fd000000000000000000000000000002 04 40 00 82     eth0\n\
                     00000000000000000000000000000001 01 80 10 80       lo\nnonsense\n";
        fs::write(folder.path().join("net/if_inet6"), inet6).unwrap();
        let found: Vec<String> =
            local_addresses(folder.path()).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.2", "fd00::2"]);
    }

    /// kube-ipvs0 has an address of each Service, in a trie that is in the order of the numbers.
    #[test]
    fn addresses_are_bounded_and_those_of_connected_networks_come_first() {
        let lines = (0..1000u128).map(|number| format!("{number:032x} 04 40 00 82 eth0"));
        assert_eq!(inet6_addresses(lines).len(), MAX_ADDRESSES);

        let service = |n: u32| format!("|-- 10.96.{}.{}\n/32 host LOCAL", n / 200, n % 200 + 1);
        let eth0 = "|-- 192.0.2.0\n/24 link UNICAST\n|-- 192.0.2.2\n/32 host LOCAL";
        let trie: Vec<_> = (0..1000).map(service).chain([eth0.to_owned()]).collect();
        let found = fib_addresses(trie.join("\n").lines().map(str::to_owned));
        assert_eq!((found.len(), found[0]), (MAX_ADDRESSES, Ipv4Addr::new(192, 0, 2, 2)));
    }
}
