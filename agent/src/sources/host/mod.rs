//! The host adapter: surveys shims, network namespaces, cgroups and mounts of pods, and the state of the node daemons
//! that clean them up. It only reads /proc, the cgroup hierarchy and /run, all below `--host-root`.
//!
//! **Invariant.** A part that cannot be read is `None`, never empty, so that nothing is concluded from it. Of
//! command lines only the words that identify a shim are kept.

mod daemons;
#[cfg(test)]
mod fake;
mod kubelet;
mod mounts;
mod netns;
mod pods;
mod run;
mod shims;
mod table;
mod tools;

use coroner_core::input::{DaemonProcess, HostSurvey};
pub use run::{HostCounters, HostOptions, Runtime, run};

use crate::linux::{blocking::CallError, clock, socket_file::SocketId};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Maximum number of entries of each kind in a survey; more are counted as errors.
const MAX_ENTRIES: usize = 16_384;

/// Paths and processes of the host that a survey uses.
#[derive(Clone, Debug)]
pub struct HostView {
    pub root: PathBuf,
    /// The /proc that shows the host's processes: mostly the one below `root`.
    pub proc: PathBuf,
    pub cgroup_root: PathBuf,
    /// Names of the kubelet's process, or of what it is part of; see [`HostView::KUBELETS`].
    pub kubelets: Vec<String>,
    pub socket: Option<SocketId>,
    pub runtime: Option<DaemonProcess>,
    pub kubelet: Option<DaemonProcess>,
}

impl HostView {
    /// Names of a kubelet's process: its own, k3s' two, microk8s', MicroShift's.
    pub const KUBELETS: [&str; 5] =
        ["kubelet", "k3s-server", "k3s-agent", "kubelite", "microshift"];
}

#[derive(Debug, thiserror::Error)]
enum SurveyError {
    #[error("cannot read {} ({error}); mount the host's / into the pod and set --host-root",
            path.display())]
    Unread { path: PathBuf, error: String },
    #[error("{} does not show the host's processes; set hostPID: true, or mount the host's / and \
             set --host-root. If that /proc is mounted with hidepid, add the SYS_PTRACE \
             capability", .0.display())]
    NotTheHostView(PathBuf),
    #[error("the host has more than {0} processes")]
    TooManyProcesses(usize),
    #[error(
        "not permitted to read the namespaces of the host's processes; add the SYS_PTRACE \
         capability and run without AppArmor and SELinux confinement"
    )]
    NamespacesDenied,
    #[error(
        "the runtime's process is unknown; its shims cannot be distinguished from those of other \
         runtimes"
    )]
    NoRuntime,
    #[error(
        "cannot determine which of {0} kubepods cgroup trees belongs to this kubelet; it is \
         determined when one of its pods runs and the agent sees the host's processes (hostPID: \
         true)"
    )]
    NobodysPods(usize),
    #[error("no process shows the host's mounts")]
    NoMounts,
    #[error("cannot read it: {0}")]
    NoAnswer(#[from] CallError),
}

impl SurveyError {
    fn unread(path: &Path, error: &io::Error) -> Self {
        Self::Unread { path: path.to_owned(), error: error.to_string() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum SurveyPart {
    Processes,
    Shims,
    NetworkNamespaces,
    PodCgroups,
    Volumes,
}

impl SurveyPart {
    /// What is not reported while this part cannot be read.
    fn cost(self) -> &'static str {
        match self {
            Self::Processes => {
                "leaks of class orphan_shim, orphan_netns and orphan_pod_cgroup, and kubelet \
                 restarts"
            }
            Self::Shims => "leaks of class orphan_shim",
            Self::NetworkNamespaces => "leaks of class orphan_netns",
            Self::PodCgroups => "leaks of class orphan_pod_cgroup",
            Self::Volumes => "mounted pod volumes as the cause of a leak",
        }
    }
}

#[derive(Debug, Default)]
struct PartialSurvey {
    survey: HostSurvey,
    errors: Vec<(SurveyPart, SurveyError)>,
    left_out: u64,
}

impl PartialSurvey {
    fn begin() -> Self {
        let survey = HostSurvey { asked: clock::boot_now(), ..HostSurvey::default() };
        Self { survey, ..Self::default() }
    }

    fn seen<T>(&mut self, part: SurveyPart, found: Result<T, SurveyError>) -> Option<T> {
        found.map_err(|blind| self.errors.push((part, blind))).ok()
    }

    fn list<T>(&mut self, part: SurveyPart, found: Result<Vec<T>, SurveyError>) -> Option<Vec<T>> {
        let mut found = self.seen(part, found)?;
        self.left_out += found.len().saturating_sub(MAX_ENTRIES) as u64;
        found.truncate(MAX_ENTRIES);
        Some(found)
    }
}

/// The boot id, `8c1b2f9e-…`. `None`: cannot be read.
///
/// The kernel has one id for all namespaces (`proc_do_uuid` in `drivers/char/random.c`), so that this
/// process' own /proc shows it where the host's file system is closed. The host's comes first: in a
/// node that is a container, systemd-nspawn mounts another file over it, which the kubelet reports.
pub fn boot_id(host_root: &Path) -> Option<String> {
    boot_id_in([&host_root.join("proc"), Path::new("/proc")])
}

fn boot_id_in(procs: [&Path; 2]) -> Option<String> {
    procs.into_iter().find_map(|proc| {
        let text = fs::read_to_string(proc.join("sys/kernel/random/boot_id")).ok()?;
        let id = text.trim();
        (!id.is_empty()).then(|| id.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fake::Fake;
    use run::survey;

    #[test]
    fn no_more_than_can_be_held() {
        let mut looked = PartialSurvey::begin();
        let found = looked.list(SurveyPart::Shims, Ok(vec![(); MAX_ENTRIES + 3]));
        assert_eq!((found.map(|list| list.len()), looked.left_out), (Some(MAX_ENTRIES), 3));
    }

    #[test]
    fn boots() {
        let fake = Fake::new();
        let own = fake.host.root.join("own");
        let boot_id = || boot_id_in([&fake.host.proc, &own]);
        assert_eq!(boot_id(), None);
        for (file, text, expected) in [
            ("proc/sys/kernel/random/boot_id", "\n", None),
            ("own/sys/kernel/random/boot_id", "8c1b2f9e\n", Some("8c1b2f9e")),
            ("proc/sys/kernel/random/boot_id", "77d01a3e\n", Some("77d01a3e")),
        ] {
            fake.file(file, text);
            assert_eq!(boot_id().as_deref(), expected, "{file}");
        }
    }

    /// As with hostPID where /proc/1/root is closed.
    #[tokio::test]
    async fn a_closed_root_costs_the_network_namespaces_alone() {
        let mut fake = Fake::new();
        fake.kthreadd();
        fake.file("proc/1/mountinfo", "22 1 8:1 / / rw - ext4 /dev/vda1 rw\n");
        fake.close_root();
        let found = survey(&fake.host).await;
        assert_eq!(found.netns, None, "unknown, not empty");
        assert_eq!((found.shims, found.pod_cgroups), (Some(vec![]), Some(vec![])));
        assert_eq!(found.volumes, Some(vec![]));
    }

    #[tokio::test]
    async fn each_part_is_unknown_alone() {
        let mut fake = Fake::new();
        fake.file("proc/1/mountinfo", "22 1 8:1 / / rw - ext4 /dev/vda1 rw\n");
        let blind = survey(&fake.host).await;
        assert_eq!((blind.shims, blind.netns), (None, None), "not the host's /proc");
        assert_eq!((blind.pod_cgroups, blind.volumes), (None, Some(vec![])));
        fake.kthreadd();
        fake.host.cgroup_root = "/nonexistent".into();
        let seeing = survey(&fake.host).await;
        assert_eq!((seeing.shims, seeing.netns), (Some(vec![]), Some(vec![])));
        assert_eq!(seeing.pod_cgroups, None);
    }
}
