//! Servers: of lines, each answer being its request again, and relays. A thread for each connection; who closes what,
//! and in which order, is decided here alone.

use crate::{
    args::{Door, OnStop, Stop},
    log::{Event, line},
    process::{handle_term, leave, sleep_forever, wait_for_wake},
};
use std::{
    collections::HashMap,
    convert::Infallible,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Between two looks at whether a drain is done.
const LOOK: Duration = Duration::from_millis(5);

/// What is done with a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Service {
    /// Answers a line after so long.
    Lines(Duration),
    /// Hands it on to a port of 127.0.0.1.
    Relay(u16),
}

/// The connections by number, and whether something was asked on each that is not answered.
#[derive(Clone, Default)]
struct Open(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u64,
    connections: HashMap<u64, (TcpStream, bool)>,
    drains: bool,
}

impl Open {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_busy(&self, number: u64, is_busy: bool) {
        if let Some((_, busy)) = self.lock().connections.get_mut(&number) {
            *busy = is_busy;
        }
    }

    fn accept(&self, stream: TcpStream, service: Service) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let number = {
            let mut state = self.lock();
            state.next += 1;
            let number = state.next;
            state.connections.insert(number, (stream.try_clone()?, false));
            number
        };
        let open = self.clone();
        thread::Builder::new().name("connection".into()).spawn(move || {
            // The other side sees how it ended.
            let _ = match service {
                Service::Lines(work) => open.answer(&stream, number, work),
                Service::Relay(to) => hand_on(&stream, to),
            };
            open.lock().connections.remove(&number);
        })?;
        Ok(())
    }

    fn answer(&self, stream: &TcpStream, number: u64, work: Duration) -> io::Result<()> {
        let (mut reader, mut request) = (BufReader::new(stream), Vec::new());
        while !self.lock().drains && reader.read_until(b'\n', &mut request)? > 0 {
            self.set_busy(number, true);
            thread::sleep(work);
            let mut to = stream;
            to.write_all(&request)?;
            request.clear();
            self.set_busy(number, false);
        }
        Ok(())
    }

    /// Closes what is idle; what is busy closes itself.
    fn drain(&self) {
        let mut state = self.lock();
        state.drains = true;
        for (stream, is_busy) in state.connections.values() {
            if !is_busy {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

/// Serves until it is stopped.
pub(crate) fn run(door: &Door, service: Service, stop: Stop) -> io::Result<Infallible> {
    let woken = handle_term()?;
    let listeners = Arc::new(door.open()?);
    let open = Open::default();
    for index in 0..listeners.len() {
        let (listeners, open) = (listeners.clone(), open.clone());
        thread::Builder::new().name("listener".into()).spawn(move || {
            // A listener that was shut down ends it.
            while let Ok((stream, _)) = listeners[index].accept() {
                // One that has gone again is no reason to end.
                let _ = open.accept(stream, service);
            }
        })?;
    }
    line(Event::Start);
    wait_for_wake(woken)?;
    if stop.on == OnStop::Exit {
        leave(0)
    }
    if stop.on != OnStop::Serve {
        close(&listeners);
    }
    if stop.on == OnStop::Drain {
        open.drain();
        while !open.lock().connections.is_empty() {
            thread::sleep(LOOK);
        }
        leave(0)
    }
    let Some(after) = stop.after else { sleep_forever() };
    thread::sleep(after);
    leave(0)
}

/// Shut down, a listener leaves the state LISTEN, and the threads in accept(2) return.
fn close(listeners: &[TcpListener]) {
    for listener in listeners {
        // SAFETY: a descriptor that is open.
        unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl Door {
    /// At `0.0.0.0` instead of `::` where there is no IPv6.
    fn open(&self) -> io::Result<Vec<TcpListener>> {
        let everywhere = self.at == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let bind = |port: &u16| match TcpListener::bind((self.at, *port)) {
            Err(_) if everywhere => TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)),
            bound => bound,
        };
        self.ports.iter().map(bind).collect()
    }
}

fn hand_on(client: &TcpStream, to: u16) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, to))?;
    server.set_nodelay(true)?;
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = io::copy(&mut &*client, &mut &server);
            let _ = server.shutdown(Shutdown::Write);
        });
        let copied = io::copy(&mut &server, &mut &*client);
        // The application has closed it: so is the client's connection.
        let _ = client.shutdown(Shutdown::Both);
        copied.map(drop)
    })
}
