//! Shims: the processes that a runtime leaves with each sandbox, and that outlive the runtime.
//!
//! Many runtimes may live on one machine: docker's containerd, nerdctl's namespaces, a second
//! containerd of its own socket, podman's conmon. Another runtime's shim is never reported, at the price
//! of missing one of ours whose runtime cannot be identified. A shim is this runtime's if
//!
//! - it was started for pods: containerd's namespace `k8s.io`; of conmon a container's name `k8s_…`;
//! - its mount namespace is the runtime's, where both can be read (a kind node's containerd has the
//!   same paths as the machine's);
//! - the socket that it reports to (`-address`) is the one that the CRI is spoken on, where both
//!   are known: by path, or, where the agent sees the socket elsewhere, by the inode that the path
//!   has in the shim's own root;
//! - and one of the latter two is known to hold.
//!
//! Of containerd's the CRI plugin made only those whose bundle (the shim's working directory) says so:
//! `ctr -n k8s.io run` and `nerdctl -n k8s.io run` use the same namespace, and the CRI never lists what they
//! start. Where nothing is left of the bundle, an id as the CRI plugin makes them is enough. What else cannot
//! be read is left out, and so are containerd's shims of before 1.4, which do not say whom they serve.

use super::{HostView, SurveyError, table::Table};
use crate::linux::socket_file::SocketFile;
use coroner_core::input::{DaemonProcess, Shim};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

const CONMON: &str = "conmon";
/// containerd's namespace of the CRI plugin: `pkg/cri/constants`, `K8sContainerdNamespace`.
const NAMESPACE: &[u8] = b"k8s.io";
/// What begins the name that CRI-O gives a container: the kubelet's `k8s_NAME_POD_NAMESPACE_…`.
const CONTAINER_NAME: &[u8] = b"k8s_";
/// The annotation that the CRI plugin gives each sandbox and container: containerd's
/// `pkg/cri/annotations`, `ContainerType`.
const CRI_MADE: &[u8] = b"\"io.kubernetes.cri.container-type\"";
/// The longest `config.json` that is looked at: one has some ten kilobytes.
const MAX_CONFIG: u64 = 2 << 20;
/// The longest command line that is looked at: a shim's is some hundred bytes.
const MAX_COMMAND: u64 = 64 << 10;

/// The shims that the CRI should know of.
pub(super) fn shims(host: &HostView, table: &Table) -> Result<Vec<Shim>, SurveyError> {
    let mut found = Vec::new();
    for OwnedShim { shim, is_conmon, bundle } in ours(host, table)? {
        if is_conmon || is_made_for_cri(&bundle, &shim.id)? {
            found.push(shim);
        }
    }
    Ok(found)
}

/// A shim of this runtime, for whatever.
#[derive(Clone, Debug)]
pub(super) struct OwnedShim {
    pub(super) shim: Shim,
    is_conmon: bool,
    /// Its working directory, as a link in /proc.
    bundle: PathBuf,
}

pub(super) fn ours(host: &HostView, table: &Table) -> Result<Vec<OwnedShim>, SurveyError> {
    let mount_namespace = |pid| table.namespace(pid, "mnt").ok();
    let runtimes = host.runtime.filter(|r| table.has(*r)).and_then(|r| mount_namespace(r.pid));
    let mut sockets = BTreeMap::new();
    let mut found = Vec::new();
    for (pid, process) in table.living() {
        if !is_a_shim(&process.comm) {
            continue;
        }
        let proc = host.proc.join(pid.to_string());
        // Gone, or gone and its number used again: the next look will not find it.
        let Ok(command) = read_at_most(&proc.join("cmdline"), MAX_COMMAND) else { continue };
        let Some(served) = served(&process.comm, &command) else { continue };
        let in_namespace = runtimes.zip(mount_namespace(pid)).map(|(ours, its)| ours == its);
        let at_socket = served.address.and_then(|address| {
            // A path means the same to all shims of a mount namespace.
            *sockets
                .entry((mount_namespace(pid), address.to_vec()))
                .or_insert_with(|| is_the_runtimes(host, &proc.join("root"), address))
        });
        match (in_namespace, at_socket) {
            (Some(false), _) | (_, Some(false)) => {}
            (None, None) if host.runtime.is_none() => return Err(SurveyError::NoRuntime),
            (None, None) => return Err(SurveyError::NamespacesDenied),
            (Some(true), _) | (_, Some(true)) => found.push(OwnedShim {
                shim: Shim {
                    process: DaemonProcess { pid, started: process.started },
                    id: String::from_utf8_lossy(served.id).into_owned(),
                },
                is_conmon: process.comm == CONMON,
                bundle: proc.join("cwd"),
            }),
        }
    }
    Ok(found)
}

/// A process of this name serves containers, of whichever runtime. Names are cut to 15 bytes:
/// `containerd-shim-runc-v2` and `containerd-shim-kata-v2` are the same.
pub(super) fn is_a_shim(comm: &str) -> bool {
    comm.starts_with("containerd-shim") || comm == CONMON
}

/// Whether the CRI plugin made the container of this bundle, or, where nothing is left of it, may
/// have.
fn is_made_for_cri(bundle: &Path, id: &str) -> Result<bool, SurveyError> {
    match read_at_most(&bundle.join("config.json"), MAX_CONFIG) {
        Ok(config) => Ok(config.windows(CRI_MADE.len()).any(|word| word == CRI_MADE)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(SurveyError::NamespacesDenied)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(is_cri_id(id)),
        Err(_) => Ok(false),
    }
}

/// containerd's `internal/cri/util`, `GenerateID`.
fn is_cri_id(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// What of a shim's arguments counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Served<'a> {
    id: &'a [u8],
    address: Option<&'a [u8]>,
}

/// What it serves; `None` for one that serves no pod.
fn served<'a>(comm: &str, command: &'a [u8]) -> Option<Served<'a>> {
    let words: Vec<&[u8]> = command.split(|byte| *byte == 0).skip(1).collect();
    let (is_for_pods, id) = match comm {
        CONMON => (value(&words, b"n")?.starts_with(CONTAINER_NAME), value(&words, b"c")?),
        _ => (value(&words, b"namespace")? == NAMESPACE, value(&words, b"id")?),
    };
    (is_for_pods && !id.is_empty()).then(|| Served { id, address: value(&words, b"address") })
}

/// The value of an option, as Go's flags and GLib's are written: `-name value`, `--name=value`.
fn value<'a>(words: &[&'a [u8]], name: &[u8]) -> Option<&'a [u8]> {
    words.iter().enumerate().find_map(|(at, word)| {
        let option = word.strip_prefix(b"-")?;
        let rest = option.strip_prefix(b"-").unwrap_or(option).strip_prefix(name)?;
        match rest {
            [] => words.get(at + 1).copied(),
            [b'=', value @ ..] => Some(value),
            _ => None,
        }
    })
}

/// Of a regular file, and of nothing else that may have its name: a container chooses what is in its
/// working directory, and who opens a FIFO waits for its other end.
fn read_at_most(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    if !FileType::from_raw_mode(fstat(&file)?.st_mode).is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = Vec::new();
    File::from(file).take(bytes).read_to_end(&mut text)?;
    Ok(text)
}

/// Whether the socket that a shim knows by this path is the one that the CRI is spoken on. `None`: that cannot be told.
fn is_the_runtimes(host: &HostView, shims_root: &Path, address: &[u8]) -> Option<bool> {
    let socket = host.socket.as_ref()?;
    let address = Path::new(OsStr::from_bytes(address.strip_prefix(b"unix://").unwrap_or(address)));
    if address == socket.path {
        return Some(true);
    }
    // A closed root shows neither that it is the same socket nor that it is another.
    let is_open = |root: &&Path| std::fs::metadata(root.join(".")).is_ok();
    let root = [shims_root, &host.root].into_iter().find(is_open)?;
    let theirs = SocketFile::open_below(root, address);
    Some(theirs.is_ok_and(|theirs| theirs.id.file == socket.file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::host::fake::Fake;
    use std::os::unix::net::UnixListener;

    const ID: &str = "0123456789abcdef";
    const CRI: &str = r#"{"annotations":{"io.kubernetes.cri.container-type":"sandbox"}}"#;

    fn words(text: &str) -> Vec<u8> {
        text.replace(' ', "\0").replace("{id}", ID).into_bytes()
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), Mode::from(0o600)).unwrap();
        assert_eq!(read_at_most(&path("file"), 3).unwrap(), b"tex");
        for other in ["link", "fifo", "", "missing"] {
            assert!(read_at_most(&path(other), 3).is_err(), "{other}");
        }
    }

    #[test]
    fn only_arguments_of_pods_count() {
        let table: &[(&str, &str, Option<Option<&str>>)] = &[
            (
                "containerd-shim",
                "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id {id} -address /run/c.sock",
                Some(Some("/run/c.sock")),
            ),
            ("containerd-shim", "shim --namespace=k8s.io --id={id}", Some(None)),
            ("containerd-shim", "shim -namespace moby -id {id} -address /run/c.sock", None),
            ("containerd-shim", "shim -namespace k8s.io -address /run/c.sock", None),
            ("containerd-shim", "shim -namespace k8s.io -id", None),
            ("containerd-shim", "shim -namespace k8s.io -id ", None),
            ("containerd-shim", "shim -namespaces k8s.io -id {id}", None),
            ("containerd-shim", "-namespace", None),
            ("containerd-shim", "", None),
            ("conmon", "conmon -b /b -c {id} -n k8s_app_web-0_shop_u_0 -u {id} -s", Some(None)),
            ("conmon", "conmon -c {id} -n web --exit-command /usr/bin/podman", None),
            ("conmon", "conmon -c {id}", None),
        ];
        for (comm, command, expected) in table {
            let command = words(command);
            let served = served(comm, &command);
            let expected = expected
                .map(|address| Served { id: ID.as_bytes(), address: address.map(str::as_bytes) });
            assert_eq!(served, expected, "{}", String::from_utf8_lossy(&command));
        }
        for other in ["containerd", "dockerd"] {
            assert!(!is_a_shim(other), "{other}");
        }
    }

    /// Shims of several runtimes: ours, one in another mount namespace, one at another socket.
    fn crowd() -> Fake {
        let mut fake = Fake::new();
        fake.kthreadd();
        let shim = "shim -namespace k8s.io -id {id} -address";
        for (pid, comm, namespace, command) in [
            (10, "containerd", 1, String::new()),
            (11, "containerd-shim", 1, format!("{shim} /run/ours.sock")),
            (12, "containerd-shim", 2, format!("{shim} /run/ours.sock")),
            (13, "containerd-shim", 1, format!("{shim} /run/other.sock")),
            (14, "conmon", 1, "conmon -c {id} -n k8s_app_web-0_shop_u_0".into()),
            (15, "conmon", 2, "conmon -c {id} -n k8s_app_web-0_shop_u_0".into()),
            (16, "containerd-shim", 1, "shim -namespace moby -id {id}".into()),
        ] {
            fake.process(pid, comm, 1, u64::from(pid));
            fake.namespace(pid, "mnt", namespace);
            fake.file(&format!("proc/{pid}/cmdline"), String::from_utf8(words(&command)).unwrap());
            fake.file(&format!("proc/{pid}/cwd/config.json"), CRI);
        }
        fake.host.runtime = Some(DaemonProcess { pid: 10, started: 10 });
        fake.socket("/run/ours.sock");
        fake
    }

    fn found(host: &HostView) -> Result<Vec<Shim>, SurveyError> {
        shims(host, &Table::read(host).unwrap())
    }

    fn pids(host: &HostView) -> Vec<u32> {
        found(host).unwrap().iter().map(|shim| shim.process.pid).collect()
    }

    #[test]
    fn somebody_elses_are_left_out() {
        let mut fake = crowd();
        assert_eq!(pids(&fake.host), [11, 14]);
        fake.host.socket = None;
        assert_eq!(pids(&fake.host), [11, 13, 14], "which of two sockets is not known");
        let blind = HostView { runtime: None, ..fake.host.clone() };
        assert!(matches!(found(&blind), Err(SurveyError::NoRuntime)));
    }

    /// `ctr -n k8s.io run`, and bundles of which nothing is left.
    #[test]
    fn what_the_cri_plugin_did_not_make_is_left_out() {
        let fake = Fake::new();
        let id = ID.repeat(4);
        let bundle = |name: &str| fake.host.root.join(name);
        let padding = " ".repeat(usize::try_from(MAX_CONFIG).unwrap());
        for (name, config, expected) in [
            ("cri", CRI.to_owned(), true),
            ("ctr", r#"{"annotations":{"nerdctl/name":"io.kubernetes.cri"}}"#.into(), false),
            ("empty", String::new(), false),
            ("endless", padding + CRI, false),
        ] {
            fake.file(&format!("{name}/config.json"), config);
            assert_eq!(is_made_for_cri(&bundle(name), &id).unwrap(), expected, "{name}");
        }
        assert!(is_made_for_cri(&bundle("gone"), &id).unwrap());
        for other in ["web", &id[1..], &id.to_uppercase(), ""] {
            assert!(!is_made_for_cri(&bundle("gone"), other).unwrap(), "{other:?}");
        }
    }

    #[test]
    fn a_socket_seen_elsewhere_is_the_same() {
        let mut fake = Fake::new();
        // As of a shim in a mount namespace of its own, whose /run is not the host's.
        let root = fake.host.root.join("proc/7/root");
        let below = root.join("run");
        std::fs::create_dir_all(&below).unwrap();
        let _listener = UnixListener::bind(below.join("c.sock")).unwrap();
        let _other = UnixListener::bind(below.join("o.sock")).unwrap();
        std::os::unix::fs::symlink("/run", root.join("var-run")).unwrap();
        assert_eq!(is_the_runtimes(&fake.host, &root, b"/run/c.sock"), None);
        fake.host.socket = Some(SocketFile::open(&below.join("c.sock")).unwrap().id);
        for (address, expected) in [
            ("/run/c.sock", true),
            ("/var-run/c.sock", true),
            ("unix:///run/c.sock", true),
            ("/run/o.sock", false),
            ("/run/missing.sock", false),
        ] {
            assert_eq!(
                is_the_runtimes(&fake.host, &root, address.as_bytes()),
                Some(expected),
                "{address}"
            );
        }
        // Of a shim that has gone, or whose root is closed, the host's own is the next best.
        let gone = Path::new("/nonexistent");
        assert_eq!(is_the_runtimes(&fake.host, gone, b"/run/c.sock"), Some(false));
        fake.close_root();
        assert_eq!(
            is_the_runtimes(&fake.host, gone, b"/var-run/c.sock"),
            None,
            "it may be the same"
        );
    }
}
