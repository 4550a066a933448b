//! The pods whose connections are counted.

use crate::{
    linux::{
        clock,
        procfs::{host_proc, net, read_stat},
    },
    sources::kernel::counting::{Counting, RESETS, TRANSITIONS, counts},
};
use coroner_core::{
    exit_blockers::same_start,
    ids::{SandboxId, Tgid},
    input::{
        Loss, LossKind, NetworkCounters, TrafficBlindness, TrafficCount, TrafficEvent, TrafficFact,
        TrafficReading,
    },
    output::{CountTraffic, TrafficRequest},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tracing::{debug, info, warn};

/// So long after the last pod the programs are detached.
const LINGER: Duration = Duration::from_secs(30);
/// A pod without processes that was not asked for in so long was forgotten by whoever asked.
const ABANDONED: Duration = Duration::from_secs(600);
/// The node's own addresses are read again after this, while connections are counted.
const NODE_ADDRESSES: Duration = Duration::from_secs(60);
/// Processes in the host's network namespace, of which one may be closed to others.
const HOSTS: [u32; 2] = [1, 2];

/// The pods whose connections are counted, and the programs that do.
pub(super) struct CountedPods {
    proc: PathBuf,
    /// The process whose root is the host's: its network has the node's addresses, too, where the node is a
    /// namespace of its own (`/proc/PID/root`).
    node_process: Option<PathBuf>,
    counting: Counting,
    /// Attached even while nothing is counted.
    always: bool,
    pods: BTreeMap<SandboxId, CountedPod>,
    node: BTreeSet<IpAddr>,
    /// When they were read.
    node_read: Option<Instant>,
    /// Since when nothing is counted.
    idle_since: Instant,
    /// That they cannot be attached was logged.
    warned: bool,
    /// How many events that the programs have missed were reported.
    reported_lost: u64,
}

/// What the programs have counted, and how many events they had missed by then.
type Counted = Result<(Vec<TrafficCount>, u64), TrafficBlindness>;

struct CountedPod {
    netns: u32,
    processes: Vec<(Tgid, Option<u64>)>,
    asked: Instant,
    /// The listening ports were read after the stop signal.
    is_stop_read: bool,
    /// The end: another pod has got the number of its network namespace.
    frozen: Option<Counted>,
}

impl CountedPods {
    pub(super) fn new(host_root: &Path, counting: Counting, always: bool) -> Self {
        let is_of_a_process = host_root.ends_with("root") && host_root.starts_with("/proc");
        Self {
            proc: host_proc(host_root),
            node_process: host_root.parent().filter(|_| is_of_a_process).map(Path::to_owned),
            counting,
            always,
            pods: BTreeMap::new(),
            node: BTreeSet::new(),
            node_read: None,
            idle_since: Instant::now(),
            warned: false,
            reported_lost: 0,
        }
    }

    /// Nothing is to be done until the next request.
    pub(super) fn is_idle(&self) -> bool {
        self.pods.is_empty() && self.counting.attaches(TRANSITIONS) == self.always
    }

    /// Does what is asked; the answer, if there is one.
    pub(super) fn answer(&mut self, request: TrafficRequest) -> Option<TrafficEvent> {
        let (sandbox, fact) = match request {
            TrafficRequest::Count(wanted) => (wanted.sandbox.clone(), self.count(wanted)),
            TrafficRequest::Read(sandbox) => {
                let read = self.read(&sandbox);
                (sandbox, read)
            }
            TrafficRequest::Forget(sandbox) => {
                self.forget(&sandbox);
                return None;
            }
        };
        let fact = fact.unwrap_or_else(|reason| TrafficFact::NotVisible { reason });
        Some(TrafficEvent { sandbox, fact })
    }

    /// What the programs have missed since the last call.
    pub(super) fn take_loss(&mut self) -> Option<Loss> {
        let lost = self.counting.lost();
        let more = lost - std::mem::replace(&mut self.reported_lost, lost);
        (more > 0).then(|| Loss::new(LossKind::ConnectionSkipped, more))
    }

    fn count(&mut self, wanted: CountTraffic) -> Result<TrafficFact, TrafficBlindness> {
        let CountTraffic { sandbox, processes } = wanted;
        self.forget(&sandbox);
        let (folder, netns) = self.find(&processes).ok_or(TrafficBlindness::NoProcess)?;
        // What may be the host's must not be marked.
        if self.is_the_nodes(netns).ok_or(TrafficBlindness::NoProcess)? {
            return Err(TrafficBlindness::HostNetwork);
        }
        self.attach()?;
        self.find_node_addresses();
        self.free_number(netns);
        let listening = listening_ports(&folder).ok_or(TrafficBlindness::NoProcess)?;
        let (at, skipped) = (clock::boot_now(), self.counting.lost());
        self.counting.insert(netns, &listening).map_err(|_| TrafficBlindness::MapFull)?;
        // Before it was marked, the number may have become another's.
        if self.find(&processes).is_none_or(|(_, found)| found != netns) {
            self.counting.remove(netns);
            return Err(TrafficBlindness::NoProcess);
        }
        let established = net::established(&folder);
        let network = established.map(|established| NetworkCounters { established, listening });
        let (asked, is_stop_read, frozen) = (Instant::now(), false, None);
        let pod = CountedPod { netns, processes, asked, is_stop_read, frozen };
        self.pods.insert(sandbox, pod);
        let reading = TrafficReading { at, counts: Vec::new(), network, skipped };
        Ok(TrafficFact::Began { reading, sees_refusals: self.counting.attaches(RESETS) })
    }

    /// The number of a namespace that is gone is used again: the pod that had it keeps what was counted.
    fn free_number(&mut self, netns: u32) {
        let counted = self.counted(netns);
        let mut pods = self.pods.values_mut();
        if let Some(pod) = pods.find(|pod| pod.netns == netns && pod.frozen.is_none()) {
            pod.frozen = Some(counted);
            self.counting.remove(netns);
        }
    }

    fn read(&mut self, sandbox: &SandboxId) -> Result<TrafficFact, TrafficBlindness> {
        // Forgotten because no process was left.
        let pod = self.pods.get_mut(sandbox).ok_or(TrafficBlindness::NoProcess)?;
        pod.asked = Instant::now();
        let at = clock::boot_now();
        if let Some(frozen) = pod.frozen.clone() {
            let (counts, skipped) = frozen?;
            let reading = TrafficReading { at, counts, network: None, skipped };
            return Ok(TrafficFact::Counted { reading });
        }
        let (processes, netns) = (pod.processes.clone(), pod.netns);
        // Once: where nothing listens any more, the whole table is read.
        let is_stopped = self.counting.read(netns).is_some_and(|entry| entry.stopped != 0);
        let reads_ports = is_stopped && !std::mem::replace(&mut pod.is_stop_read, is_stopped);
        let folder = self.find(&processes).filter(|(_, found)| *found == netns);
        let network = folder.and_then(|(folder, _)| {
            let listening = if reads_ports { listening_ports(&folder)? } else { Vec::new() };
            Some(NetworkCounters { established: net::established(&folder)?, listening })
        });
        let (counts, skipped) = self.counted(netns)?;
        Ok(TrafficFact::Counted { reading: TrafficReading { at, counts, network, skipped } })
    }

    fn counted(&mut self, netns: u32) -> Counted {
        let entry = self.counting.read(netns).ok_or(TrafficBlindness::NoProgram)?;
        Ok((counts(&entry), self.counting.lost()))
    }

    fn forget(&mut self, sandbox: &SandboxId) {
        if let Some(pod) = self.pods.remove(sandbox) {
            if pod.frozen.is_none() {
                self.counting.remove(pod.netns);
            }
            self.idle_since = Instant::now();
        }
    }

    /// Attaches or detaches the programs, as it is time, and removes what nobody asks for.
    pub(super) fn sweep(&mut self) {
        let now = Instant::now();
        let is_old = |pod: &CountedPod| now.duration_since(pod.asked) >= ABANDONED;
        let old =
            self.pods.iter().filter(|(_, pod)| is_old(pod) && self.find(&pod.processes).is_none());
        let old: Vec<_> = old.map(|(sandbox, _)| sandbox.clone()).collect();
        for sandbox in &old {
            debug!(%sandbox, "stopped counting connections of a pod that has ended");
            self.forget(sandbox);
        }
        if !self.pods.is_empty() {
            self.find_node_addresses();
        }
        if self.always {
            // Tried again if it fails, and logged once.
            let _ = self.attach();
        } else if self.pods.is_empty()
            && self.counting.attaches(TRANSITIONS)
            && now.duration_since(self.idle_since) >= LINGER
        {
            self.counting.detach();
            debug!("no longer counting connections");
        }
    }

    fn attach(&mut self) -> Result<(), TrafficBlindness> {
        if self.counting.attaches(TRANSITIONS) {
            return Ok(());
        }
        match self.counting.attach() {
            Ok(()) => {
                if std::mem::take(&mut self.warned) {
                    info!("connections of terminating pods are counted again");
                }
                self.idle_since = Instant::now();
                let refusals = self.counting.attaches(RESETS);
                match self.always {
                    true => info!(refusals, "counting connections"),
                    false => debug!(refusals, "counting connections"),
                }
                Ok(())
            }
            Err(error) => {
                if !std::mem::replace(&mut self.warned, true) {
                    warn!(error, "cannot count connections of terminating pods");
                }
                Err(TrafficBlindness::NotAttached)
            }
        }
    }

    fn find_node_addresses(&mut self) {
        if self.node_read.is_some_and(|read| read.elapsed() < NODE_ADDRESSES) {
            return;
        }
        let mut found = net::local_addresses(&self.proc.join(HOSTS[0].to_string()));
        found.extend(self.node_process.iter().flat_map(|process| net::local_addresses(process)));
        if found.is_empty() {
            return; // not read: a node has one
        }
        self.node_read = Some(Instant::now());
        // Each family has a file of its own, of which one may not be readable.
        for of_family in [IpAddr::is_ipv4, IpAddr::is_ipv6] {
            if !found.iter().any(of_family) {
                found.extend(self.node.iter().filter(|address| of_family(address)));
            }
        }
        for gone in self.node.difference(&found) {
            self.counting.remove_node_address(*gone);
        }
        let is_named = |address: &IpAddr| {
            self.node.contains(address) || self.counting.add_node_address(*address).is_ok()
        };
        // An address that does not fit is tried again the next time.
        self.node = found.into_iter().filter(is_named).collect();
    }

    /// The first of these processes that is alive: its folder in /proc, and its network namespace.
    fn find(&self, processes: &[(Tgid, Option<u64>)]) -> Option<(PathBuf, u32)> {
        processes.iter().find_map(|(tgid, known)| {
            let folder = self.proc.join(tgid.0.to_string());
            let is_it = || {
                let stat = read_stat(&folder)?;
                let same = known.is_none_or(|known| same_start(known, stat.started_ns()));
                (same && stat.lives()).then_some(())
            };
            is_it()?;
            let netns = match namespace(&folder) {
                Ok(netns) => netns?,
                Err(error) => {
                    debug!(%error, process = tgid.0, "cannot read a network namespace");
                    return None;
                }
            };
            // Its number was not used again in between.
            is_it()?;
            Some((folder, netns))
        })
    }

    /// Whether a network namespace is the host's, or of a node that is a namespace of its own; `None`: not known.
    fn is_the_nodes(&self, netns: u32) -> Option<bool> {
        let of = |folder: &PathBuf| namespace(folder).ok().flatten();
        let host = HOSTS.map(|pid| self.proc.join(pid.to_string())).iter().find_map(of)?;
        Some([Some(host), self.node_process.as_ref().and_then(of)].contains(&Some(netns)))
    }
}

/// The network namespace of a process, by its folder in /proc.
fn namespace(folder: &Path) -> io::Result<Option<u32>> {
    Ok(u32::try_from(fs::metadata(folder.join("ns/net"))?.ino()).ok())
}

/// `None`: its process has gone.
fn listening_ports(folder: &Path) -> Option<Vec<u16>> {
    net::listening_ports(folder)
        .inspect_err(|error| {
            debug!(%error, folder = %folder.display(), "cannot read listening sockets");
        })
        .ok()
}
