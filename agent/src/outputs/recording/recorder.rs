//! Records while the agent runs, in a thread of its own: a slow disk never holds up the event
//! loop, and a broken one ends the recording, not the agent.

use super::{
    format::{Header, Stopped},
    write::Writer,
};
use crate::linux::landlock::{self, FileAccess};
use coroner_core::{input::Received, time::BootTime};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    thread,
    time::{Duration, Instant},
};
use tracing::{debug, error, info, warn};

/// Inputs that may wait for the disk; more are dropped, counted, and marked in the recording.
const WAITING: usize = 8192;
/// What is written can be read after this long at the latest.
const FLUSH: Duration = Duration::from_secs(1);

/// Makes the file, which nobody else may read. It is always a new one: what somebody made before would
/// keep its mode and owner, and a link would lead elsewhere. A recording that is there already, such as
/// that of an agent that crashed, is kept beside it, with `.old` at its name's end. Fails if the file
/// cannot be made, or if something that is not a file has its name.
pub fn create(file: &Path) -> io::Result<File> {
    match fs::symlink_metadata(file) {
        Ok(there) if !there.is_file() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "not a regular file"));
        }
        Ok(there) if there.len() > 0 => {
            let mut old = file.as_os_str().to_owned();
            old.push(".old");
            fs::rename(file, &old)?;
            info!(file = %PathBuf::from(old).display(), "kept the earlier recording");
        }
        Ok(_) => fs::remove_file(file)?,
        Err(_) => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)
}

#[derive(Debug)]
enum QueuedEntry {
    Input(Box<Received>),
    Gap { at: BootTime, inputs: u64 },
}

#[derive(Debug)]
pub struct Recorder {
    to: Option<SyncSender<QueuedEntry>>,
    /// Inputs dropped that the file does not tell of yet.
    gap: u64,
    last: BootTime,
    ended: Receiver<()>,
}

impl Recorder {
    /// Begins to write. Fails only if no thread can be had.
    pub fn start(to: impl Write + Send + 'static, header: Header, limit: u64) -> io::Result<Self> {
        let (entries, inbox) = sync_channel(WAITING);
        let (tell_end, ended) = sync_channel(1);
        let last = BootTime(header.clock.boot_ns);
        thread::Builder::new().name("recorder".into()).spawn(move || {
            // Its file is open.
            if let Err(why) = landlock::restrict(&FileAccess::Opened) {
                debug!(why, "the thread that writes the recording is not restricted");
            }
            match write(to, &header, limit, &inbox) {
                Ok(Stopped::Agent) => debug!("recording complete"),
                Ok(Stopped::Limit) => {
                    warn!(
                        bytes = limit,
                        "recording stopped at its size limit; the agent continues. Raise \
                         --record-limit to record more"
                    );
                }
                Err(error) => error!(
                    error = %error,
                    "cannot write the recording; recording stopped, the agent continues"
                ),
            }
            let _ = tell_end.send(()); // nobody waits for it any more
        })?;
        Ok(Self { to: Some(entries), gap: 0, last, ended })
    }

    pub fn record(&mut self, received: &Received) {
        self.last = received.at;
        let Some(to) = &self.to else { return };
        let sent = if self.gap == 0 {
            Ok(())
        } else {
            let gap = QueuedEntry::Gap { at: received.at, inputs: self.gap };
            to.try_send(gap).inspect(|()| self.gap = 0)
        };
        match sent.and_then(|()| to.try_send(QueuedEntry::Input(Box::new(received.clone())))) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                if self.gap == 0 {
                    warn!(
                        "the disk is too slow for the recording; it will lack inputs, and says so"
                    );
                }
                self.gap += 1;
            }
            Err(TrySendError::Disconnected(_)) => self.to = None,
        }
    }

    /// Closes the recording; waits for the disk no longer than this.
    pub fn end(mut self, timeout: Duration) {
        let Some(to) = self.to.take() else { return };
        let deadline = Instant::now() + timeout;
        let mut gap =
            (self.gap > 0).then_some(QueuedEntry::Gap { at: self.last, inputs: self.gap });
        while let Some(entry) = gap.take() {
            match to.try_send(entry) {
                Err(TrySendError::Full(entry)) if Instant::now() < deadline => {
                    gap = Some(entry);
                    thread::sleep(Duration::from_millis(5));
                }
                // A file without its end says by that alone that it lacks something.
                Ok(()) | Err(_) => {}
            }
        }
        drop(to);
        let left = deadline.saturating_duration_since(Instant::now());
        if self.ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            warn!("timed out writing the recording; its last inputs are missing");
        }
    }
}

fn write(
    to: impl Write,
    header: &Header,
    limit: u64,
    inbox: &Receiver<QueuedEntry>,
) -> io::Result<Stopped> {
    let mut writer = Writer::begin(to, header)?;
    let mut due = Instant::now() + FLUSH;
    let why = loop {
        match inbox.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(QueuedEntry::Input(received)) => {
                writer.input(&received)?;
            }
            Ok(QueuedEntry::Gap { at, inputs }) => writer.gap(at, inputs)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break Stopped::Agent,
        }
        let now = Instant::now();
        if now >= due {
            writer.flush()?;
            due = now + FLUSH;
        }
        if writer.bytes() >= limit {
            break Stopped::Limit;
        }
    };
    writer.end(why)?;
    Ok(why)
}
