//! Whether the runtime and the kubelet live: a pidfd each, so that an end is told at once.

use super::table::{Table, process};
use coroner_core::input::{Daemon, DaemonProcess, DaemonState, HostEvent};
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::io::{Interest, unix::AsyncFd};
use tracing::{debug, info, warn};

/// The two daemons.
pub(super) struct Daemons {
    runtime: WatchedDaemon,
    kubelet: WatchedDaemon,
}

/// One daemon.
struct WatchedDaemon {
    daemon: Daemon,
    proc: PathBuf,
    /// The numbers in this /proc are those that a pidfd is opened by.
    own_numbers: bool,
    state: DaemonState,
    /// Of the process that runs. `None`: it is looked for in each survey instead.
    pidfd: Option<AsyncFd<OwnedFd>>,
}

/// What became of the wish to watch a process.
enum ProcessWatch {
    Pidfd(AsyncFd<OwnedFd>),
    /// None can be had: an old kernel, a /proc of another PID namespace.
    Without,
    /// The process has ended already.
    Ended,
}

impl Daemons {
    /// Nothing is known of either.
    pub(super) fn new(proc: &Path) -> Self {
        let own_numbers = has_own_numbers(proc);
        if !own_numbers {
            debug!(
                "the host's /proc belongs to another PID namespace; finding node daemons by \
                 surveys only"
            );
        }
        let watched = |daemon| WatchedDaemon {
            daemon,
            proc: proc.to_owned(),
            own_numbers,
            state: DaemonState::Unknown,
            pidfd: None,
        };
        Self { runtime: watched(Daemon::Runtime), kubelet: watched(Daemon::Kubelet) }
    }

    /// The CRI adapter found this process behind the socket. What there is to tell of it.
    pub(super) fn connected(&mut self, process: DaemonProcess) -> Vec<HostEvent> {
        self.runtime.is_running(process)
    }

    /// A survey saw these processes, and this of the kubelet; `None`: it could not see them all.
    /// Tells all that is known, changed or not.
    pub(super) fn surveyed(&mut self, seen: Option<(Arc<Table>, DaemonState)>) -> Vec<HostEvent> {
        let mut told = Vec::new();
        let (table, found) = match &seen {
            Some((table, found)) => (Some(&**table), found.clone()),
            None => (None, DaemonState::Unknown),
        };
        for watched in [&mut self.runtime, &mut self.kubelet] {
            watched.look(table);
        }
        match (found, &self.kubelet.state) {
            (DaemonState::Running { process }, _) => {
                told.extend(self.kubelet.is_running(process));
            }
            // One that is known lives on: it is another that cannot be told from it.
            (_, DaemonState::Running { .. }) => {}
            // None runs now: that the last one ended says more.
            (DaemonState::Absent, DaemonState::Ended { .. }) => {}
            (found, _) => self.kubelet.set(found),
        }
        told.extend([self.runtime.event(), self.kubelet.event()]);
        told.dedup();
        told
    }

    /// Waits until a daemon that runs ends, and tells so. Cancel safe.
    pub(super) async fn ended(&mut self) -> HostEvent {
        tokio::select! {
            () = self.runtime.exited() => self.runtime.end(),
            () = self.kubelet.exited() => self.kubelet.end(),
        }
    }

    /// The runtime, while it runs.
    pub(super) fn runtime(&self) -> Option<DaemonProcess> {
        self.runtime.running()
    }

    /// The kubelet, while it runs.
    pub(super) fn kubelet(&self) -> Option<DaemonProcess> {
        self.kubelet.running()
    }
}

impl WatchedDaemon {
    fn event(&self) -> HostEvent {
        HostEvent::Daemon { daemon: self.daemon, state: self.state.clone() }
    }

    fn running(&self) -> Option<DaemonProcess> {
        match self.state {
            DaemonState::Running { process } => Some(process),
            _ => None,
        }
    }

    /// It is known to be this process. What there is to tell: nothing if that was known before.
    fn is_running(&mut self, process: DaemonProcess) -> Vec<HostEvent> {
        if matches!(self.state, DaemonState::Running { process: known }
            | DaemonState::Ended { process: known } if known == process)
        {
            return Vec::new();
        }
        let mut told = Vec::new();
        if let Some(earlier) = self.running()
            && !self.lives(earlier)
        {
            told.push(self.end());
        }
        self.pidfd = None;
        match self.watch(process) {
            ProcessWatch::Pidfd(pidfd) => {
                self.pidfd = Some(pidfd);
                self.set(DaemonState::Running { process });
            }
            ProcessWatch::Without => self.set(DaemonState::Running { process }),
            ProcessWatch::Ended => self.set(DaemonState::Ended { process }),
        }
        told.push(self.event());
        told
    }

    /// Looks whether a process without a pidfd still lives.
    fn look(&mut self, table: Option<&Table>) {
        if self.pidfd.is_some() {
            return;
        }
        if let Some(process) = self.running() {
            match table {
                Some(table) if table.has(process) => {}
                Some(_) => self.set(DaemonState::Ended { process }),
                None => self.set(DaemonState::Unknown),
            }
        }
    }

    fn set(&mut self, state: DaemonState) {
        if self.state != state {
            info!(daemon = ?self.daemon, ?state, "node daemon changed state");
            self.state = state;
        }
    }

    fn watch(&self, process: DaemonProcess) -> ProcessWatch {
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|_| self.own_numbers) else {
            return if self.lives(process) { ProcessWatch::Without } else { ProcessWatch::Ended };
        };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return ProcessWatch::Ended,
            Err(error) => {
                warn!(%error, "pidfd_open failed; detecting the daemon's exit by surveys instead");
                return ProcessWatch::Without;
            }
        };
        // The number may have passed to another process before it was opened.
        if !self.lives(process) {
            return ProcessWatch::Ended;
        }
        // SAFETY: an owned descriptor, which `AsyncFd` keeps open for as long as it is registered.
        match unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) } {
            Ok(pidfd) => ProcessWatch::Pidfd(pidfd),
            Err(error) => {
                warn!(%error, "cannot wait on a pidfd; detecting the daemon's exit by surveys \
                               instead");
                ProcessWatch::Without
            }
        }
    }

    fn lives(&self, known: DaemonProcess) -> bool {
        process(&self.proc, known.pid).is_some_and(|now| now.lives && now.started == known.started)
    }

    async fn exited(&self) {
        match &self.pidfd {
            Some(pidfd) if pidfd.readable().await.is_ok() => {}
            // Not watched, or the event loop is being torn down.
            _ => std::future::pending().await,
        }
    }

    fn end(&mut self) -> HostEvent {
        self.pidfd = None;
        if let Some(process) = self.running() {
            self.set(DaemonState::Ended { process });
        }
        self.event()
    }
}

/// Whether a /proc numbers processes as this process' own PID namespace does:
/// it numbers this one, and by one number only.
fn has_own_numbers(proc: &Path) -> bool {
    let Ok(status) = fs::read_to_string(proc.join("self/status")) else { return false };
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| {
        let own = std::process::id().to_string();
        numbers.split_ascii_whitespace().eq([own.as_str()])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::host::fake::Fake;
    use std::process::{Child, Command};

    fn sleeper() -> (Child, DaemonProcess) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        let started = process(Path::new("/proc"), pid).unwrap().started;
        (child, DaemonProcess { pid, started })
    }

    fn of(daemon: Daemon, state: DaemonState) -> HostEvent {
        HostEvent::Daemon { daemon, state }
    }

    #[tokio::test]
    async fn an_end_is_told_at_once_and_by_the_pidfd() {
        let mut daemons = Daemons::new(Path::new("/proc"));
        let (mut child, process) = sleeper();
        let running = of(Daemon::Runtime, DaemonState::Running { process });
        assert_eq!(daemons.connected(process), [running]);
        assert_eq!(daemons.connected(process), [], "known");
        assert_eq!(daemons.runtime(), Some(process));
        assert!(daemons.runtime.pidfd.is_some());
        child.kill().unwrap();
        let ended = of(Daemon::Runtime, DaemonState::Ended { process });
        assert_eq!(daemons.ended().await, ended);
        child.wait().unwrap();
        assert_eq!(daemons.runtime(), None);
        // A late word of the CRI adapter about the same process does not revive it.
        assert_eq!(daemons.connected(process), []);
        let (mut child, next) = sleeper();
        let running = of(Daemon::Runtime, DaemonState::Running { process: next });
        assert_eq!(daemons.connected(next), [running]);
        child.kill().unwrap();
        child.wait().unwrap();
        let (mut child, last) = sleeper();
        let expected = [
            of(Daemon::Runtime, DaemonState::Ended { process: next }),
            of(Daemon::Runtime, DaemonState::Running { process: last }),
        ];
        assert_eq!(daemons.connected(last), expected, "the end first");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_number_that_passed_on_is_not_watched() {
        let mut daemons = Daemons::new(Path::new("/proc"));
        let (mut child, process) = sleeper();
        let earlier = DaemonProcess { started: process.started - 1, ..process };
        let ended = of(Daemon::Runtime, DaemonState::Ended { process: earlier });
        assert_eq!(daemons.connected(earlier), [ended]);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn numbers_of_another_namespace() {
        assert!(has_own_numbers(Path::new("/proc")));
        let fake = Fake::new();
        assert!(!has_own_numbers(&fake.host.proc));
        let own = std::process::id();
        for (line, expected) in [(format!("{own}"), true), (format!("{own} 7"), false)] {
            fake.file("proc/self/status", format!("Name:\tx\nNSpid:\t{line}\n"));
            assert_eq!(has_own_numbers(&fake.host.proc), expected, "{line}");
        }
    }

    #[test]
    fn surveys_tell_where_no_pidfd_can() {
        let fake = Fake::new();
        fake.kthreadd();
        let (runtime, kubelet) =
            (fake.process(7, "containerd", 1, 70), fake.process(8, "k", 1, 80));
        let mut daemons = Daemons::new(&fake.host.proc);
        let is = |one: DaemonState, other: DaemonState| {
            vec![of(Daemon::Runtime, one), of(Daemon::Kubelet, other)]
        };
        let running = |process| DaemonState::Running { process };
        let ended = |process| DaemonState::Ended { process };
        let seen = |found| Some((Arc::new(Table::read(&fake.host).unwrap()), found));
        let (absent, unknown) = (DaemonState::Absent, DaemonState::Unknown);

        let told = daemons.surveyed(None);
        assert_eq!(told, is(unknown.clone(), unknown.clone()));
        let told = daemons.surveyed(seen(absent.clone()));
        assert_eq!(told, is(unknown.clone(), absent.clone()));
        daemons.connected(runtime);
        let told = daemons.surveyed(seen(running(kubelet)));
        assert_eq!(told.last(), is(running(runtime), running(kubelet)).last());
        let told = daemons.surveyed(seen(unknown.clone()));
        assert_eq!(told, is(running(runtime), running(kubelet)), "another bears its name");
        fake.ended(7);
        fake.ended(8);
        for _ in 0..2 {
            let told = daemons.surveyed(seen(absent.clone()));
            assert_eq!(told, is(ended(runtime), ended(kubelet)));
        }
        let next = fake.process(9, "k", 1, 90);
        daemons.surveyed(seen(running(next)));
        assert_eq!(daemons.kubelet(), Some(next));
        let told = daemons.surveyed(None);
        assert_eq!(told, is(ended(runtime), unknown), "not seen is not ended");
    }
}
