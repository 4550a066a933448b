//! A host of our own, for the tests: a folder in whose /proc processes are files.

use super::HostView;
use crate::linux::socket_file::SocketId;
use coroner_core::input::DaemonProcess;
use std::{fs, os::unix::fs::symlink};

pub(super) struct Fake {
    pub(super) host: HostView,
    folder: tempfile::TempDir,
}

impl Fake {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (root, cgroup_root) = (folder.path().to_owned(), folder.path().join("cgroup"));
        let proc = root.join("proc");
        fs::create_dir_all(&cgroup_root).unwrap();
        fs::create_dir_all(&proc).unwrap();
        let names = HostView::KUBELETS.map(str::to_owned).to_vec();
        let host = HostView {
            root,
            proc,
            cgroup_root,
            kubelets: names,
            socket: None,
            runtime: None,
            kubelet: None,
        };
        Self { host, folder }
    }

    /// The CRI is spoken on this socket, whose file is not there.
    pub(super) fn socket(&mut self, path: &str) {
        self.host.socket = Some(SocketId { path: path.into(), file: (0, 0) });
    }

    pub(super) fn file(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// What shows that this is the host's /proc.
    pub(super) fn kthreadd(&self) {
        self.process(2, "kthreadd", 0, 1);
        self.file("proc/2/comm", "kthreadd\n");
    }

    pub(super) fn process(&self, pid: u32, comm: &str, parent: u32, started: u64) -> DaemonProcess {
        self.task(pid, comm, 'S', parent, started)
    }

    pub(super) fn task(
        &self,
        pid: u32,
        comm: &str,
        state: char,
        parent: u32,
        started: u64,
    ) -> DaemonProcess {
        let zeros = "0 ".repeat(17);
        let stat = format!("{pid} ({comm}) {state} {parent} {zeros}{started} 0");
        self.file(&format!("proc/{pid}/stat"), stat);
        DaemonProcess { pid, started }
    }

    pub(super) fn ended(&self, pid: u32) {
        fs::remove_dir_all(self.folder.path().join(format!("proc/{pid}"))).unwrap();
    }

    /// The host's file system is closed, by a file in its place: root would enter any directory. Its
    /// /proc is seen elsewhere, as with hostPID.
    pub(super) fn close_root(&mut self) {
        let closed = self.host.root.join("closed");
        fs::write(&closed, "").unwrap();
        self.host.root = closed;
    }

    pub(super) fn namespace(&self, pid: u32, kind: &str, inode: u64) {
        let folder = self.folder.path().join(format!("proc/{pid}/ns"));
        fs::create_dir_all(&folder).unwrap();
        symlink(format!("{kind}:[{inode}]"), folder.join(kind)).unwrap();
    }
}
