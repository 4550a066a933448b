//! A sidecar: hands each connection on to a port of its own loopback, and the answers back.

use super::{Door, OnStop, StopBehaviour, poll, wants};
use crate::{
    log::{Event, line},
    process::{check, handle_term, leave},
};
use std::{
    collections::HashMap,
    convert::Infallible,
    ffi::c_int,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Between two looks at whether all connections have ended.
const LOOK: Duration = Duration::from_millis(5);
/// A thread that only copies.
const STACK: usize = 128 << 10;
/// What the client gets where nobody listens behind it.
const NOBODY: &[u8] = b"502\n";

/// The clients' connections, by number.
type Open = Arc<Mutex<HashMap<u64, TcpStream>>>;

/// Hands on until it is stopped.
pub(crate) fn run(door: &Door, to: u16, stop: StopBehaviour) -> io::Result<Infallible> {
    let woken = handle_term()?;
    let mut listeners = door.open()?;
    let open = Open::default();
    let (mut number, mut stops, mut leaves_at) = (0, false, None);
    line(Event::Start);
    loop {
        let mut polled: Vec<_> =
            listeners.iter().map(|one| wants(one.as_raw_fd(), libc::POLLIN)).collect();
        if !stops {
            polled.push(wants(woken, libc::POLLIN));
        }
        let drains = stops && stop.on == OnStop::Drain;
        let look = drains.then(|| Instant::now() + LOOK);
        poll(&mut polled, look.into_iter().chain(leaves_at).min())?;
        accept(&listeners, to, &open, &mut number)?;
        if !stops && polled.last().is_some_and(|signal| signal.revents != 0) {
            let mut byte = 0u8;
            // SAFETY: room for the one byte.
            check(unsafe { libc::read(woken, (&raw mut byte).cast(), 1) } as c_int)?;
            (stops, leaves_at) = (true, stop.leaves_at());
            begin_to_stop(&mut listeners, &open, stop);
        }
        let drained = stops && stop.on == OnStop::Drain && lock(&open).is_empty();
        if drained || leaves_at.is_some_and(|at| Instant::now() >= at) {
            leave(stop.exit)
        }
    }
}

fn lock(open: &Open) -> MutexGuard<'_, HashMap<u64, TcpStream>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

fn begin_to_stop(listeners: &mut Vec<TcpListener>, open: &Open, stop: StopBehaviour) {
    match stop.on {
        OnStop::Exit => leave(stop.exit),
        OnStop::Drain | OnStop::Close => listeners.clear(),
        OnStop::Serve => {}
        OnStop::Reset => {
            // The exit closes them.
            for client in lock(open).values() {
                let _ = socket2::SockRef::from(client).set_linger(Some(Duration::ZERO));
            }
            leave(stop.exit)
        }
    }
}

fn accept(listeners: &[TcpListener], to: u16, open: &Open, number: &mut u64) -> io::Result<()> {
    for listener in listeners {
        while let Ok((client, _)) = listener.accept() {
            *number += 1;
            let (number, open) = (*number, Arc::clone(open));
            lock(&open).insert(number, client.try_clone()?);
            thread::Builder::new().name("relay".into()).stack_size(STACK).spawn(move || {
                // The other side sees that it ended; nobody asks why.
                let _ = hand_on(client, to);
                lock(&open).remove(&number);
            })?;
        }
    }
    Ok(())
}

fn hand_on(mut client: TcpStream, to: u16) -> io::Result<()> {
    // Accepted from a listener that does not block, it blocks all the same (accept(2)).
    client.set_nodelay(true)?;
    let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)) else {
        // Read first: closed with data unread, it would be a reset.
        let _request = client.read(&mut [0; 4096])?;
        return client.write_all(NOBODY);
    };
    server.set_nodelay(true)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let asks = thread::Builder::new().name("relay".into()).stack_size(STACK).spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    })?;
    let copied = io::copy(&mut server, &mut client);
    // The one who answers has ended: so does the client's connection.
    let _ = client.shutdown(Shutdown::Both);
    let _ = asks.join();
    copied.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_handed_on_and_an_end_too() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = server.local_addr().unwrap().port();
        let outside = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        outside.set_nonblocking(true).unwrap();
        let mut client = TcpStream::connect(outside.local_addr().unwrap()).unwrap();
        let open = Open::default();
        while lock(&open).is_empty() {
            accept(std::slice::from_ref(&outside), to, &open, &mut 0).unwrap();
        }
        let (mut inner, _) = server.accept().unwrap();
        client.write_all(b"1\n").unwrap();
        let mut bytes = [0; 2];
        inner.read_exact(&mut bytes).unwrap();
        inner.write_all(&bytes).unwrap();
        drop(inner);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "1\n");
        while !lock(&open).is_empty() {
            thread::yield_now();
        }
    }

    #[test]
    fn where_nobody_listens_the_answer_says_so() {
        let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = nobody.local_addr().unwrap().port();
        drop(nobody);
        let outside = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(outside.local_addr().unwrap()).unwrap();
        let (accepted, _) = outside.accept().unwrap();
        client.write_all(b"1\n").unwrap();
        hand_on(accepted, to).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.as_bytes(), NOBODY);
    }
}
