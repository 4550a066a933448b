//! As much HTTP as a hook and a call need.

use crate::log::{Event, line};
use std::{
    convert::Infallible,
    env,
    io::{self, BufRead as _, BufReader, Error, Read as _, Write as _},
    net::{Ipv6Addr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

/// How long the other side may be silent.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Answers at this port from now on, each request `work` after it came.
pub(crate) fn serve(port: u16, work: Duration) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
    thread::Builder::new().name("server".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that breaks off is no reason to end.
            let _ = answer(stream, work);
        }
    })?;
    Ok(())
}

fn answer(mut stream: TcpStream, work: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let lines = BufReader::new(&stream).lines();
    // The head ends with an empty line.
    lines.map_while(Result::ok).find(String::is_empty);
    thread::sleep(work);
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

/// Calls the apiserver forever, and writes a line for each call that was answered well.
pub(crate) fn call_forever(every: Duration) -> io::Result<Infallible> {
    let variable = |name| env::var(name).map_err(|error| Error::other(format!("{name}: {error}")));
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    loop {
        // One that fails is missing in the record.
        if call(&format!("{host}:{port}")).unwrap_or(false) {
            line(Event::Called);
        }
        thread::sleep(every);
    }
}

fn call(address: &str) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(
        stream,
        "GET /api/v1/namespaces/default HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}
