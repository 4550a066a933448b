//! The node's state: its Node object, and its daemons.

use super::leak::DetectionState;
use crate::{input::*, table::push_latest, time::*};
use std::collections::VecDeque;

/// The unit of start times in /proc: `USER_HZ` is 100 on every architecture of Kubernetes.
const CLOCK_TICK_NS: u64 = 10_000_000;
/// Bound on runs of a daemon; the oldest are evicted.
const MAX_RUNS: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessRun {
    pub process: DaemonProcess,
    /// When its end was noticed.
    pub ended: Option<BootTime>,
}

impl ProcessRun {
    pub fn began(&self) -> BootTime {
        BootTime(self.process.started.saturating_mul(CLOCK_TICK_NS))
    }
}

/// A daemon over its restarts.
#[derive(Clone, Debug, Default)]
pub struct DaemonHistory {
    runs: VecDeque<ProcessRun>,
    state: Option<DaemonState>,
}

impl DaemonHistory {
    fn apply(&mut self, at: BootTime, state: DaemonState) {
        match (&state, self.runs.back_mut()) {
            (DaemonState::Running { process }, Some(last)) if last.process == *process => {
                last.ended = None;
            }
            (DaemonState::Running { process }, last) => {
                last.into_iter().for_each(|last| last.ended = last.ended.or(Some(at)));
                let run = ProcessRun { process: *process, ended: None };
                push_latest(&mut self.runs, run, MAX_RUNS);
            }
            (DaemonState::Ended { process }, _) => {
                let run = self.runs.iter_mut().rev().find(|run| run.process == *process);
                run.into_iter().for_each(|run| run.ended = run.ended.or(Some(at)));
            }
            (DaemonState::Absent, Some(last)) => last.ended = last.ended.or(Some(at)),
            _ => {}
        }
        self.state = Some(state);
    }

    /// The daemon ran, and does not run now.
    pub fn has_ended(&self) -> bool {
        let silent = matches!(self.state, Some(DaemonState::Absent | DaemonState::Ended { .. }));
        silent && !self.runs.is_empty()
    }

    pub fn running(&self) -> Option<ProcessRun> {
        match self.state {
            Some(DaemonState::Running { .. }) => self.runs.back().copied(),
            _ => None,
        }
    }

    pub fn last_end(&self) -> Option<BootTime> {
        self.runs.iter().rev().find_map(|run| run.ended)
    }

    /// Whether the same process has run since; `None`: unknown.
    pub fn uninterrupted_since(&self, since: BootTime) -> Option<bool> {
        self.running().map(|run| run.began() <= since)
    }

    /// Runs that began or ended between `from` and `to`.
    pub fn changes(&self, from: BootTime, to: BootTime) -> impl Iterator<Item = &ProcessRun> {
        let within = move |at: BootTime| from <= at && at <= to;
        self.runs.iter().filter(move |run| within(run.began()) || run.ended.is_some_and(within))
    }
}

#[derive(Clone, Debug, Default)]
pub struct NodeState {
    own_boot: Option<String>,
    node: Option<Result<ApiNode, bool>>,
    pub runtime: DaemonHistory,
    pub kubelet: DaemonHistory,
    pub tools: NodeTools,
}

impl NodeState {
    /// Applies the host's boot id and daemons.
    pub fn apply_host(&mut self, at: BootTime, event: &HostEvent) {
        match event {
            HostEvent::Boot { boot_id } => self.own_boot.clone_from(boot_id),
            HostEvent::Daemon { daemon, state } => match daemon {
                Daemon::Runtime => self.runtime.apply(at, state.clone()),
                Daemon::Kubelet => self.kubelet.apply(at, state.clone()),
            },
            HostEvent::Survey(survey) => self.tools.update(survey.tools.clone()),
        }
    }

    pub fn apply_node(&mut self, event: &ApiEvent) {
        match event {
            ApiEvent::Node(node) => self.node = Some(Ok(node.clone())),
            // A failed call does not invalidate the last Node object; its absence does.
            ApiEvent::NodeUnknown { missing: false, .. } if matches!(self.node, Some(Ok(_))) => {}
            ApiEvent::NodeUnknown { missing, .. } => self.node = Some(Err(*missing)),
            _ => {}
        }
    }

    /// Whether the Node object is this machine's, from the current boot.
    pub fn detection_state(&self) -> DetectionState {
        match (&self.node, &self.own_boot) {
            (None, _) => DetectionState::Starting,
            (Some(Err(true)), _) => DetectionState::NodeMissing,
            (Some(Err(false)), _) | (Some(Ok(_)), None) => DetectionState::NodeUnknown,
            (Some(Ok(node)), Some(own)) => {
                if node.boot_id.trim() == own.trim() && !own.trim().is_empty() {
                    DetectionState::Possible
                } else {
                    DetectionState::NodeForeign
                }
            }
        }
    }

    /// The kubelet is known not to run. No process with a known name is not enough, because it may have
    /// another name; but then it would report the node's condition.
    pub fn kubelet_is_down(&self) -> bool {
        // `Some(false)` would be the kubelet's own report.
        let silent = matches!(&self.node, Some(Ok(node)) if node.ready.is_none());
        let absent = matches!(self.kubelet.state, Some(DaemonState::Absent));
        self.kubelet.has_ended() || (absent && silent)
    }

    /// The kubelet's version as `(1, 23)`, and as written.
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

    fn kubelet(at: u64, state: DaemonState, node: &mut NodeState) {
        let event = HostEvent::Daemon { daemon: Daemon::Kubelet, state };
        node.apply_host(BootTime(at * 1_000_000_000), &event);
    }

    #[test]
    fn a_restart_is_known_by_its_process() {
        let secs = |n: u64| BootTime(n * 1_000_000_000);
        let mut node = NodeState::default();
        assert_eq!(node.kubelet.uninterrupted_since(secs(0)), None);
        kubelet(50, DaemonState::Running { process: process(1, 1_000) }, &mut node);
        assert_eq!(node.kubelet.uninterrupted_since(secs(20)), Some(true), "began at 10 s");
        assert_eq!(node.kubelet.uninterrupted_since(secs(5)), Some(false));
        kubelet(60, DaemonState::Ended { process: process(1, 1_000) }, &mut node);
        assert!(node.kubelet_is_down());
        assert_eq!(node.kubelet.last_end(), Some(secs(60)));
        kubelet(62, DaemonState::Running { process: process(2, 6_200) }, &mut node);
        assert!(!node.kubelet_is_down());
        assert_eq!(node.kubelet.uninterrupted_since(secs(20)), Some(false));
        assert_eq!(node.kubelet.changes(secs(55), secs(70)).count(), 2);
        for n in 0..100 {
            let state = DaemonState::Running { process: process(3, 7_000 + n) };
            kubelet(70 + n, state, &mut node);
        }
        assert_eq!(node.kubelet.runs.len(), MAX_RUNS);
    }

    #[test]
    fn a_kubelet_of_another_name_is_not_down() {
        let reported = |ready| ApiEvent::Node(ApiNode { ready, ..ApiNode::default() });
        let mut node = NodeState::default();
        kubelet(50, DaemonState::Absent, &mut node);
        assert!(!node.kubelet_is_down(), "nothing is known of the node");
        node.apply_node(&reported(Some(true)));
        assert!(!node.kubelet_is_down(), "somebody reports that the node is ready");
        node.apply_node(&reported(Some(false)));
        assert!(!node.kubelet_is_down(), "somebody reports that it is not");
        node.apply_node(&reported(None));
        assert!(node.kubelet_is_down());
    }

    #[test]
    fn only_the_node_of_this_boot_is_this_machine() {
        let reported =
            |boot: &str| ApiEvent::Node(ApiNode { boot_id: boot.into(), ..ApiNode::default() });
        let mut node = NodeState::default();
        assert_eq!(node.detection_state(), DetectionState::Starting);
        node.apply_node(&ApiEvent::NodeUnknown { missing: true, error: String::new() });
        assert_eq!(node.detection_state(), DetectionState::NodeMissing);
        node.apply_node(&reported("b1"));
        assert_eq!(
            node.detection_state(),
            DetectionState::NodeUnknown,
            "the own boot is not known"
        );
        node.apply_host(BootTime(0), &HostEvent::Boot { boot_id: Some("b1\n".into()) });
        assert_eq!(node.detection_state(), DetectionState::Possible);
        node.apply_node(&ApiEvent::NodeUnknown { missing: false, error: String::new() });
        assert_eq!(node.detection_state(), DetectionState::Possible, "one failed call");
        node.apply_node(&reported("b2"));
        assert_eq!(node.detection_state(), DetectionState::NodeForeign);
        node.apply_node(&reported(""));
        node.apply_host(BootTime(0), &HostEvent::Boot { boot_id: Some(String::new()) });
        assert_eq!(node.detection_state(), DetectionState::NodeForeign, "nothing is like nothing");
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
            let mut node = NodeState::default();
            let object = ApiNode { kubelet_version: text.into(), ..ApiNode::default() };
            node.apply_node(&ApiEvent::Node(object));
            assert_eq!(node.kubelet_version().map(|(version, _)| version), wanted, "{text}");
        }
    }
}
