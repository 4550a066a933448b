//! Writes the state file on its own thread, so that a slow or hanging disk never blocks the event loop.

use crate::linux::landlock::{self, FileAccess};
use coroner_core::input::PersistedLeak;
use std::{
    io,
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    thread,
    time::Duration,
};
use tokio::{runtime::Builder, sync::watch, time::timeout};
use tracing::{debug, warn};

const RETRY: Duration = Duration::from_secs(30);

/// Handle of the writer thread, used by the event loop. Newer leaks replace leaks that are not being written yet.
#[derive(Debug)]
pub struct StateWriter {
    newest: watch::Sender<Vec<PersistedLeak>>,
    ended: Receiver<()>,
}

impl StateWriter {
    /// Starts the thread, which reaches only its `own` files where the kernel can do that. `kept`: the leaks that are in
    /// the file already. Fails only if the thread cannot start.
    pub fn start(
        kept: Vec<PersistedLeak>,
        own: FileAccess,
        write: impl FnMut(Vec<PersistedLeak>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (newest, news) = watch::channel(kept);
        let (done, ended) = sync_channel(1);
        let runtime = Builder::new_current_thread().enable_time().build()?;
        thread::Builder::new().name("state".into()).spawn(move || {
            if let Err(why) = landlock::restrict(&own) {
                debug!(why, "the thread that writes the state is not restricted");
            }
            runtime.block_on(work(news, write));
            let _ = done.send(()); // nobody waits for it any more
        })?;
        Ok(Self { newest, ended })
    }

    /// Submits leaks to be written if they changed. Never waits.
    pub fn keep(&mut self, leaks: Vec<PersistedLeak>) {
        self.newest.send_if_modified(|last| {
            let is_new = *last != leaks;
            *last = leaks;
            is_new
        });
    }

    /// Writes the last leaks and stops the thread; waits for at most `limit`. False: timed out.
    pub fn end(self, limit: Duration) -> bool {
        drop(self.newest);
        let in_time = self.ended.recv_timeout(limit) != Err(RecvTimeoutError::Timeout);
        if !in_time {
            warn!("timed out writing the leak state; first-seen times may be lost");
        }
        in_time
    }
}

async fn work(
    mut news: watch::Receiver<Vec<PersistedLeak>>,
    mut write: impl FnMut(Vec<PersistedLeak>) -> io::Result<()>,
) {
    let mut is_failing = false;
    loop {
        let is_over = match is_failing {
            false => news.changed().await.is_err(),
            // The pause ends with the agent, after a last attempt.
            true => timeout(RETRY, async { while news.changed().await.is_ok() {} }).await.is_ok(),
        };
        if is_over && !is_failing {
            return;
        }
        let leaks = news.borrow_and_update().clone();
        match write(leaks) {
            Ok(()) => is_failing = false,
            Err(error) if is_failing => debug!(%error, "still cannot write the leak state"),
            Err(error) => {
                warn!(%error, "cannot write the leak state (--state-dir); first-seen times are lost \
                               on a restart. Retrying");
                is_failing = true;
            }
        }
        if is_over {
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
        vec![PersistedLeak { key, first_observed: BootTime(observed) }]
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
        for newest in [1, 2] {
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
            writer.keep(leaks(newest));
            assert!(writer.end(LONG), "the pause between the attempts ends with the agent");
            assert_eq!(tries.iter().collect::<Vec<_>>(), [leaks(newest)]);
        }
    }
}
