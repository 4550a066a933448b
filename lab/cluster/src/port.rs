//! Ports of 127.0.0.1 for programs that have to be given one.

use anyhow::Context as _;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket_with, sockopt};
use std::{
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
};

/// A port that nobody else on this machine gets for as long as this lives: the socket is bound, and
/// never listens. The program that the port is for can listen on it, because it asks for SO_REUSEADDR
/// as every server does. [`Port::reserve`] and the kernel, when it chooses a port itself, ask for it
/// alone and pass over a bound one (`inet_csk_bind_conflict`, net/ipv4/inet_connection_sock.c).
#[derive(Debug)]
pub struct Port {
    _bound: OwnedFd,
    address: SocketAddr,
}

impl Port {
    /// Reserves a port that is free.
    pub fn reserve() -> anyhow::Result<Self> {
        let reserve = || {
            let flags = rustix::net::SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
            bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            // Only now: the bind itself must not share.
            sockopt::set_socket_reuseaddr(&socket, true)?;
            let address = SocketAddr::try_from(getsockname(&socket)?)?;
            rustix::io::Result::Ok(Self { _bound: socket, address })
        };
        reserve().context("cannot reserve a port of 127.0.0.1")
    }

    /// 127.0.0.1 and its number.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn number(&self) -> u16 {
        self.address.port()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::BTreeSet,
        net::{TcpListener, TcpStream},
    };

    #[test]
    fn who_it_is_for_can_listen_and_listen_again() {
        let port = Port::reserve().unwrap();
        for _ in 0..2 {
            let listener = TcpListener::bind(port.address()).unwrap();
            let there = TcpStream::connect(port.address()).unwrap();
            drop((listener.accept().unwrap(), there));
        }
    }

    #[test]
    fn it_is_given_once() {
        let ports: Vec<Port> = (0..200).map(|_| Port::reserve().unwrap()).collect();
        // The standard library asks for SO_REUSEADDR, as servers do.
        let others: Vec<TcpListener> =
            (0..200).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
        let numbers: BTreeSet<u16> = ports
            .iter()
            .map(Port::number)
            .chain(others.iter().map(|other| other.local_addr().unwrap().port()))
            .collect();
        assert_eq!(numbers.len(), 400);
    }
}
