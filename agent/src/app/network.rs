//! The thread that speaks with the network: the HTTP servers, and the client of the apiserver with all that it decodes.
//! The thread looks at no other process, so it has no capability of the agent's, and reaches only the files that it reads.
//! Whoever floods the servers keeps this thread busy, not the event loop.

use crate::{
    linux::{
        landlock::{self, FileAccess},
        privileges,
    },
    outputs::http::listener::Listener,
};
use anyhow::Context;
use std::{io, path::PathBuf, sync::mpsc, thread, time::Duration};
use tokio::{
    net::{TcpListener, UnixListener},
    runtime::{Builder, Handle},
    sync::oneshot,
};
use tracing::warn;

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The thread; it ends when this is dropped.
pub(super) struct Network {
    pub(super) handle: Handle,
    /// Whether the thread is kept to its files, or why not.
    pub(super) restricted: Result<(), String>,
    _stop: oneshot::Sender<()>,
}

impl Network {
    /// Starts the thread, before the capabilities of this one are dropped. It reads files in `directories` again, or with
    /// `any_file`, for a kubeconfig, any file.
    pub(super) fn start(directories: Vec<PathBuf>, any_file: bool) -> anyhow::Result<Self> {
        const FAILED: &str = "cannot start the thread of the network";
        let (begun, has_begun) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            let started = confine(directories, any_file).and_then(|restricted| {
                Ok((Builder::new_current_thread().enable_all().build()?, restricted))
            });
            let (runtime, restricted) = match started {
                Ok(started) => started,
                Err(error) => return drop(begun.send(Err(error))),
            };
            if begun.send(Ok((runtime.handle().clone(), restricted))).is_ok() {
                let _ = runtime.block_on(stopped); // an error: the agent ends
            }
            runtime.shutdown_timeout(Duration::from_millis(100));
        };
        thread::Builder::new().name("network".into()).spawn(run).context(FAILED)?;
        let (handle, restricted) = has_begun.recv().context(FAILED)?.context(FAILED)?;
        Ok(Self { handle, restricted, _stop: stop })
    }

    /// A socket that this thread has opened, for that one.
    pub(super) fn tcp(&self, listener: TcpListener) -> io::Result<Listener> {
        let listener = listener.into_std()?;
        let _there = self.handle.enter();
        TcpListener::from_std(listener).map(Into::into)
    }

    pub(super) fn unix(&self, listener: UnixListener) -> io::Result<Listener> {
        let listener = listener.into_std()?;
        let _there = self.handle.enter();
        UnixListener::from_std(listener).map(Into::into)
    }
}

/// Takes from this thread what it does not need. An error: it keeps capabilities.
fn confine(directories: Vec<PathBuf>, any_file: bool) -> io::Result<Result<(), String>> {
    privileges::keep_none(any_file)?;
    // The first two are for metrics of this process and for names of hosts. What the others' /proc holds beyond their
    // status is refused without them being named.
    let always = ["/proc", "/etc", SERVICE_ACCOUNT].map(PathBuf::from);
    let files = match any_file {
        true => FileAccess::Any,
        false => FileAccess::Read(always.into_iter().chain(directories).collect()),
    };
    let restricted = landlock::restrict(&files);
    if let Err(why) = &restricted {
        warn!(why, "threads are not kept to their own files");
    }
    Ok(restricted)
}
