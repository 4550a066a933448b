//! As much of rtnetlink(7) as the lab's network needs, in the calling thread's network namespace.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage},
    link::{
        InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkMessage,
    },
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::{
    ffi::CString,
    io::{Error, ErrorKind, Result},
    net::IpAddr,
    os::fd::RawFd,
};

/// No acknowledgement is longer: the kernel repeats the request in it.
const ANSWER: usize = 8192;

/// A connection to the kernel.
pub(crate) struct Netlink(Socket);

/// One end of a veth pair: its name, and where it is.
pub(crate) struct LinkEnd<'a> {
    pub(crate) name: &'a str,
    /// Of a network namespace; `None`: the one of the connection.
    pub(crate) namespace: Option<RawFd>,
    /// The index of its bridge.
    pub(crate) bridge: Option<u32>,
    /// `None`: any.
    pub(crate) mac: Option<[u8; 6]>,
}

impl<'a> LinkEnd<'a> {
    /// In the namespace of the connection, with nothing else.
    pub(crate) fn here(name: &'a str) -> Self {
        Self { name, namespace: None, bridge: None, mac: None }
    }
}

impl Netlink {
    /// In the network namespace of the calling thread.
    pub(crate) fn connect() -> Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// Makes a bridge and brings it up.
    pub(crate) fn add_bridge(&self, name: &str, mac: [u8; 6]) -> Result<()> {
        // Given by somebody, the address stays when ports come and go.
        let mut link = link(&LinkEnd { mac: Some(mac), ..LinkEnd::here(name) });
        link.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]));
        self.create(RouteNetlinkMessage::NewLink(link)).map_err(|error| of_kind("bridge", &error))
    }

    /// Makes a veth pair and brings the near end up. The far one cannot be, before the kernel has made them a
    /// pair (`veth_open`).
    pub(crate) fn add_veth(&self, near: &LinkEnd<'_>, far: &LinkEnd<'_>) -> Result<()> {
        let mut pair = link(near);
        let mut far = link(far);
        far.header = LinkHeader::default();
        pair.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(far))),
        ]));
        self.create(RouteNetlinkMessage::NewLink(pair)).map_err(|error| of_kind("veth", &error))
    }

    /// Brings an interface up.
    pub(crate) fn bring_up(&self, name: &str) -> Result<()> {
        let link = link(&LinkEnd::here(name));
        self.ask(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Removes an interface, and with it the other end of a pair. None of this name is no error.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.into()));
        match self.ask(RouteNetlinkMessage::DelLink(link), 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            other => other,
        }
    }

    /// Gives an interface an address. IPv6: without looking for duplicates, which takes a second.
    pub(crate) fn add_address(&self, index: u32, address: IpAddr, prefix: u8) -> Result<()> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = prefix;
        message.header.family = match address {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes =
            vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        self.create(RouteNetlinkMessage::NewAddress(message))
    }

    fn create(&self, message: RouteNetlinkMessage) -> Result<()> {
        self.ask(message, NLM_F_CREATE | NLM_F_EXCL)
    }

    fn ask(&self, message: RouteNetlinkMessage, flags: u16) -> Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut request = vec![0; message.buffer_len()];
        message.serialize(&mut request);
        self.0.send(&request, 0)?;
        let mut answer = Vec::with_capacity(ANSWER);
        self.0.recv(&mut answer, 0)?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
            .map_err(|error| Error::new(ErrorKind::InvalidData, error.to_string()))?;
        match answer.payload {
            NetlinkPayload::Error(answer) if answer.code.is_some() => Err(answer.to_io()),
            NetlinkPayload::Error(_) => Ok(()),
            other => Err(Error::new(ErrorKind::InvalidData, format!("{other:?}"))),
        }
    }
}

fn link(end: &LinkEnd<'_>) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    link.attributes.push(LinkAttribute::IfName(end.name.into()));
    link.attributes.extend(end.namespace.map(LinkAttribute::NetNsFd));
    link.attributes.extend(end.bridge.map(LinkAttribute::Controller));
    link.attributes.extend(end.mac.map(|mac| LinkAttribute::Address(mac.into())));
    link
}

/// The kernel asks for the module of a kind that it has not got, and answers so where there is none.
fn of_kind(kind: &str, error: &Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            format!("; this kernel has no module {kind}: load it (modprobe {kind}) or install it")
        }
        Some(libc::EPERM) => "; it takes the capability NET_ADMIN".into(),
        _ => String::new(),
    };
    Error::new(error.kind(), format!("cannot make a {kind} interface: {error}{remedy}"))
}

/// The number of an interface.
pub(crate) fn index(name: &str) -> Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: a string that ends with a zero.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(Error::last_os_error()),
        index => Ok(index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_the_kernel_lacks_is_named_with_its_remedy() {
        let error = of_kind("veth", &Error::from_raw_os_error(libc::EOPNOTSUPP)).to_string();
        assert!(error.contains("modprobe veth"), "{error}");
        let error = of_kind("bridge", &Error::from_raw_os_error(libc::EPERM)).to_string();
        assert!(error.contains("NET_ADMIN"), "{error}");
        let error = of_kind("bridge", &Error::from_raw_os_error(libc::EEXIST)).to_string();
        assert!(!error.contains("modprobe"), "{error}");
    }
}
