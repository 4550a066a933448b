//! The processes of the host, read in one pass.

use super::{HostView, SurveyError};
use crate::linux::procfs::{is_of_the_host, parse::Stat, read_stat};
use coroner_core::input::DaemonProcess;
use std::{collections::BTreeMap, fs, io, path::PathBuf};

/// More processes than this are not gone through.
const MAX_PROCESSES: usize = 1 << 17;
/// The parent of all kernel threads.
const KTHREADD: u32 = 2;

/// The processes of the host by number: all of them, or there is no table.
#[derive(Debug)]
pub(super) struct Table {
    proc: PathBuf,
    processes: BTreeMap<u32, Stat>,
}

/// A namespace that a process is in could not be told.
#[derive(Debug)]
pub(super) enum NoNamespace {
    /// CAP_SYS_PTRACE is missing.
    Denied,
    Gone,
}

impl Table {
    /// One read of each process. An error: not all of the host's can be seen.
    pub(super) fn read(host: &HostView) -> Result<Self, SurveyError> {
        let proc = host.proc.clone();
        let entries = fs::read_dir(&proc).map_err(|error| SurveyError::unread(&proc, &error))?;
        let mut processes = BTreeMap::new();
        for entry in entries {
            let entry = entry.map_err(|error| SurveyError::unread(&proc, &error))?;
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if processes.len() >= MAX_PROCESSES {
                return Err(SurveyError::TooManyProcesses(MAX_PROCESSES));
            }
            if let Some(process) = read_stat(&entry.path()) {
                processes.insert(pid, process);
            }
        }
        let table = Self { proc, processes };
        // In a PID namespace of containers, the runtime's own is all that counts (kind, k3d).
        if host.runtime.is_some_and(|runtime| table.has(runtime)) || is_of_the_host(&table.proc) {
            return Ok(table);
        }
        Err(SurveyError::NotTheHostView(table.proc))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Stat)> {
        self.processes.iter().map(|(pid, process)| (*pid, process))
    }

    pub(super) fn get(&self, pid: u32) -> Option<&Stat> {
        self.processes.get(&pid)
    }

    /// It is there and has not ended.
    pub(super) fn has(&self, daemon: DaemonProcess) -> bool {
        self.processes
            .get(&daemon.pid)
            .is_some_and(|process| process.lives() && process.started == daemon.started)
    }

    /// Processes that have not ended and are no kernel threads.
    pub(super) fn living(&self) -> impl Iterator<Item = (u32, &Stat)> {
        // In a PID namespace of containers 2 is somebody else.
        let is_first = self.get(KTHREADD).is_some_and(|process| process.comm == "kthreadd");
        let is_kernel =
            move |pid, process: &Stat| is_first && (pid == KTHREADD || process.parent == KTHREADD);
        self.iter().filter(move |(pid, process)| process.lives() && !is_kernel(*pid, process))
    }

    /// A namespace of a process (`net`, `mnt`, `pid`), by its inode.
    pub(super) fn namespace(&self, pid: u32, kind: &str) -> Result<u64, NoNamespace> {
        let link = self.proc.join(format!("{pid}/ns/{kind}"));
        match fs::read_link(link) {
            Ok(target) => target.to_str().and_then(namespace_inode).ok_or(NoNamespace::Gone),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(NoNamespace::Denied)
            }
            Err(_) => Err(NoNamespace::Gone),
        }
    }
}

/// The inode in `net:[4026531840]`.
pub(super) fn namespace_inode(link: &str) -> Option<u64> {
    link.split_once(":[")?.1.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::host::fake::Fake;

    #[test]
    fn namespaces() {
        assert_eq!(namespace_inode("net:[4026531840]"), Some(4_026_531_840));
        for bad in ["", "net:", "net:[", "net:[]", "net:[x]", "net:[1", "net:[-1]"] {
            assert_eq!(namespace_inode(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn all_processes_or_none() {
        let mut fake = Fake::new();
        fake.process(1, "systemd", 0, 1);
        assert!(matches!(Table::read(&fake.host), Err(SurveyError::NotTheHostView(_))));
        let runtime = fake.process(7, "containerd", 1, 70);
        fake.host.runtime = Some(runtime);
        assert!(Table::read(&fake.host).is_ok(), "all that the runtime can have started");
        fake.host.runtime = Some(DaemonProcess { started: 71, ..runtime });
        assert!(Table::read(&fake.host).is_err(), "another process of that number");
        fake.kthreadd();
        fake.file("proc/notes", "");
        fake.file("proc/9/stat", "garbage");
        let table = Table::read(&fake.host).unwrap();
        assert_eq!(table.iter().map(|(pid, _)| pid).collect::<Vec<_>>(), [1, 2, 7]);
        assert_eq!(table.living().map(|(pid, _)| pid).collect::<Vec<_>>(), [1, 7]);
        fake.host.proc = "/nonexistent".into();
        assert!(matches!(Table::read(&fake.host), Err(SurveyError::Unread { .. })));
    }
}
