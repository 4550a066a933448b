//! A pod and a client in two network namespaces with a wire (veth) between them: only so are there refused
//! connections that are not internal.

use super::network::{
    TestNetwork, TestServer, assign, connect, drain, in_network, raise, socket, try_connect,
    unshare,
};
use crate::stage;
use coroner_core::input::{ConnectionEvent::*, TrafficPeer::Client};
use rustix::net::AddressFamily;
use std::{
    fs::File,
    io::{self, ErrorKind},
    os::fd::AsRawFd,
    sync::mpsc,
};

// include/uapi/linux/if_link.h, rtnetlink.h and veth.h.
const RTM_NEWLINK: u16 = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
/// `struct ifinfomsg`, of no device in particular.
const NO_DEVICE: [u8; 16] = [0; 16];

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Makes `pod0` here and its peer `client0` in another network namespace.
fn wire(other: &File) -> io::Result<()> {
    let peer = [
        NO_DEVICE.to_vec(),
        attribute(IFLA_IFNAME, b"client0\0"),
        attribute(IFLA_NET_NS_FD, &other.as_raw_fd().to_ne_bytes()),
    ];
    let data = attribute(IFLA_INFO_DATA, &attribute(VETH_INFO_PEER, &peer.concat()));
    let info = [attribute(IFLA_INFO_KIND, b"veth"), data].concat();
    let body =
        [NO_DEVICE.to_vec(), attribute(IFLA_IFNAME, b"pod0\0"), attribute(IFLA_LINKINFO, &info)]
            .concat();
    let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend((flags as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    let netlink = socket(AddressFamily::NETLINK)?;
    rustix::io::write(&netlink, &message)?;
    let mut answer = [0; 512];
    let read = rustix::io::read(&netlink, &mut answer)?;
    assert!(read >= 20, "an answer of {read} bytes");
    let error = i32::from_ne_bytes(answer[16..20].try_into().expect("four bytes"));
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-error)) }
}

/// Runs a function in a network namespace that has the other end of the wire.
struct Clients {
    work: mpsc::Sender<Box<dyn FnOnce() + Send>>,
    done: mpsc::Receiver<()>,
    namespace: File,
}

impl Clients {
    fn start() -> Self {
        let (work, to_do) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (tell, done) = mpsc::channel();
        let (give, namespace) = mpsc::channel();
        std::thread::spawn(move || {
            unshare();
            give.send(File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
            for work in to_do {
                work();
                tell.send(()).unwrap();
            }
        });
        Self { work, done, namespace: namespace.recv().unwrap() }
    }

    fn act(&self, work: impl FnOnce() + Send + 'static) {
        self.work.send(Box::new(work)).unwrap();
        self.done.recv().expect("it did not panic");
    }
}

const ADDRESS: &str = "192.168.7.1:8080";
const FROM: &str = "192.168.7.2:0";

#[test]
fn refused_connections() {
    let _machine = stage::machine();
    let hierarchy = stage::v2();
    let mut kernel = stage::start(&stage::options(&hierarchy));
    in_network(&mut kernel, |network| {
        let clients = Clients::start();
        match wire(&clients.namespace) {
            Ok(()) => over(network, &clients),
            // The guests' kernels have veth as a module, and the guests have no modules.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                eprintln!("this kernel has no veth: {error}");
            }
            Err(error) => panic!("{error}"),
        }
    });
}

fn over(network: &mut TestNetwork<'_>, clients: &Clients) {
    assign("pod0", "192.168.7.1:0").unwrap();
    raise("pod0").unwrap();
    clients.act(|| {
        assign("client0", "192.168.7.2:0").unwrap();
        raise("client0").unwrap();
    });
    let is_visible = stage::tracepoint("tcp_send_reset").len() >= 3;
    let mut server = TestServer::listening(ADDRESS, None);
    let (give, connections) = mpsc::channel();
    clients.act(move || give.send(connect(FROM, ADDRESS)).unwrap());
    server.act("a");
    let open = connections.recv().unwrap();
    server.act("s");
    clients.act(|| {
        for _ in 0..3 {
            let error = try_connect(FROM, ADDRESS).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
    });
    server.kill();
    drain(open);
    let mut expected = vec![(Client, Opened, 1), (Client, CutIdle, 1), (Client, ListenerClosed, 1)];
    expected.extend(is_visible.then_some((Client, Refused, 3)));
    network.expect(&expected);
}
