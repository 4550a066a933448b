//! A server whose requests and answers are lines: each answer is its request again. One thread and poll(2), so
//! that who closes what, and in which order, is decided here and by nobody else.

mod connection;
pub(crate) mod relay;

use crate::{
    log::{Event, line},
    process::{check, handle_term, leave},
};
use connection::ServedConnection;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    convert::Infallible,
    ffi::c_int,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::fd::AsRawFd as _,
    time::{Duration, Instant},
};

/// What it does when it is asked to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnStop {
    /// Exits at once, with all connections open.
    Exit,
    /// Takes what has connected, listens no more, answers what was asked, closes each connection when nothing
    /// is open on it, and exits after the last.
    Drain,
    /// Listens no more, and goes on with the connections that it has.
    Close,
    /// Goes on.
    Serve,
    /// Resets all connections and exits.
    Reset,
}

/// What it does with connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Takes {
    /// Accepts them and reads.
    All,
    /// Accepts none.
    None,
    /// Accepts them and reads nothing.
    Unread,
}

/// Where it listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Door {
    pub(crate) at: IpAddr,
    pub(crate) ports: Vec<u16>,
    /// Listeners for each port: with SO_REUSEPORT if they are several.
    pub(crate) sockets: u16,
    pub(crate) backlog: u16,
}

/// How it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StopBehaviour {
    pub(crate) on: OnStop,
    /// How long it goes on after the signal; `None`: a drain as long as it takes, all others for ever.
    pub(crate) after: Option<Duration>,
    pub(crate) exit: u8,
}

impl StopBehaviour {
    /// When it leaves, if it is asked to now.
    fn leaves_at(&self) -> Option<Instant> {
        self.after.map(|after| Instant::now() + after)
    }
}

/// How it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Manner {
    pub(crate) takes: Takes,
    /// From a request to its answer.
    pub(crate) work: Duration,
    /// The length of an answer, at least that of the request.
    pub(crate) bytes: usize,
}

/// Serves until it is stopped.
pub(crate) fn run(door: &Door, manner: Manner, stop: StopBehaviour) -> io::Result<Infallible> {
    let woken = handle_term()?;
    let mut server = Server {
        manner,
        stop,
        listeners: door.open()?,
        connections: Vec::new(),
        leaves_at: None,
        drains: false,
    };
    line(Event::Start);
    loop {
        server.turn(woken)?;
    }
}

struct Server {
    manner: Manner,
    stop: StopBehaviour,
    listeners: Vec<TcpListener>,
    connections: Vec<ServedConnection>,
    leaves_at: Option<Instant>,
    drains: bool,
}

impl Server {
    fn turn(&mut self, woken: c_int) -> io::Result<()> {
        let accepts = self.manner.takes != Takes::None;
        let mut polled = vec![wants(woken, libc::POLLIN)];
        if accepts {
            polled.extend(self.listeners.iter().map(|one| wants(one.as_raw_fd(), libc::POLLIN)));
        }
        polled.extend(self.connections.iter().map(ServedConnection::wants));
        poll(&mut polled, self.next())?;
        let stops = polled[0].revents != 0;
        if stops {
            let mut byte = [0u8; 16];
            // SAFETY: room for the bytes. What else is in the pipe wakes it again.
            check(unsafe { libc::read(woken, byte.as_mut_ptr().cast(), byte.len()) } as c_int)?;
        }
        if accepts {
            self.accept();
        }
        let work = self.manner.work;
        self.connections.retain_mut(|one| one.turn(work, self.manner.bytes));
        if stops && self.leaves_at.is_none() && !self.drains {
            self.begin_to_stop();
        }
        if self.drains {
            self.connections.retain(ServedConnection::is_busy);
        }
        let late = self.leaves_at.is_some_and(|at| Instant::now() >= at);
        if late || self.drains && self.connections.is_empty() {
            leave(self.stop.exit)
        }
        Ok(())
    }

    fn accept(&mut self) {
        let reads = self.manner.takes == Takes::All;
        for listener in &self.listeners {
            // One that has gone again, and a limit on open files, are no reason to end.
            while let Ok((stream, _)) = listener.accept() {
                if let Ok(connection) = ServedConnection::new(stream, reads) {
                    self.connections.push(connection);
                }
            }
        }
    }

    fn begin_to_stop(&mut self) {
        self.leaves_at = self.stop.leaves_at();
        match self.stop.on {
            OnStop::Exit => leave(self.stop.exit),
            OnStop::Drain => {
                self.listeners.clear();
                self.drains = true;
            }
            OnStop::Close => self.listeners.clear(),
            OnStop::Serve => {}
            OnStop::Reset => {
                self.connections.drain(..).for_each(ServedConnection::reset);
                leave(self.stop.exit)
            }
        }
    }

    /// When there is something to do that no socket tells of.
    fn next(&self) -> Option<Instant> {
        self.connections.iter().filter_map(ServedConnection::due).chain(self.leaves_at).min()
    }
}

impl Door {
    fn open(&self) -> io::Result<Vec<TcpListener>> {
        let ports = self.ports.iter().flat_map(|port| (0..self.sockets).map(move |_| *port));
        ports.map(|port| self.bind(port)).collect()
    }

    /// At `::` also for IPv4, and for nothing else where there is no IPv6.
    fn bind(&self, port: u16) -> io::Result<TcpListener> {
        let everywhere = self.at == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let socket = match Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)) {
            Ok(socket) if self.at.is_ipv6() => {
                socket.set_only_v6(!everywhere)?;
                return self.listen(&socket, (self.at, port).into()).map(|()| socket.into());
            }
            Err(error) if self.at.is_ipv6() && !everywhere => return Err(error),
            _ => Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?,
        };
        let at = if everywhere { Ipv4Addr::UNSPECIFIED.into() } else { self.at };
        self.listen(&socket, (at, port).into()).map(|()| socket.into())
    }

    fn listen(&self, socket: &Socket, at: SocketAddr) -> io::Result<()> {
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(self.sockets > 1)?;
        socket.bind(&at.into())?;
        socket.set_nonblocking(true)?;
        socket.listen(self.backlog.into())
    }
}

fn wants(descriptor: c_int, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd: descriptor, events, revents: 0 }
}

/// Waits for one of them, but not beyond `until`.
fn poll(all: &mut [libc::pollfd], until: Option<Instant>) -> io::Result<()> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // Rounded up: earlier it would find nothing to do.
    let ms = left.map_or(-1, |left| c_int::try_from(left.as_millis() + 1).unwrap_or(c_int::MAX));
    // SAFETY: a slice of as many.
    match check(unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, ms) }) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead as _, BufReader, Read as _, Write as _},
        net::TcpStream,
        thread,
    };

    fn door(at: IpAddr, sockets: u16) -> Door {
        Door { at, ports: vec![0], sockets, backlog: 16 }
    }

    #[test]
    fn everywhere_is_ipv4_and_ipv6() {
        let door = door(Ipv6Addr::UNSPECIFIED.into(), 1);
        let listener = door.open().unwrap().remove(0);
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        if listener.local_addr().unwrap().is_ipv6() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        }
    }

    #[test]
    fn several_sockets_share_a_port() {
        let first = door(Ipv4Addr::LOCALHOST.into(), 2).bind(0).unwrap();
        let port = first.local_addr().unwrap().port();
        let more = Door { ports: vec![port], ..door(Ipv4Addr::LOCALHOST.into(), 2) };
        assert_eq!(more.open().unwrap().len(), 2);
        let alone = Door { ports: vec![port], ..door(Ipv4Addr::LOCALHOST.into(), 1) };
        assert_eq!(alone.open().unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    /// The loop itself, without a signal: lines come back, padded, and two at once are two answers.
    #[test]
    fn each_line_comes_back() {
        let door = door(Ipv4Addr::LOCALHOST.into(), 1);
        let manner = Manner { takes: Takes::All, work: Duration::ZERO, bytes: 8 };
        let stop = StopBehaviour { on: OnStop::Exit, after: None, exit: 0 };
        let listeners = door.open().unwrap();
        let to = listeners[0].local_addr().unwrap();
        let client = thread::spawn(move || {
            let mut stream = TcpStream::connect(to).unwrap();
            stream.write_all(b"1\n2\n").unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let answers = [lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap()];
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "what is closed is closed");
            answers
        });
        let (mut reader, _writer) = io::pipe().unwrap();
        let mut server = Server {
            manner,
            stop,
            listeners,
            connections: Vec::new(),
            leaves_at: None,
            drains: false,
        };
        while !client.is_finished() {
            let soon = Instant::now() + Duration::from_millis(20);
            poll(&mut [wants(server.listeners[0].as_raw_fd(), libc::POLLIN)], Some(soon)).unwrap();
            server.accept();
            server.connections.retain_mut(|one| one.turn(manner.work, manner.bytes));
        }
        assert_eq!(client.join().unwrap(), ["1      ", "2      "]);
        drop(_writer);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}
