//! Whether the runtime and the kubelet live: their processes are looked at every second.

use crate::linux::procfs::read_stat;
use coroner_core::input::{Daemon, DaemonProcess, DaemonState, HostEvent};
use std::path::{Path, PathBuf};
use tracing::info;

pub(super) struct Daemons {
    proc: PathBuf,
    runtime: WatchedDaemon,
    kubelet: WatchedDaemon,
}

struct WatchedDaemon {
    daemon: Daemon,
    state: DaemonState,
}

impl Daemons {
    pub(super) fn new(proc: &Path) -> Self {
        let watched = |daemon| WatchedDaemon { daemon, state: DaemonState::Unknown };
        Self {
            proc: proc.to_owned(),
            runtime: watched(Daemon::Runtime),
            kubelet: watched(Daemon::Kubelet),
        }
    }

    /// The CRI adapter found this process behind the socket. Returns what is news.
    pub(super) fn connected(&mut self, process: DaemonProcess) -> Vec<HostEvent> {
        self.runtime.is_running(&self.proc, process)
    }

    /// A survey found the kubelet in this state. Returns all that is known, changed or not.
    pub(super) fn surveyed(&mut self, found: DaemonState) -> Vec<HostEvent> {
        self.poll(); // what it returns is in all that is known
        let mut events = Vec::new();
        match (found, &self.kubelet.state) {
            (DaemonState::Running { process }, _) => {
                events.extend(self.kubelet.is_running(&self.proc, process));
            }
            // One that is known lives on: it is another that cannot be told from it.
            (_, DaemonState::Running { .. }) => {}
            // None runs now: that the last one ended says more.
            (DaemonState::Absent, DaemonState::Ended { .. }) => {}
            (found, _) => self.kubelet.set(found),
        }
        events.extend([self.runtime.event(), self.kubelet.event()]);
        events.dedup();
        events
    }

    /// Returns those that have ended.
    pub(super) fn poll(&mut self) -> Vec<HostEvent> {
        let both = [&mut self.runtime, &mut self.kubelet].into_iter();
        both.filter_map(|watched| watched.look(&self.proc)).collect()
    }

    pub(super) fn runtime(&self) -> Option<DaemonProcess> {
        self.runtime.running()
    }

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

    /// It is known to be this process. Returns what is news: nothing if that was known before.
    fn is_running(&mut self, proc: &Path, process: DaemonProcess) -> Vec<HostEvent> {
        if matches!(self.state, DaemonState::Running { process: known }
            | DaemonState::Ended { process: known } if known == process)
        {
            return Vec::new();
        }
        let ended = self.look(proc);
        self.set(DaemonState::Running { process });
        let now = self.look(proc).unwrap_or_else(|| self.event());
        ended.into_iter().chain([now]).collect()
    }

    fn look(&mut self, proc: &Path) -> Option<HostEvent> {
        let known = self.running()?;
        let lives = read_stat(&proc.join(known.pid.to_string()))
            .is_some_and(|now| now.lives() && now.started == known.started);
        (!lives).then(|| {
            self.set(DaemonState::Ended { process: known });
            self.event()
        })
    }

    fn set(&mut self, state: DaemonState) {
        if self.state != state {
            info!(daemon = ?self.daemon, ?state, "node daemon changed state");
            self.state = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::host::fake::Fake;

    fn of(daemon: Daemon, state: DaemonState) -> HostEvent {
        HostEvent::Daemon { daemon, state }
    }

    fn running(process: DaemonProcess) -> DaemonState {
        DaemonState::Running { process }
    }

    fn ended(process: DaemonProcess) -> DaemonState {
        DaemonState::Ended { process }
    }

    #[test]
    fn a_daemon_ends_once_and_its_number_may_pass_on() {
        let fake = Fake::new();
        let first = fake.process(7, "containerd", 1, 70);
        let mut daemons = Daemons::new(&fake.host.proc);
        assert_eq!(daemons.connected(first), [of(Daemon::Runtime, running(first))]);
        assert_eq!(daemons.connected(first), [], "known");
        assert_eq!((daemons.runtime(), daemons.poll()), (Some(first), vec![]));
        let next = fake.process(7, "containerd", 1, 71);
        assert_eq!(daemons.poll(), [of(Daemon::Runtime, ended(first))]);
        assert_eq!((daemons.runtime(), daemons.poll()), (None, vec![]));
        // A late connection of the CRI adapter to the same process does not revive it.
        assert_eq!(daemons.connected(first), []);
        assert_eq!(daemons.connected(next), [of(Daemon::Runtime, running(next))]);
        fake.task(7, "containerd", 'Z', 1, 71);
        let last = fake.process(9, "containerd", 1, 90);
        let expected = [of(Daemon::Runtime, ended(next)), of(Daemon::Runtime, running(last))];
        assert_eq!(daemons.connected(last), expected, "the end first");
        let unseen = DaemonProcess { pid: 10, started: 100 };
        assert_eq!(daemons.connected(unseen), [of(Daemon::Runtime, ended(unseen))]);
    }

    #[test]
    fn surveys_report_both() {
        let fake = Fake::new();
        let (runtime, kubelet) =
            (fake.process(7, "containerd", 1, 70), fake.process(8, "k", 1, 80));
        let mut daemons = Daemons::new(&fake.host.proc);
        let is = |one: DaemonState, other: DaemonState| {
            vec![of(Daemon::Runtime, one), of(Daemon::Kubelet, other)]
        };
        let (absent, unknown) = (DaemonState::Absent, DaemonState::Unknown);
        assert_eq!(daemons.surveyed(unknown.clone()), is(unknown.clone(), unknown.clone()));
        assert_eq!(daemons.surveyed(absent.clone()), is(unknown.clone(), absent.clone()));
        daemons.connected(runtime);
        let events = daemons.surveyed(running(kubelet));
        assert_eq!(events.last(), is(running(runtime), running(kubelet)).last());
        let events = daemons.surveyed(unknown.clone());
        assert_eq!(events, is(running(runtime), running(kubelet)), "another bears its name");
        fake.ended(7);
        fake.ended(8);
        for _ in 0..2 {
            let events = daemons.surveyed(absent.clone());
            assert_eq!(events, is(ended(runtime), ended(kubelet)));
        }
        let next = fake.process(9, "k", 1, 90);
        daemons.surveyed(running(next));
        assert_eq!(daemons.kubelet(), Some(next));
        assert_eq!(daemons.surveyed(unknown), is(ended(runtime), running(next)));
    }
}
