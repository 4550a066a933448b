//! Ports of 127.0.0.1 for programs that have to be given one.

use anyhow::{Context as _, Result};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
};

/// A port that no other program gets for as long as this lives: the socket is bound, and never listens. The program that
/// the port is for can listen on it, because it sets SO_REUSEADDR as every server does. The kernel, when it chooses a
/// port, passes over a bound one (`inet_csk_bind_conflict`, net/ipv4/inet_connection_sock.c).
#[derive(Debug)]
pub struct Port {
    _bound: OwnedFd,
    address: SocketAddr,
}

impl Port {
    /// Reserves a port that is free.
    pub fn reserve() -> Result<Self> {
        let reserve = || {
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
            bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            // Only now: the bind itself must not share.
            sockopt::set_socket_reuseaddr(&socket, true)?;
            let address = SocketAddr::try_from(getsockname(&socket)?)?;
            rustix::io::Result::Ok(Self { _bound: socket, address })
        };
        reserve().context("cannot reserve a port of 127.0.0.1")
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn number(&self) -> u16 {
        self.address.port()
    }
}
