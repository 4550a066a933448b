//! As much HTTP as a hook and a call need.

use crate::{
    log::{Event, line},
    process::{block, wait_for},
};
use std::{
    convert::Infallible,
    env,
    io::{self, Error, Read as _, Write as _},
    net::{IpAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

/// No request and no answer that is read here is longer.
const ENOUGH: usize = 4096;
/// How long the other side may be silent.
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers at this address from now on, each request `work` after it came: the first `good` ones with 200, the others
/// with 500; `None`: all with 200. After SIGUSR1 all get 500.
pub(crate) fn serve(at: IpAddr, port: u16, work: Duration, good: Option<u32>) -> io::Result<()> {
    static IS_BAD: AtomicBool = AtomicBool::new(false);
    let listener = TcpListener::bind((at, port))?;
    let set = block(&[libc::SIGUSR1])?;
    thread::Builder::new().name("signal".into()).spawn(move || {
        if wait_for(&set).is_ok() {
            IS_BAD.store(true, Relaxed);
        }
    })?;
    thread::Builder::new().name("server".into()).spawn(move || {
        for (before, stream) in listener.incoming().flatten().enumerate() {
            let is_good = good.is_none_or(|good| before < good as usize) && !IS_BAD.load(Relaxed);
            let status = if is_good { "200 OK" } else { "500 Internal Server Error" };
            // A client that breaks off is no reason to end.
            let _ = answer(stream, work, status);
        }
    })?;
    Ok(())
}

fn answer(mut stream: TcpStream, work: Duration, status: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let mut part = [0; 512];
    while request.len() < ENOUGH && !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut part)? {
            0 => break,
            length => request.extend_from_slice(&part[..length]),
        }
    }
    thread::sleep(work);
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

/// Calls the apiserver for ever, and writes a line for each call that was answered well.
pub(crate) fn call_for_ever(every: Duration) -> io::Result<Infallible> {
    let variable = |name| env::var(name).map_err(|error| Error::other(format!("{name}: {error}")));
    let address = format!(
        "{}:{}",
        variable("KUBERNETES_SERVICE_HOST")?,
        variable("KUBERNETES_SERVICE_PORT")?
    );
    loop {
        // One that fails is one that is missing in the record.
        if call(&address).unwrap_or(false) {
            line(Event::Called);
        }
        thread::sleep(every);
    }
}

fn call(address: &str) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "GET /api/v1/namespaces/default HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut status = Vec::new();
    stream.take(ENOUGH as u64).read_to_end(&mut status)?;
    Ok(status.starts_with(b"HTTP/1.1 200"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn what_it_serves_it_can_call() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        assert!(call(&address.to_string()).is_err(), "nobody listens yet");
        serve(address.ip(), address.port(), Duration::ZERO, Some(2)).unwrap();
        let answers = [(); 3].map(|()| call(&address.to_string()).unwrap());
        assert_eq!(answers, [true, true, false]);
    }
}
