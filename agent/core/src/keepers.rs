//! Those who should have cleaned up: this node as the apiserver knows it, and its daemons.

use super::{
    input::{ApiEvent, ApiNode, Daemon, DaemonProcess, DaemonState, HostEvent},
    leak::Judgement,
    time::BootTime,
};

/// Start times in /proc are counted in these: `USER_HZ` is 100 on every architecture that
/// Kubernetes runs on.
const CLOCK_TICK_NS: u64 = 10_000_000;
/// Bound on remembered runs of a daemon: the oldest go.
const MAX_RUNS: usize = 32;

/// One process of a daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The process.
    pub process: DaemonProcess,
    /// When its end was known.
    pub ended: Option<BootTime>,
}

impl Run {
    /// When it began.
    pub fn began(&self) -> BootTime {
        BootTime(self.process.started.saturating_mul(CLOCK_TICK_NS))
    }
}

/// A daemon, over its restarts.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    runs: Vec<Run>,
    /// As last told.
    state: Option<DaemonState>,
}

impl Runs {
    fn learn(&mut self, at: BootTime, state: DaemonState) {
        match &state {
            DaemonState::Running { process } => {
                match self.runs.last_mut() {
                    Some(last) if last.process == *process => last.ended = None,
                    last => {
                        if let Some(last) = last {
                            last.ended.get_or_insert(at);
                        }
                        self.runs.push(Run { process: *process, ended: None });
                    }
                }
                let excess = self.runs.len().saturating_sub(MAX_RUNS);
                self.runs.drain(..excess);
            }
            DaemonState::Ended { process } => {
                if let Some(run) = self.runs.iter_mut().rev().find(|run| run.process == *process) {
                    run.ended.get_or_insert(at);
                }
            }
            DaemonState::Absent => {
                if let Some(last) = self.runs.last_mut() {
                    last.ended.get_or_insert(at);
                }
            }
            DaemonState::Unknown => {}
        }
        self.state = Some(state);
    }

    /// It ran, and does not run at this moment.
    pub fn has_ended(&self) -> bool {
        let silent = matches!(self.state, Some(DaemonState::Absent | DaemonState::Ended { .. }));
        silent && !self.runs.is_empty()
    }

    /// The process that runs at this moment.
    pub fn running(&self) -> Option<Run> {
        match self.state {
            Some(DaemonState::Running { .. }) => self.runs.last().copied(),
            _ => None,
        }
    }

    /// The last end that is known of it.
    pub fn last_end(&self) -> Option<BootTime> {
        self.runs.iter().rev().find_map(|run| run.ended)
    }

    /// Whether the same process has run since then. `None`: not known.
    pub fn ran_through(&self, since: BootTime) -> Option<bool> {
        self.running().map(|run| run.began() <= since)
    }

    /// Runs that began or ended in this time.
    pub fn changes(&self, from: BootTime, to: BootTime) -> impl Iterator<Item = &Run> {
        let within = move |at: BootTime| from <= at && at <= to;
        self.runs.iter().filter(move |run| within(run.began()) || run.ended.is_some_and(within))
    }
}

/// The node and its daemons.
#[derive(Clone, Debug, Default)]
pub struct Keepers {
    own_boot: Option<String>,
    node: Option<Result<ApiNode, bool>>,
    /// The runtime.
    pub runtime: Runs,
    /// The kubelet.
    pub kubelet: Runs,
}

impl Keepers {
    /// Takes what the host tells of its boot and its daemons.
    pub fn learn_host(&mut self, at: BootTime, event: &HostEvent) {
        match event {
            HostEvent::Boot { boot_id } => self.own_boot.clone_from(boot_id),
            HostEvent::Daemon { daemon: Daemon::Runtime, state } => {
                self.runtime.learn(at, state.clone());
            }
            HostEvent::Daemon { daemon: Daemon::Kubelet, state } => {
                self.kubelet.learn(at, state.clone());
            }
            HostEvent::Survey(_) => {}
        }
    }

    /// Takes what the apiserver tells of the node.
    pub fn learn_node(&mut self, event: &ApiEvent) {
        match event {
            ApiEvent::Node(node) => self.node = Some(Ok(node.clone())),
            // A call that failed does not unsay what is known; that there is no such node does.
            ApiEvent::NodeUnknown { missing: false, .. } if matches!(self.node, Some(Ok(_))) => {}
            ApiEvent::NodeUnknown { missing, .. } => self.node = Some(Err(*missing)),
            _ => {}
        }
    }

    /// Whether the Node object is this machine's, as it booted last.
    pub fn judgement(&self) -> Judgement {
        match (&self.node, &self.own_boot) {
            (None, _) => Judgement::Starting,
            (Some(Err(true)), _) => Judgement::NodeMissing,
            (Some(Err(false)), _) | (Some(Ok(_)), None) => Judgement::NodeUnknown,
            (Some(Ok(node)), Some(own)) => {
                if node.boot_id.trim() == own.trim() && !own.trim().is_empty() {
                    Judgement::Possible
                } else {
                    Judgement::NodeForeign
                }
            }
        }
    }

    /// The kubelet is known not to run at this moment. That no process has the name of one is not
    /// enough: it may have another name. But then it would report its node's condition.
    pub fn kubelet_is_down(&self) -> bool {
        // False would be the kubelet's own word.
        let silent = matches!(&self.node, Some(Ok(node)) if node.ready.is_none());
        let absent = matches!(self.kubelet.state, Some(DaemonState::Absent));
        self.kubelet.has_ended() || (absent && silent)
    }

    /// The kubelet's version, as `(1, 23)`, and as it is written.
    pub fn kubelet_version(&self) -> Option<((u32, u32), &str)> {
        let Some(Ok(node)) = &self.node else { return None };
        let text = node.kubelet_version.as_str();
        let mut numbers = text.trim_start_matches('v').split(['.', '-', '+']).map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Some(((major, minor), text)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, started: u64) -> DaemonProcess {
        DaemonProcess { pid, started }
    }

    fn kubelet(at: u64, state: DaemonState, keepers: &mut Keepers) {
        let event = HostEvent::Daemon { daemon: Daemon::Kubelet, state };
        keepers.learn_host(BootTime(at * 1_000_000_000), &event);
    }

    #[test]
    fn a_restart_is_known_by_its_process() {
        let secs = |n: u64| BootTime(n * 1_000_000_000);
        let mut keepers = Keepers::default();
        assert_eq!(keepers.kubelet.ran_through(secs(0)), None);
        kubelet(50, DaemonState::Running { process: process(1, 1_000) }, &mut keepers);
        assert_eq!(keepers.kubelet.ran_through(secs(20)), Some(true), "began at 10 s");
        assert_eq!(keepers.kubelet.ran_through(secs(5)), Some(false));
        kubelet(60, DaemonState::Ended { process: process(1, 1_000) }, &mut keepers);
        assert!(keepers.kubelet_is_down());
        assert_eq!(keepers.kubelet.last_end(), Some(secs(60)));
        kubelet(62, DaemonState::Running { process: process(2, 6_200) }, &mut keepers);
        assert!(!keepers.kubelet_is_down());
        assert_eq!(keepers.kubelet.ran_through(secs(20)), Some(false));
        assert_eq!(keepers.kubelet.changes(secs(55), secs(70)).count(), 2);
        for n in 0..100 {
            let state = DaemonState::Running { process: process(3, 7_000 + n) };
            kubelet(70 + n, state, &mut keepers);
        }
        assert_eq!(keepers.kubelet.runs.len(), MAX_RUNS);
    }

    #[test]
    fn a_kubelet_of_another_name_is_not_down() {
        let node = |ready| ApiEvent::Node(ApiNode { ready, ..ApiNode::default() });
        let mut keepers = Keepers::default();
        kubelet(50, DaemonState::Absent, &mut keepers);
        assert!(!keepers.kubelet_is_down(), "nothing is known of the node");
        keepers.learn_node(&node(Some(true)));
        assert!(!keepers.kubelet_is_down(), "somebody reports that the node is ready");
        keepers.learn_node(&node(Some(false)));
        assert!(!keepers.kubelet_is_down(), "somebody reports that it is not");
        keepers.learn_node(&node(None));
        assert!(keepers.kubelet_is_down());
    }

    #[test]
    fn only_the_node_of_this_boot_is_this_machine() {
        let node =
            |boot: &str| ApiEvent::Node(ApiNode { boot_id: boot.into(), ..ApiNode::default() });
        let mut keepers = Keepers::default();
        assert_eq!(keepers.judgement(), Judgement::Starting);
        keepers.learn_node(&ApiEvent::NodeUnknown { missing: true, error: String::new() });
        assert_eq!(keepers.judgement(), Judgement::NodeMissing);
        keepers.learn_node(&node("b1"));
        assert_eq!(keepers.judgement(), Judgement::NodeUnknown, "the own boot is not known");
        keepers.learn_host(BootTime(0), &HostEvent::Boot { boot_id: Some("b1\n".into()) });
        assert_eq!(keepers.judgement(), Judgement::Possible);
        keepers.learn_node(&ApiEvent::NodeUnknown { missing: false, error: String::new() });
        assert_eq!(keepers.judgement(), Judgement::Possible, "one failed call");
        keepers.learn_node(&node("b2"));
        assert_eq!(keepers.judgement(), Judgement::NodeForeign);
        keepers.learn_node(&node(""));
        keepers.learn_host(BootTime(0), &HostEvent::Boot { boot_id: Some(String::new()) });
        assert_eq!(keepers.judgement(), Judgement::NodeForeign, "nothing is like nothing");
    }

    #[test]
    fn versions_of_the_kubelet() {
        for (text, wanted) in [
            ("v1.23.1", Some((1, 23))),
            ("v1.27.3-gke.100", Some((1, 27))),
            ("v1.25+k3s1", Some((1, 25))),
            ("1.33.0", Some((1, 33))),
            ("", None),
            ("devel", None),
        ] {
            let mut keepers = Keepers::default();
            let node = ApiNode { kubelet_version: text.into(), ..ApiNode::default() };
            keepers.learn_node(&ApiEvent::Node(node));
            assert_eq!(keepers.kubelet_version().map(|(version, _)| version), wanted, "{text}");
        }
    }
}
