//! Network namespaces, servers in them, and clients. Without any device but loopback, which an empty machine has:
//! all of 10.0.0.0/8 is local there, and two addresses of IPv6. What is between two of them is not internal.

use crate::stage;
use coroner::sources::kernel::{
    Kernel,
    counting::{Counting, counts},
};
use coroner_core::{
    input::{ConnectionEvent, TrafficPeer},
    time::BootTime,
};
use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt::set_socket_reuseaddr},
    pipe::{PipeFlags, pipe_with},
};
use std::{
    ffi::c_int,
    fs, io,
    io::{Read, Write},
    mem,
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    os::{
        fd::{AsRawFd, IntoRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
    time::{Duration, Instant},
};

/// Where servers listen and where clients connect from.
pub(crate) const SERVER: &str = "10.0.0.1:8080";
pub(crate) const CLIENT: &str = "10.0.0.2:0";

/// A network namespace that is marked, with the calling thread in it.
pub(crate) struct TestNetwork<'k> {
    pub(crate) netns: u32,
    pub(crate) counting: &'k mut Counting,
}

/// Runs a test in a network namespace that is marked.
pub(crate) fn in_network(kernel: &mut Kernel, test: impl FnOnce(&mut TestNetwork<'_>) + Send) {
    let mut counting = kernel.take_counting().expect("taken once");
    counting.attach().unwrap();
    let run = || {
        let mut network = TestNetwork { netns: unshare(), counting: &mut counting };
        network.start_over();
        test(&mut network);
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| {
        std::panic::resume_unwind(panic);
    });
}

/// A network namespace of the calling thread's own, with loopback; its inode.
pub(crate) fn unshare() -> u32 {
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
    set_up_loopback().unwrap();
    fs::metadata("/proc/thread-self/ns/net").unwrap().ino() as u32
}

fn set_up_loopback() -> io::Result<()> {
    let v4 = socket(AddressFamily::INET)?;
    let mut up = named("lo");
    up.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    ioctl(&v4, libc::SIOCSIFFLAGS as _, (&raw const up).cast())?;
    // With the mask of its class.
    let mut request = named("lo:1");
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([10, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    // SAFETY: of the same size; the call reads it by its family.
    request.ifr_ifru.ifru_addr =
        unsafe { mem::transmute::<libc::sockaddr_in, libc::sockaddr>(address) };
    ioctl(&v4, libc::SIOCSIFADDR as _, (&raw const request).cast())?;
    // struct in6_ifreq, include/uapi/linux/ipv6.h.
    let v6 = socket(AddressFamily::INET6)?;
    for last in [1, 2] {
        let mut request = [0u8; 24];
        (request[0], request[15]) = (0xfd, last);
        request[16..20].copy_from_slice(&128u32.to_ne_bytes());
        request[20..].copy_from_slice(&1u32.to_ne_bytes());
        ioctl(&v6, libc::SIOCSIFADDR as _, request.as_ptr())?;
        // It is tentative, and cannot be bound, until a worker of the kernel has run (addrconf_dad_begin).
        let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into());
        stage::wait_for(Duration::from_millis(1), || {
            UdpSocket::bind((address, 0)).map_err(|error| format!("{address}: {error}"))
        });
    }
    Ok(())
}

fn socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

fn named(name: &str) -> libc::ifreq {
    // SAFETY: all zeroes are one.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn ioctl(socket: &OwnedFd, what: libc::c_ulong, request: *const u8) -> io::Result<()> {
    // SAFETY: the request is of the type that the call takes, and outlives it.
    match unsafe { libc::ioctl(socket.as_raw_fd(), what as _, request) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

impl TestNetwork<'_> {
    /// Nothing was counted before.
    pub(crate) fn start_over(&mut self) {
        self.counting.remove(self.netns);
        self.counting.insert(self.netns, &[]).unwrap();
    }

    /// Waits until exactly this was counted: what the network brings may come a moment later.
    pub(crate) fn expect(&self, expected: &[(TrafficPeer, ConnectionEvent, u64)]) {
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let counts = counts(&self.counting.read(self.netns).expect("an entry"));
            let counted: Vec<_> =
                counts.iter().map(|one| (one.peer, one.event, one.count)).collect();
            assert!(counts.iter().all(|one| one.first <= one.last && one.first > BootTime(0)));
            if counted == expected {
                return;
            }
            assert!(Instant::now() < until, "{counted:?}, not {expected:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A connection from an address to another.
pub(crate) fn connect(from: &str, to: &str) -> TcpStream {
    try_connect(from, to).unwrap()
}

pub(crate) fn try_connect(from: &str, to: &str) -> io::Result<TcpStream> {
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let stream = stream_socket(&from)?;
    rustix::net::bind(&stream, &from)?;
    rustix::net::connect(&stream, &to)?;
    Ok(stream.into())
}

fn stream_socket(of: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Reads up to the end, whatever that is.
pub(crate) fn drain(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

/// A process with a listener and connections, which does what it is told. Killed and reaped when dropped.
pub(crate) struct TestServer {
    pub(crate) pid: libc::pid_t,
    orders: fs::File,
    done: fs::File,
}

impl TestServer {
    /// One that listens, in the network namespace of the calling thread, and in a cgroup.
    pub(crate) fn listening(address: &str, cgroup: Option<&Path>) -> Self {
        let address = address.parse().unwrap();
        let (orders, order) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (done, do_) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (orders_fd, order_fd, do_fd) = (orders.as_raw_fd(), order.as_raw_fd(), do_.as_raw_fd());
        // SAFETY: the child calls nothing but plain system calls, and never returns.
        let pid = match unsafe { libc::fork() } {
            0 => unsafe {
                libc::close(order_fd);
                obey(address, orders_fd, do_fd)
            },
            pid => pid,
        };
        assert!(pid > 0);
        if let Some(cgroup) = cgroup {
            fs::write(cgroup.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        let mut server = Self { pid, orders: order.into(), done: done.into() };
        server.act("l");
        server
    }

    /// `l`isten, `a`ccept, `r`ead from the last connection, `w`rite to it, wait until all is ac`k`nowledged, `f`ill
    /// it, `c`lose it, have its end be a reset (`z`), `s`top listening, c`o`nnect to port 9090 of the same address.
    pub(crate) fn act(&mut self, orders: &str) {
        for order in orders.bytes() {
            self.orders.write_all(&[order]).unwrap();
            let mut answer = [0];
            self.done.read_exact(&mut answer).unwrap();
            assert_eq!(answer[0], b'+', "{} of {orders}", char::from(order));
        }
    }

    /// Acts for one new client, which reads until the connection ends.
    pub(crate) fn serve(&mut self, from: &str, to: &str, orders: &str) {
        let client = connect(from, to);
        self.act(orders);
        drain(client);
    }

    /// Exits by itself.
    pub(crate) fn exit(mut self) {
        self.orders.write_all(b"x").unwrap();
        // SAFETY: a child that is not reaped: the pid is its.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        self.pid = 0;
    }

    pub(crate) fn signal(&self, signal: c_int) {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::kill(self.pid, signal) }, 0);
    }

    /// Is killed by SIGKILL.
    pub(crate) fn kill(self) {}
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if self.pid != 0 {
            // SAFETY: as above.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// The child.
unsafe fn obey(address: SocketAddr, orders: c_int, done: c_int) -> ! {
    static FILL: [u8; 1 << 16] = [7; 1 << 16];
    let (mut listener, mut connections, mut count) = (-1, [-1; 64], 0);
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::signal(libc::SIGTERM, libc::SIG_IGN);
        let mut order = 0u8;
        while libc::read(orders, (&raw mut order).cast(), 1) == 1 {
            let last: c_int = connections[(count + 63) % 64];
            let mut buffer = [0u8; 4096];
            let done_well = match order {
                b'l' => stream_socket(&address).is_ok_and(|socket| {
                    let listens = set_socket_reuseaddr(&socket, true)
                        .and_then(|()| rustix::net::bind(&socket, &address))
                        .and_then(|()| rustix::net::listen(&socket, 64));
                    listener = socket.into_raw_fd();
                    listens.is_ok()
                }),
                b'a' => {
                    connections[count] =
                        libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut());
                    count += 1;
                    connections[count - 1] >= 0
                }
                b'r' => libc::read(last, buffer.as_mut_ptr().cast(), buffer.len()) > 0,
                b'w' => libc::write(last, c"!".as_ptr().cast(), 1) == 1,
                b'k' => loop {
                    let mut left: c_int = 0;
                    if libc::ioctl(last, libc::TIOCOUTQ, &raw mut left) != 0 || left == 0 {
                        break left == 0;
                    }
                    libc::usleep(1000);
                },
                b'f' => {
                    while libc::send(last, FILL.as_ptr().cast(), FILL.len(), libc::MSG_DONTWAIT) > 0
                    {
                    }
                    true
                }
                b'c' => {
                    count -= 1;
                    libc::close(last) == 0
                }
                b'z' => {
                    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                    let option = (&raw const linger).cast();
                    libc::setsockopt(last, libc::SOL_SOCKET, libc::SO_LINGER, option, 8) == 0
                }
                b's' => libc::close(listener) == 0,
                b'o' => stream_socket(&address).is_ok_and(|socket| {
                    let from = SocketAddr::from(([10, 0, 0, 7], 0));
                    let to = SocketAddr::new(address.ip(), 9090);
                    let connected = rustix::net::bind(&socket, &from)
                        .and_then(|()| rustix::net::connect(&socket, &to));
                    connections[count] = socket.into_raw_fd();
                    count += 1;
                    connected.is_ok()
                }),
                _ => libc::_exit(0),
            };
            let answer = if done_well { b'+' } else { b'-' };
            libc::write(done, (&raw const answer).cast(), 1);
        }
        libc::_exit(0)
    }
}

/// An address without its port.
pub(crate) fn ip(address: &str) -> IpAddr {
    address.parse::<SocketAddr>().unwrap().ip()
}
