//! Writes a recording: JSON lines through gzip.

use super::format::{Header, Mark, MarkKind, RecordingEnd, Stopped};
use coroner_core::{input::Received, time::BootTime};
use flate2::{Compression, write::GzEncoder};
use serde::Serialize;
use std::io::{self, Write};

/// Writes the lines of one recording. What was flushed can be read even if nothing follows.
#[derive(Debug)]
pub struct Writer<W: Write> {
    gzip: GzEncoder<CountedWriter<W>>,
    line: Vec<u8>,
    inputs: u64,
    last: BootTime,
    dirty: bool,
}

impl<W: Write> Writer<W> {
    /// Writes the header, and flushes it: an unwritable file is found out now.
    pub fn begin(to: W, header: &Header) -> io::Result<Self> {
        let mut writer = Self {
            gzip: GzEncoder::new(CountedWriter { to, bytes: 0 }, Compression::default()),
            line: Vec::new(),
            inputs: 0,
            last: BootTime(header.clock.boot_ns),
            dirty: false,
        };
        writer.write(header)?;
        writer.flush()?;
        Ok(writer)
    }

    pub fn input(&mut self, received: &Received) -> io::Result<()> {
        self.inputs += 1;
        self.last = received.at;
        self.write(received)
    }

    /// Says that so many inputs before this moment are not in the recording.
    pub fn gap(&mut self, at: BootTime, inputs: u64) -> io::Result<()> {
        self.last = at;
        self.write(&Mark { at, what: MarkKind::Gap { inputs } })
    }

    /// Everything written so far can be read from here on, whatever happens to this process.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.dirty {
            self.dirty = false;
            self.gzip.flush()?;
        }
        Ok(())
    }

    /// Bytes that have left this writer.
    pub fn bytes(&self) -> u64 {
        self.gzip.get_ref().bytes
    }

    /// Writes the last line and closes the compression; what it was written to comes back.
    pub fn end(mut self, why: Stopped) -> io::Result<W> {
        let end = RecordingEnd { inputs: self.inputs, why };
        self.write(&Mark { at: self.last, what: MarkKind::End(end) })?;
        let mut to = self.gzip.finish()?.to;
        to.flush()?;
        Ok(to)
    }

    fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, line)?;
        self.line.push(b'\n');
        self.dirty = true;
        self.gzip.write_all(&self.line)
    }
}

/// Counts what passes.
#[derive(Debug)]
struct CountedWriter<W> {
    to: W,
    bytes: u64,
}

impl<W: Write> Write for CountedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
