//! Reads a recording, as much of it as there is.

use super::format::{Header, Mark, MarkKind, RecordingEnd, Stopped, VERSION};
use crate::outputs::report::printable;
use anyhow::{Context, anyhow, bail};
use coroner_core::{
    input::{Input, Loss, LossKind, Received},
    time::BootTime,
};
use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;
use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

/// A list of a full node's containers has some hundred kilobytes: what is longer is no line.
const MAX_LINE: u64 = 64 << 20;

const EMPTY: &str = "the file is empty: the disk was full, or the agent was killed right after its start. \
     Free space and record again with `coroner run --record FILE`";
const FOREIGN: &str = "not a recording; create one with `coroner run --record FILE`";

/// How whole a recording is, as far as it was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordingStatus {
    pub inputs: u64,
    /// Inputs that the recording says it lacks: the disk was too slow.
    pub dropped: u64,
    pub misread: u64,
    /// Its last line; `None`: it is cut off.
    pub end: Option<RecordingEnd>,
    /// Where it is cut off by more than an end, what the reader met there.
    pub broken: Option<String>,
}

impl RecordingStatus {
    /// A replay gives what the recorded agent said, and nothing is missing at the end.
    pub fn is_whole(&self) -> bool {
        *self == Self { inputs: self.inputs, end: self.end.clone(), ..Self::default() }
            && self.end.as_ref().is_some_and(|end| end.inputs == self.inputs)
    }
}

/// What a person should know before trusting a replay, a sentence a line; nothing if all is well.
impl fmt::Display for RecordingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.end {
            None => {
                let how = match &self.broken {
                    Some(error) => format!("is damaged ({error})"),
                    None => "is truncated".to_owned(),
                };
                let inputs = self.inputs;
                writeln!(
                    f,
                    "the recording {how}: the agent was killed, or the file was not copied \
                     completely; using the {inputs} inputs before that"
                )?;
            }
            Some(RecordingEnd { why: Stopped::Limit, .. }) => writeln!(
                f,
                "the recording stopped at its size limit while the agent continued; to cover a \
                 longer time, record again with a larger --record-limit"
            )?,
            Some(RecordingEnd { inputs, .. }) if *inputs != self.inputs && self.misread == 0 => {
                writeln!(
                    f,
                    "the recording should have {inputs} inputs but has {}; the file was probably \
                 modified",
                    self.inputs
                )?
            }
            Some(_) => {}
        }
        if self.dropped > 0 {
            writeln!(
                f,
                "the recording lacks {} inputs that the agent received (the disk was too slow); \
                 affected timelines are marked `unrecorded`",
                self.dropped
            )?;
        }
        if self.misread > 0 {
            writeln!(
                f,
                "cannot parse {} lines of the recording and treated them as lost; the file was \
                 modified or written by another version of coroner",
                self.misread
            )?;
        }
        Ok(())
    }
}

/// A recording's inputs, one after the other; nothing is held in memory. A gap comes as
/// [`LossKind::Unrecorded`], so that what the engine says shows it.
pub struct Reader {
    lines: Box<dyn BufRead>,
    header: Header,
    line: Vec<u8>,
    last: BootTime,
    over: bool,
    status: RecordingStatus,
}

impl Reader {
    /// Opens a file; `-` is stdin.
    pub fn open(file: &Path) -> anyhow::Result<Self> {
        if file == Path::new("-") {
            return Self::new(io::stdin());
        }
        Self::new(File::open(file)?)
    }

    /// Reads the header. Takes the lines compressed or plain.
    pub fn new(from: impl Read + 'static) -> anyhow::Result<Self> {
        let mut from = BufReader::with_capacity(64 << 10, from);
        let start = from.fill_buf()?;
        if start.is_empty() {
            bail!(EMPTY);
        }
        let compressed = start.starts_with(&[0x1f, 0x8b]);
        let mut lines: Box<dyn BufRead> = if compressed {
            Box::new(BufReader::with_capacity(64 << 10, MultiGzDecoder::new(from)))
        } else {
            Box::new(from)
        };
        let mut line = Vec::new();
        match next_line(&mut *lines, &mut line) {
            Ok(true) => {}
            // Compression had begun, and nothing had been flushed.
            Err(error) if compressed && is_end(&error) && line.is_empty() => {
                bail!(EMPTY);
            }
            Ok(false) => bail!(FOREIGN),
            Err(error) if is_content(&error) => bail!(FOREIGN),
            Err(error) => return Err(error.into()),
        }
        let header = header(&line)?;
        let last = BootTime(header.clock.boot_ns);
        Ok(Self { lines, header, line, last, over: false, status: RecordingStatus::default() })
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn status(&self) -> &RecordingStatus {
        &self.status
    }

    /// The next line as an input; `None`: nothing follows.
    fn input(&mut self) -> Option<Received> {
        self.line.clear();
        match next_line(&mut *self.lines, &mut self.line) {
            Ok(true) => {}
            Ok(false) => {
                self.over = true;
                return None;
            }
            Err(error) => {
                self.over = true;
                self.status.broken = (!is_end(&error)).then(|| error.to_string());
                return None;
            }
        }
        // Most are inputs; only what is none is parsed twice.
        if let Ok(received) = serde_json::from_slice::<Received>(&self.line) {
            self.status.inputs += 1;
            self.last = received.at;
            return Some(received);
        }
        match serde_json::from_slice::<Mark>(&self.line) {
            Ok(mark) => {
                self.last = mark.at;
                match mark.what {
                    MarkKind::Gap { inputs } => {
                        self.status.dropped = self.status.dropped.saturating_add(inputs);
                        Some(self.lost(inputs))
                    }
                    MarkKind::End(end) => {
                        self.status.end = Some(end);
                        self.over = true;
                        None
                    }
                }
            }
            Err(_) => {
                self.status.misread += 1;
                Some(self.lost(1))
            }
        }
    }

    fn lost(&self, count: u64) -> Received {
        let loss = Loss::new(LossKind::Unrecorded, count);
        Received { at: self.last, input: Input::Lost(loss) }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("header", &self.header)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl Iterator for Reader {
    type Item = Received;

    fn next(&mut self) -> Option<Received> {
        if self.over { None } else { self.input() }
    }
}

/// A whole line, or none: one without its newline was cut off.
fn next_line(from: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    from.take(MAX_LINE).read_until(b'\n', line)?;
    if line.len() as u64 >= MAX_LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "unterminated line"));
    }
    Ok(line.last() == Some(&b'\n'))
}

fn is_end(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
}

/// What was read is at fault, not the reading.
fn is_content(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
}

fn header(line: &[u8]) -> anyhow::Result<Header> {
    /// What every version of the format keeps.
    #[derive(Deserialize)]
    struct Any {
        coroner_recording: u32,
        #[serde(default)]
        agent: serde_json::Value,
    }
    let any: Any = serde_json::from_slice(line).ok().context(FOREIGN)?;
    if any.coroner_recording != VERSION {
        bail!(
            "unsupported format {}, written by coroner {}; coroner {} reads format {VERSION}. Use a version at least as \
             new as the recording agent's",
            any.coroner_recording,
            printable(any.agent.as_str().unwrap_or("of an unknown version")),
            env!("CARGO_PKG_VERSION")
        );
    }
    serde_json::from_slice(line).map_err(|error| {
        anyhow!("the first line is invalid ({error}); the file was probably modified")
    })
}
