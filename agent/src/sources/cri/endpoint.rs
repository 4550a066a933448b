//! The runtime's socket: the path that was given, or one of those that runtimes have, below the host's root.

use crate::linux::socket_file::{SocketFile, SocketId};
use parking_lot::Mutex;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Where runtimes listen, and who says so. Aliases of one socket (`/var/run` is `/run`) are one entry.
pub const KNOWN_SOCKETS: [(&str, &str); 10] = [
    // containerd `defaults/defaults_unix.go`; also kubeadm, EKS, GKE, AKS, Talos, Bottlerocket, kind
    ("/run/containerd/containerd.sock", "containerd"),
    // cri-o `pkg/config/config_unix.go`; also OpenShift, MicroShift
    ("/run/crio/crio.sock", "CRI-O"),
    // cri-dockerd `packaging/systemd/cri-docker.socket`; also minikube with docker, RKE1
    ("/run/cri-dockerd.sock", "cri-dockerd"),
    // k3s `pkg/agent/containerd/config_linux.go`; also RKE2, k3d
    ("/run/k3s/containerd/containerd.sock", "k3s, RKE2"),
    // k3s `pkg/agent/cridockerd/config_linux.go`
    ("/run/k3s/cri-dockerd/cri-dockerd.sock", "k3s --docker"),
    // k0s docs/runtime.md
    ("/run/k0s/containerd.sock", "k0s"),
    // microk8s `microk8s-resources/default-args/containerd`
    ("/var/snap/microk8s/common/run/containerd.sock", "MicroK8s"),
    // k8s-snap docs, "custom containerd path": before it had containerd's own path
    ("/var/snap/k8s/common/run/containerd.sock", "Canonical Kubernetes"),
    // TKGI: bosh's directory for sockets
    ("/var/vcap/sys/run/containerd/containerd.sock", "TKGI"),
    // EKS and Bottlerocket before Kubernetes 1.24: containerd under dockershim's name
    ("/run/dockershim.sock", "EKS before 1.24"),
];

/// The socket's path in `unix:///path` (also `unix:/path`) or `/path`.
pub fn parse_endpoint(endpoint: &str) -> Result<PathBuf, String> {
    let path = endpoint.strip_prefix("unix:").unwrap_or(endpoint);
    let path = if path == endpoint { path } else { path.strip_prefix("//").unwrap_or(path) };
    let is_absolute = path.starts_with('/');
    is_absolute.then(|| path.into()).ok_or_else(|| {
        format!(
            "the CRI endpoint {endpoint:?} is not a unix socket's absolute path; use the runtime's socket, for example \
             unix:///run/containerd/containerd.sock"
        )
    })
}

/// The socket that the CRI is spoken on, once one is: the adapter of the host knows shims by it.
#[derive(Debug, Default)]
pub struct Dialed(Mutex<Option<SocketId>>);

impl Dialed {
    pub fn get(&self) -> Option<SocketId> {
        self.0.lock().clone()
    }

    pub(crate) fn set(&self, socket: SocketId) {
        *self.0.lock() = Some(socket);
    }
}

/// The socket of a path that was given: on the host, else as this process sees it.
pub(super) fn given(host_root: &Path, path: &Path) -> io::Result<SocketFile> {
    SocketFile::open_below(host_root, path).or_else(|on_host| {
        // A closed root says more than that nothing is mounted in its place.
        let of_host = on_host.kind() != io::ErrorKind::NotFound;
        SocketFile::open(path).map_err(|own| if of_host { on_host } else { own })
    })
}

/// The known sockets that there are on the host, each once; where the host's root cannot be entered, of those that
/// are mounted for this process.
pub(super) fn known(host_root: &Path) -> Vec<SocketFile> {
    let closed = std::fs::metadata(host_root.join(".")).is_err();
    let root = if closed { Path::new("/") } else { host_root };
    let mut found: Vec<SocketFile> = Vec::new();
    for (path, _) in KNOWN_SOCKETS {
        let Ok(socket) = SocketFile::open_below(root, Path::new(path)) else { continue };
        if !found.iter().any(|other| other.id.file == socket.id.file) {
            found.push(socket);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::{
            fs::symlink,
            net::{UnixListener, UnixStream},
        },
    };

    #[test]
    fn endpoints() {
        for (text, expected) in [
            ("unix:///run/containerd/containerd.sock", Some("/run/containerd/containerd.sock")),
            ("unix:/run/crio/crio.sock", Some("/run/crio/crio.sock")),
            ("/run/crio/crio.sock", Some("/run/crio/crio.sock")),
            ("/run/with:colon.sock", Some("/run/with:colon.sock")),
            ("", None),
            ("unix://", None),
            ("unix://run/crio.sock", None),
            ("run/crio.sock", None),
            ("tcp://127.0.0.1:1234", None),
            ("npipe:////./pipe/containerd", None),
        ] {
            assert_eq!(parse_endpoint(text).ok(), expected.map(PathBuf::from), "{text:?}");
        }
    }

    /// Each path, in a root of its own whose `/var/run` leads to its `/run`, as on most distributions.
    #[test]
    fn each_known_socket_is_found_below_the_hosts_root() {
        for (path, whose) in KNOWN_SOCKETS {
            let root = tempfile::tempdir().unwrap();
            let below = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(below.parent().unwrap()).unwrap();
            let _listener = UnixListener::bind(&below).unwrap();
            fs::create_dir_all(root.path().join("var")).unwrap();
            symlink("/run", root.path().join("var/run")).unwrap();
            let found = known(root.path());
            assert_eq!(found.len(), 1, "{whose}");
            assert_eq!(found[0].id.path, Path::new(path), "{whose}");
            UnixStream::connect(found[0].address()).unwrap();
            let alias = format!("/var{path}");
            if path.starts_with("/run/") {
                let by_alias = given(root.path(), Path::new(&alias)).unwrap();
                assert_eq!(by_alias.id.file, found[0].id.file, "{alias}");
            }
        }
    }

    #[test]
    fn one_socket_under_two_names_is_one() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("run/containerd")).unwrap();
        let socket = root.path().join("run/containerd/containerd.sock");
        let _listener = UnixListener::bind(socket).unwrap();
        symlink("/run/containerd/containerd.sock", root.path().join("run/dockershim.sock"))
            .unwrap();
        fs::create_dir_all(root.path().join("run/crio")).unwrap();
        fs::write(root.path().join("run/crio/crio.sock"), "a file").unwrap();
        let found = known(root.path());
        let paths: Vec<_> = found.iter().map(|socket| &socket.id.path).collect();
        assert_eq!(paths, [Path::new("/run/containerd/containerd.sock")]);
    }

    #[test]
    fn a_given_path_may_be_this_processs_own() {
        let (root, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let socket = own.path().join("c.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        assert_eq!(given(root.path(), &socket).unwrap().id.path, socket);
        let kind = |root: &Path, path: &str| given(root, Path::new(path)).unwrap_err().kind();
        assert_eq!(kind(root.path(), "/nowhere.sock"), io::ErrorKind::NotFound);
        // Root enters any directory, and no file.
        let closed = own.path().join("closed");
        fs::write(&closed, "").unwrap();
        assert_eq!(kind(&closed, "/nowhere.sock"), io::ErrorKind::NotADirectory);
        given(&closed, &socket).unwrap();
    }
}
