//! The independent witness of a death: a thread that sleeps on pidfds and reads the clock as soon
//! as one is readable. It knows nothing of the agent, of cgroups or of the runtime.
//!
//! A pidfd is readable once the process is a zombie and no thread of it is left (`pidfd_poll`, woken
//! by `exit_notify`): the first moment at which anybody outside can know.

use anyhow::Context as _;
use coroner_workload::page::{boot_now, wall_now};
use rustix::{
    event::{
        EventfdFlags,
        epoll::{self, CreateFlags, EventData, EventFlags},
        eventfd,
    },
    io::Errno,
};
use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};
use tokio::sync::oneshot;

/// The key of the descriptor that ends the thread.
const STOP: u64 = 0;

/// A moment, by both clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ObservedMoment {
    /// CLOCK_BOOTTIME, ns.
    pub(super) boot: u64,
    /// CLOCK_REALTIME, ns since the epoch.
    pub(super) wall: u64,
}

impl ObservedMoment {
    pub(super) fn now() -> Self {
        Self { boot: boot_now(), wall: wall_now() }
    }

    /// The boot clock at a moment that the wall clock told, near this one.
    pub(super) fn boot_at(self, wall: i64) -> Option<u64> {
        let ns = i128::from(self.boot) + i128::from(wall) - i128::from(self.wall);
        u64::try_from(ns).ok()
    }
}

/// By key: the process, and who wants to know.
type WatchedProcesses = HashMap<u64, (Arc<OwnedFd>, oneshot::Sender<ObservedMoment>)>;

/// The running thread. Dropped, it ends.
#[derive(Debug)]
pub(super) struct Observer {
    epoll: Arc<OwnedFd>,
    watched: Arc<Mutex<WatchedProcesses>>,
    next: AtomicU64,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
    real_time: bool,
}

impl Observer {
    pub(super) fn start() -> anyhow::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC).context("epoll")?);
        let stop = eventfd(0, EventfdFlags::CLOEXEC).context("eventfd")?;
        epoll::add(&epoll, &stop, EventData::new_u64(STOP), EventFlags::IN).context("epoll")?;
        let watched = Arc::new(Mutex::new(WatchedProcesses::new()));
        let (tell, told) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name("observer".into()).spawn({
            let (epoll, watched) = (epoll.clone(), watched.clone());
            move || {
                let _ = tell.send(go_first());
                watch(&epoll, &watched);
            }
        })?;
        let real_time = told.recv().context("the observer's thread did not start")?;
        Ok(Self {
            epoll,
            watched,
            next: AtomicU64::new(STOP + 1),
            stop,
            thread: Some(thread),
            real_time,
        })
    }

    /// Whether it is scheduled before every ordinary process. If not, it is late under load, and
    /// the truth wider.
    pub(super) fn is_real_time(&self) -> bool {
        self.real_time
    }

    /// Tells when the process of the pidfd has ended; at once if it has already.
    pub(super) fn watch(
        &self,
        pidfd: Arc<OwnedFd>,
    ) -> anyhow::Result<oneshot::Receiver<ObservedMoment>> {
        let (tell, told) = oneshot::channel();
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        // Known before it can be reported.
        lock(&self.watched).insert(key, (pidfd.clone(), tell));
        epoll::add(&self.epoll, &pidfd, EventData::new_u64(key), EventFlags::IN)
            .context("cannot watch a process")?;
        Ok(told)
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(epoll: &OwnedFd, watched: &Mutex<WatchedProcesses>) {
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        let waited = epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None);
        let now = ObservedMoment::now();
        match waited {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return,
        }
        for event in &events {
            let key = event.data.u64();
            if key == STOP {
                return;
            }
            let known = lock(watched).remove(&key);
            if let Some((pidfd, tell)) = known {
                let _ = epoll::delete(epoll, &pidfd);
                // Nobody may want to know any more.
                let _ = tell.send(now);
            }
        }
    }
}

fn lock(watched: &Mutex<WatchedProcesses>) -> MutexGuard<'_, WatchedProcesses> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks for real-time scheduling of this thread, which does nothing but read the clock. Refused
/// where the cpu controller gives this cgroup no real-time share.
fn go_first() -> bool {
    let first = libc::sched_param { sched_priority: 10 };
    // SAFETY: the parameters are valid; 0 is the calling thread.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &first) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::process::{Command, Stdio};

    #[tokio::test]
    async fn sees_a_process_end_and_not_before() {
        let observer = Observer::start().unwrap();
        let mut cat = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&cat), PidfdFlags::empty()).unwrap();
        let mut died = observer.watch(Arc::new(pidfd)).unwrap();
        assert!(died.try_recv().is_err(), "it waits for input");
        let alive = boot_now();
        drop(cat.stdin.take());
        let moment = died.await.unwrap();
        assert!((alive..=boot_now()).contains(&moment.boot));
        cat.wait().unwrap();
    }

    #[test]
    fn a_wall_time_becomes_a_boot_time() {
        let moment = ObservedMoment { boot: 1_000, wall: 50_000 };
        assert_eq!(moment.boot_at(50_700), Some(1_700));
        assert_eq!(moment.boot_at(49_000), Some(0));
        assert_eq!(moment.boot_at(0), None, "before the boot");
    }
}
