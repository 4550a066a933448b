//! One connection of the server: what was asked and is not answered yet.

use super::wants;
use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read as _, Write as _},
    net::TcpStream,
    os::fd::AsRawFd as _,
    time::{Duration, Instant},
};

/// No request is longer.
const REQUEST: usize = 4096;

pub(super) struct ServedConnection {
    stream: TcpStream,
    reads: bool,
    /// A request that has not come as a whole.
    part: Vec<u8>,
    /// Requests, and when they are to be answered.
    asked: VecDeque<(Instant, Vec<u8>)>,
    /// What of the answers is not written yet.
    answers: Vec<u8>,
    /// The client sends no more.
    half_closed: bool,
}

impl ServedConnection {
    pub(super) fn new(stream: TcpStream, reads: bool) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            reads,
            part: Vec::new(),
            asked: VecDeque::new(),
            answers: Vec::new(),
            half_closed: false,
        })
    }

    /// What is to be waited for. Without any, poll(2) tells of a reset all the same.
    pub(super) fn wants(&self) -> libc::pollfd {
        let reads = if self.reads && !self.half_closed { libc::POLLIN } else { 0 };
        let writes = if self.answers.is_empty() { 0 } else { libc::POLLOUT };
        // A negative descriptor is passed over: one that is never read must not wake anybody.
        let descriptor = if self.reads { self.stream.as_raw_fd() } else { -1 };
        wants(descriptor, reads | writes)
    }

    /// When the next answer is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.asked.front().map(|(due, _)| *due)
    }

    /// Something was asked for, or is being sent.
    pub(super) fn is_busy(&self) -> bool {
        !self.asked.is_empty() || !self.answers.is_empty()
    }

    /// Reads, answers and writes as far as that can be done; false: it is over.
    pub(super) fn turn(&mut self, work: Duration, bytes: usize) -> bool {
        if !self.reads {
            return true;
        }
        let went_well = self.read(work).and_then(|()| {
            self.answer(bytes);
            self.write()
        });
        went_well.is_ok() && (!self.half_closed || self.is_busy())
    }

    /// Closes it with a reset.
    pub(super) fn reset(self) {
        // Where that cannot be set, the client sees an orderly end.
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    fn read(&mut self, work: Duration) -> io::Result<()> {
        let mut bytes = [0; REQUEST];
        while !self.half_closed {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.half_closed = true,
                Ok(length) => self.take(&bytes[..length], work)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8], work: Duration) -> io::Result<()> {
        for byte in bytes {
            if *byte == b'\n' {
                let request = std::mem::take(&mut self.part);
                self.asked.push_back((Instant::now() + work, request));
            } else if self.part.len() == REQUEST {
                return Err(ErrorKind::InvalidData.into());
            } else {
                self.part.push(*byte);
            }
        }
        Ok(())
    }

    fn answer(&mut self, bytes: usize) {
        let now = Instant::now();
        while let Some((_, request)) = self.asked.pop_front_if(|(due, _)| *due <= now) {
            let padding = bytes.saturating_sub(request.len() + 1);
            self.answers.extend(request);
            self.answers.resize(self.answers.len() + padding, b' ');
            self.answers.push(b'\n');
        }
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.answers.is_empty() {
            match self.stream.write(&self.answers) {
                Ok(length) => drop(self.answers.drain(..length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
