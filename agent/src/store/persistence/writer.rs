//! Writes the state file on its own thread, so that a slow or hanging disk never blocks the event loop.

use crate::linux::landlock::{self, FileAccess};
use coroner_core::input::PersistedLeak;
use parking_lot::{Condvar, Mutex};
use std::{
    io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread,
    time::Duration,
};
use tracing::{debug, warn};

const RETRY: Duration = Duration::from_secs(30);

/// Handle of the writer thread, used by the event loop.
#[derive(Debug)]
pub struct StateWriter {
    slot: Arc<Slot>,
    /// The leaks that were submitted last.
    last: Vec<PersistedLeak>,
    ended: Receiver<()>,
}

/// Passes the newest leaks from the event loop to the thread.
#[derive(Debug, Default)]
struct Slot {
    pending: Mutex<Pending>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    /// The next leaks to write. Newer leaks replace leaks that are not being written yet.
    next: Option<Vec<PersistedLeak>>,
    closed: bool,
}

impl Slot {
    /// Waits for the next leaks to write; `None`: closed.
    fn wait(&self) -> Option<Vec<PersistedLeak>> {
        let idle = |pending: &mut Pending| pending.next.is_none() && !pending.closed;
        let mut pending = self.pending.lock();
        self.news.wait_while(&mut pending, idle);
        pending.next.take()
    }

    /// Puts leaks back that could not be written, unless newer leaks are waiting, and pauses. False: closed, so
    /// there is no further attempt.
    fn requeue(&self, failed: Vec<PersistedLeak>) -> bool {
        let mut pending = self.pending.lock();
        if pending.closed && pending.next.is_none() {
            return false;
        }
        pending.next.get_or_insert(failed);
        self.news.wait_while_for(&mut pending, |pending| !pending.closed, RETRY);
        true
    }
}

impl StateWriter {
    /// Starts the thread, which reaches only its `own` files where the kernel can do that. `kept`: the leaks that are in
    /// the file already. Fails only if the thread cannot start.
    pub fn start(
        kept: Vec<PersistedLeak>,
        own: FileAccess,
        write: impl FnMut(Vec<PersistedLeak>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let slot = Arc::new(Slot::default());
        let (done, ended) = sync_channel(1);
        let shared = Arc::clone(&slot);
        thread::Builder::new().name("state".into()).spawn(move || {
            if let Err(why) = landlock::restrict(&own) {
                debug!(why, "the thread that writes the state is not restricted");
            }
            work(&shared, write);
            let _ = done.send(()); // nobody waits for it any more
        })?;
        Ok(Self { slot, last: kept, ended })
    }

    /// Submits leaks to be written if they changed. Never waits.
    pub fn keep(&mut self, leaks: Vec<PersistedLeak>) {
        if leaks != self.last {
            self.last.clone_from(&leaks);
            self.slot.pending.lock().next = Some(leaks);
            self.slot.news.notify_one();
        }
    }

    /// Writes the last leaks and stops the thread; waits for at most `limit`. False: timed out.
    pub fn end(self, limit: Duration) -> bool {
        self.slot.pending.lock().closed = true;
        self.slot.news.notify_one();
        let in_time = self.ended.recv_timeout(limit) != Err(RecvTimeoutError::Timeout);
        if !in_time {
            warn!("timed out writing the leak state; first-seen times may be lost");
        }
        in_time
    }
}

fn work(slot: &Slot, mut write: impl FnMut(Vec<PersistedLeak>) -> io::Result<()>) {
    let mut failing = false;
    while let Some(leaks) = slot.wait() {
        let Err(error) = write(leaks.clone()) else {
            failing = false;
            continue;
        };
        if failing {
            debug!(%error, "still cannot write the leak state");
        } else {
            warn!(%error, "cannot write the leak state (--state-dir); first-seen times are lost \
                           on a restart. Retrying");
        }
        failing = true;
        if !slot.requeue(leaks) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_core::{leak::LeakKey, time::BootTime};
    use std::sync::mpsc::{channel, sync_channel};

    const LONG: Duration = Duration::from_secs(60);

    fn leaks(observed: u64) -> Vec<PersistedLeak> {
        let key = LeakKey::Sandbox { id: "s".into() };
        vec![PersistedLeak { key, first_observed: BootTime(observed), preexisting: false }]
    }

    #[test]
    fn only_changes_are_written_and_of_those_that_wait_the_newest() {
        let (begun, has_begun) = channel();
        let (release, released) = sync_channel::<()>(0);
        let mut writer = StateWriter::start(leaks(0), FileAccess::Opened, move |leaks| {
            begun.send(leaks).unwrap();
            released.recv().map_err(io::Error::other)
        })
        .unwrap();
        writer.keep(leaks(0));
        writer.keep(leaks(1));
        writer.keep(leaks(1));
        assert_eq!(has_begun.recv().unwrap(), leaks(1));
        // It hangs, and nobody waits for it.
        writer.keep(leaks(2));
        writer.keep(leaks(3));
        release.send(()).unwrap();
        assert_eq!(has_begun.recv().unwrap(), leaks(3));
        release.send(()).unwrap();
        assert!(writer.end(LONG));
        assert!(has_begun.recv().is_err(), "nothing else was written");
    }

    #[test]
    fn the_end_waits_for_no_disk_that_hangs() {
        let (release, released) = sync_channel::<()>(0);
        let write = move |_| released.recv().map_err(io::Error::other);
        let mut writer = StateWriter::start(Vec::new(), FileAccess::Opened, write).unwrap();
        writer.keep(leaks(1));
        assert!(!writer.end(Duration::from_millis(20)));
        drop(release);
    }

    #[test]
    fn what_could_not_be_written_is_tried_again() {
        let (tried, tries) = channel();
        let mut attempts = 0;
        let mut writer = StateWriter::start(Vec::new(), FileAccess::Opened, move |leaks| {
            tried.send(leaks).unwrap();
            attempts += 1;
            if attempts == 1 { Err(io::Error::other("full")) } else { Ok(()) }
        })
        .unwrap();
        writer.keep(leaks(1));
        assert_eq!(tries.recv().unwrap(), leaks(1));
        writer.keep(leaks(2));
        assert!(writer.end(LONG), "the pause between the attempts ends with the agent");
        assert_eq!(tries.iter().collect::<Vec<_>>(), [leaks(2)]);
    }

    #[test]
    fn what_could_not_be_written_is_kept_for_the_next_attempt() {
        let slot = Slot::default();
        thread::scope(|scope| {
            let pausing = scope.spawn(|| slot.requeue(leaks(1)));
            while slot.pending.lock().next.is_none() && !pausing.is_finished() {
                thread::yield_now();
            }
            slot.pending.lock().closed = true;
            slot.news.notify_one();
            assert!(pausing.join().unwrap());
        });
        assert_eq!(slot.wait(), Some(leaks(1)));
    }
}
