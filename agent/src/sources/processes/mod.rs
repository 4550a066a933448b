//! The process adapter: inspects the remaining processes of a container that does not exit, and reads how the main process
//! of a running one would respond to its stop signal. Reads states and kernel stacks, never command lines.
//!
//! Reading can hang as well (/proc/PID/stack takes a lock that an exec on a dead file system holds), so each
//! inspection runs on its own thread with a timeout.

mod look;
mod stop_state;

use coroner_core::{
    input::{Input, Received, StopStateReport},
    output::{InspectProcesses, ReadStopState},
};

use crate::linux::{
    blocking::{BlockingPool, CallError},
    clock,
    procfs::host_proc,
};
use look::look;
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::mpsc;
use tracing::{debug, warn};

const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of hanging inspections; further ones are skipped.
const MAX_HANGING: usize = 4;

#[derive(Clone, Debug)]
pub struct ProcessesOptions {
    pub host_root: PathBuf,
    pub cgroup_root: PathBuf,
    pub counters: Arc<ProcessesCounters>,
}

#[derive(Debug, Default)]
pub struct ProcessesCounters {
    /// Inspections that timed out or were skipped.
    pub errors: AtomicU64,
}

/// What is asked of /proc.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProcRequest {
    Inspect(InspectProcesses),
    StopState(ReadStopState),
}

impl ProcRequest {
    fn serve(&self, proc: &Path, cgroup_root: &Path) -> Input {
        match self {
            Self::Inspect(wanted) => Input::Proc(look(proc, cgroup_root, *wanted)),
            Self::StopState(wanted) => {
                let looked = clock::boot_now();
                let (state, unread) = stop_state::read(proc, wanted);
                Input::StopState(StopStateReport { looked, state, unread, ..nothing(wanted) })
            }
        }
    }

    /// The answer to a request that was not answered; `None`: none is needed.
    fn unanswered(&self) -> Option<Input> {
        match self {
            Self::Inspect(_) => None,
            Self::StopState(wanted) => Some(Input::StopState(nothing(wanted))),
        }
    }
}

fn nothing(wanted: &ReadStopState) -> StopStateReport {
    StopStateReport {
        container: wanted.container.clone(),
        main: wanted.main,
        signal: wanted.signal,
        looked: clock::boot_now(),
        state: None,
        unread: vec![format!("/proc/{}: no answer within {TIMEOUT:?}", wanted.main.0)],
    }
}

/// Serves requests until either channel is closed.
pub async fn run(
    options: ProcessesOptions,
    to: mpsc::Sender<Received>,
    mut wanted: mpsc::Receiver<ProcRequest>,
) -> anyhow::Result<()> {
    let ProcessesOptions { host_root, cgroup_root, counters } = options;
    let pool = BlockingPool::new(TIMEOUT, MAX_HANGING);
    while let Some(wanted) = wanted.recv().await {
        let (root, cgroup_root) = (host_root.clone(), cgroup_root.clone());
        let request = wanted.clone();
        let look = move || wanted.serve(&host_proc(&root), &cgroup_root);
        let answer = match pool.call(look).await {
            Ok(answer) => Some(answer),
            Err(CallError::Panicked(broken)) => return Err(broken.into()),
            Err(CallError::TimedOut) => {
                counters.errors.fetch_add(1, Relaxed);
                warn!(
                    ?request,
                    "timed out reading /proc for a container; its processes are probably stuck in \
                     the kernel"
                );
                request.unanswered()
            }
            Err(CallError::Saturated) => {
                counters.errors.fetch_add(1, Relaxed);
                debug!(?request, "skipped reading /proc: earlier reads are still blocked");
                request.unanswered()
            }
        };
        let Some(input) = answer else { continue };
        let received = Received { at: clock::boot_now(), input };
        if to.send(received).await.is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::procfs::parse;
    use coroner_core::{
        ids::{CgroupId, Tgid},
        input::TaskState,
    };
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[tokio::test]
    async fn it_answers_and_ends_with_its_channel() {
        let cgroup_root = tempfile::tempdir().unwrap();
        let options = ProcessesOptions {
            host_root: "/".into(),
            cgroup_root: cgroup_root.path().to_owned(),
            counters: Arc::default(),
        };
        let (to, mut reports) = mpsc::channel(1);
        let (ask, wanted) = mpsc::channel(1);
        let adapter = tokio::spawn(run(options, to, wanted));
        let own = std::fs::read("/proc/self/stat").unwrap();
        let started = Some(parse::stat(&own).unwrap().started * 10_000_000);
        let main = Some(Tgid(std::process::id()));
        let wanted = InspectProcesses { cgroup: CgroupId(7), main, started };
        ask.send(ProcRequest::Inspect(wanted)).await.unwrap();
        let received = reports.recv().await.unwrap();
        let Input::Proc(report) = received.input else { panic!("{received:?}") };
        assert!(report.looked <= received.at);
        assert_eq!((report.cgroup, report.alive), (CgroupId(7), Some(1)));
        assert_eq!(report.processes[0].tgid.0, std::process::id());
        assert_ne!(report.processes[0].state, TaskState::Zombie);
        drop(ask);
        adapter.await.unwrap().unwrap();
    }

    /// Time is paused: the test does not wait for the timeouts.
    #[tokio::test(start_paused = true)]
    async fn inspections_that_hang_are_counted_and_bounded() {
        let root = tempfile::tempdir().unwrap();
        let stat = root.path().join("proc/7/stat");
        std::fs::create_dir_all(stat.parent().unwrap()).unwrap();
        mknodat(CWD, &stat, FileType::Fifo, Mode::RUSR, 0).unwrap();
        // A read blocks until the last writer has closed the FIFO.
        let writer = std::fs::File::options().read(true).write(true).open(&stat).unwrap();
        let options = ProcessesOptions {
            host_root: root.path().to_owned(),
            cgroup_root: root.path().to_owned(),
            counters: Arc::default(),
        };
        let counters = Arc::clone(&options.counters);
        let ((to, mut reports), (ask, wanted)) = (mpsc::channel(8), mpsc::channel(8));
        for _ in 0..=MAX_HANGING {
            let (cgroup, main, started) = (CgroupId(7), Some(Tgid(7)), Some(1));
            let wanted = InspectProcesses { cgroup, main, started };
            ask.send(ProcRequest::Inspect(wanted)).await.unwrap();
        }
        drop(ask);
        let mut adapter = tokio::spawn(run(options, to, wanted));
        let ended = loop {
            tokio::select! {
                ended = &mut adapter => break ended,
                () = tokio::time::advance(TIMEOUT) => {}
            }
        };
        std::fs::remove_file(stat).unwrap();
        drop(writer);
        ended.unwrap().unwrap();
        assert_eq!(counters.errors.load(Relaxed), 1 + MAX_HANGING as u64);
        assert!(reports.recv().await.is_none());
    }
}
