//! Network namespaces that a runtime keeps by a mount below `/run/netns`.
//!
//! A namespace is in use while a process is in it. Only each process' main thread is asked: a lone
//! thread elsewhere is a runtime or a CNI plugin at work, done in moments, and to ask all threads
//! would cost ten times as much.

use super::{
    HostView, SurveyError, mounts,
    table::{NoNamespace, Table},
};
use coroner_core::input::NetNamespace;
use rustix::fs::{stat, statfs};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

/// The magic number of nsfs: `include/uapi/linux/magic.h`, `NSFS_MAGIC`.
const NSFS: u64 = 0x6e73_6673;
/// The first process.
const INIT: u32 = 1;
/// Where runtimes keep them (containerd `pkg/netns`, CRI-O `namespaces_dir`).
const FOLDERS: [&str; 2] = ["run/netns", "var/run/netns"];

/// The namespaces that a runtime made, and how many processes are in each.
pub(super) fn namespaces(host: &HostView, table: &Table) -> Result<Vec<NetNamespace>, SurveyError> {
    let mut found = kept(host)?;
    if found.iter().any(|namespace| namespace.inode.is_some()) {
        let processes = processes(table)?;
        for namespace in &mut found {
            let inside = namespace.inode.and_then(|inode| processes.get(&inode));
            namespace.processes = inside.copied().unwrap_or_default();
        }
    }
    Ok(found)
}

/// Those that are kept, without their processes.
fn kept(host: &HostView) -> Result<Vec<NetNamespace>, SurveyError> {
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    let mut mounted = None;
    for folder in FOLDERS {
        let path = host.root.join(folder);
        let is_own =
            |path: &Path| is_own_directory(path).map_err(|error| SurveyError::unread(path, &error));
        if !is_own(path.parent().unwrap_or(&path))? || !is_own(&path)? {
            continue;
        }
        for entry in fs::read_dir(&path).map_err(|error| SurveyError::unread(&path, &error))? {
            let entry = entry.map_err(|error| SurveyError::unread(&path, &error))?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            if !is_file || !is_a_runtimes(&name) || known.contains(&name) {
                continue;
            }
            let inode = match inode(&entry.path()) {
                Ok(Some(inode)) => Some(inode),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // just removed
                // The mount may not have reached the agent's own mount namespace (no
                // `mountPropagation: HostToContainer`): only the host's table proves it gone.
                Ok(None) | Err(_) => {
                    let mounted: &BTreeMap<_, _> = match &mut mounted {
                        Some(mounted) => mounted,
                        none => none.insert(mounts::net_namespaces(host)?),
                    };
                    mounted.get(&Path::new("/").join(folder).join(&name)).copied()
                }
            };
            known.insert(name.clone());
            found.push(NetNamespace { name, inode, processes: 0 });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// How many processes are in each network namespace. One that may not be asked could be in any,
/// except for the first: it is in the host's, and hardened kernels let nobody ask it.
fn processes(table: &Table) -> Result<BTreeMap<u64, u32>, SurveyError> {
    let mut counts = BTreeMap::new();
    for (pid, _) in table.living().filter(|(pid, _)| *pid != INIT) {
        match table.namespace(pid, "net") {
            Ok(inode) => *counts.entry(inode).or_default() += 1,
            Err(NoNamespace::Denied) => return Err(SurveyError::NamespacesDenied),
            Err(NoNamespace::Gone) => {}
        }
    }
    Ok(counts)
}

/// Whether this is a directory of its own: `/var/run` is mostly a symlink to `/run`.
fn is_own_directory(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The inode of the namespace that is mounted on a file, if one is.
fn inode(path: &Path) -> io::Result<Option<u64>> {
    if statfs(path)?.f_type as u64 != NSFS {
        return Ok(None);
    }
    Ok(Some(stat(path)?.st_ino))
}

/// containerd's `cni-UUID` and CRI-O's bare UUID; what `ip netns add` makes has a person's name.
fn is_a_runtimes(name: &str) -> bool {
    let uuid = name.strip_prefix("cni-").unwrap_or(name);
    uuid.len() == 36
        && uuid.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::host::fake::Fake;
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    use std::{os::unix::fs::PermissionsExt as _, thread};

    const ONE: &str = "cni-5afa9f0c-27be-5b4c-9fd8-31e9b8d5a0a1";
    const TWO: &str = "0a1b2c3d-27be-5b4c-9fd8-31e9b8d5a0a2";

    #[test]
    fn names() {
        for (name, expected) in [
            (ONE, true),
            (TWO, true),
            ("cni-test", false),
            ("blue", false),
            ("cni-", false),
            ("", false),
            ("5afa9f0c-27be-5b4c-9fd8-31e9b8d5a0a1x", false),
            ("5afa9f0cx27be-5b4c-9fd8-31e9b8d5a0a1", false),
        ] {
            assert_eq!(is_a_runtimes(name), expected, "{name}");
        }
    }

    #[test]
    fn inodes_of_namespaces_and_of_nothing_else() {
        let own = inode(Path::new("/proc/self/ns/net")).unwrap();
        let link = fs::read_link("/proc/self/ns/net").unwrap();
        assert_eq!(own, super::super::table::namespace_inode(link.to_str().unwrap()));
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(inode(file.path()).unwrap(), None);
        assert!(inode(Path::new("/nonexistent")).is_err());
    }

    fn found(fake: &Fake) -> Result<Vec<(String, Option<u64>, u32)>, SurveyError> {
        let found = namespaces(&fake.host, &Table::read(&fake.host).unwrap())?;
        Ok(found.into_iter().map(|n| (n.name, n.inode, n.processes)).collect())
    }

    #[test]
    fn what_is_kept_and_who_is_in_it() {
        let fake = Fake::new();
        fake.kthreadd();
        assert_eq!(found(&fake).unwrap(), [], "no such folder");
        fake.file("run/netns/blue", "");
        fake.file(&format!("run/netns/{ONE}"), "");
        fake.file(&format!("run/netns/{TWO}"), "");
        fake.process(1, "init", 0, 1);
        // Mounted on the host, though not in the agent's own view.
        let mounts = format!("50 23 0:4 net:[77] /run/netns/{ONE} rw - nsfs nsfs rw\n");
        fake.file("proc/1/mountinfo", mounts);
        for (pid, namespace) in [(10, 77), (11, 77), (12, 78)] {
            fake.process(pid, "app", 1, 100);
            fake.namespace(pid, "net", namespace);
        }
        fake.task(13, "dead", 'Z', 1, 100);
        fake.namespace(13, "net", 77);
        let expected = [(TWO.to_owned(), None, 0), (ONE.to_owned(), Some(77), 2)];
        assert_eq!(found(&fake).unwrap(), expected);
    }

    #[test]
    fn the_same_folder_is_read_once() {
        let fake = Fake::new();
        fake.kthreadd();
        fake.process(1, "init", 0, 1);
        fake.file("proc/1/mountinfo", "garbage");
        fake.file(&format!("run/netns/{ONE}"), "");
        fs::create_dir_all(fake.host.root.join("var")).unwrap();
        std::os::unix::fs::symlink("../run", fake.host.root.join("var/run")).unwrap();
        assert_eq!(found(&fake).unwrap().len(), 1);
        fs::remove_file(fake.host.root.join("var/run")).unwrap();
        fake.file(&format!("var/run/netns/{TWO}"), "");
        assert_eq!(found(&fake).unwrap().len(), 2);
    }

    /// A process whose namespace cannot be read could be in any of them.
    #[test]
    fn a_process_whose_namespace_is_closed_makes_all_unknown() {
        let fake = Fake::new();
        fake.kthreadd();
        fake.file(&format!("run/netns/{ONE}"), "");
        fake.file(
            "proc/1/mountinfo",
            format!("50 23 0:4 net:[77] /run/netns/{ONE} rw - nsfs x rw\n"),
        );
        for pid in [1, 10] {
            fake.process(pid, "app", 0, 1);
            fake.namespace(pid, "net", 78);
        }
        let closed = |pid: u32, mode| {
            let folder = fake.host.proc.join(format!("{pid}/ns"));
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        };
        // Runs in a thread without capabilities, to which the folder is closed even as root.
        let found = || {
            let ask = || {
                let none = CapabilitySet::empty();
                let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
                set_capabilities(None, sets).unwrap();
                found(&fake)
            };
            thread::scope(|scope| scope.spawn(ask).join().unwrap())
        };
        closed(1, 0);
        assert_eq!(found().unwrap(), [(ONE.to_owned(), Some(77), 0)], "it is the host's");
        closed(10, 0);
        assert!(matches!(found(), Err(SurveyError::NamespacesDenied)));
        closed(1, 0o700);
        closed(10, 0o700);
    }

    #[test]
    fn without_the_hosts_mounts_an_empty_file_proves_nothing() {
        let fake = Fake::new();
        fake.kthreadd();
        fake.file(&format!("run/netns/{ONE}"), "");
        assert!(matches!(found(&fake), Err(SurveyError::Unread { .. })));
    }
}
