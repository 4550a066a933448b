//! The lanes of what is asked about single containers and sandboxes.

use super::{Lane, LanesEnd, Poller, rest};
use crate::linux::process_cgroup;
use crate::{
    linux::{clock, procfs::host_proc},
    sources::cri::{
        client::Connection,
        convert::{
            self, ContainerInfo, RawStatus,
            sandbox_status::{SandboxInfo, sandbox_status},
        },
        failure::{CallFailure, CriError},
    },
};
use coroner_core::{
    ids::{CgroupId, ContainerId, SandboxId},
    input::CriEvent,
};
use std::path::PathBuf;
use tonic::Code;
use tracing::debug;

impl Poller {
    /// The lane of containers' statuses.
    pub(super) async fn statuses(&self, connection: &Connection) -> Lane {
        let mut news = self.pending.news();
        loop {
            let next = self.state.lock().index.next_container();
            match next {
                Some(container) => self.status(connection, container).await?,
                None => rest(&mut news, None).await,
            }
        }
    }

    /// The lane of containers' cgroups.
    pub(super) async fn cgroups(&self, connection: &Connection) -> Lane {
        let mut news = self.pending.news();
        loop {
            let next = self.pending.open().find.first().cloned();
            match next {
                Some(container) => self.cgroup(connection, container).await?,
                None => rest(&mut news, None).await,
            }
        }
    }

    /// The lane of suspects' statuses.
    pub(super) async fn sandbox_statuses(&self, connection: &Connection) -> Lane {
        let mut news = self.pending.news();
        loop {
            let next = self.pending.open().statuses.first().cloned();
            match next {
                Some(sandbox) => self.sandbox_status(connection, sandbox).await?,
                None => rest(&mut news, None).await,
            }
        }
    }

    /// ContainerStatus, for a container's end and its stop signal.
    async fn status(
        &self,
        connection: &Connection,
        container: ContainerId,
    ) -> Result<(), LanesEnd> {
        let raw = match connection.status(&container, false).await {
            Ok((raw, _)) => raw,
            Err(CallFailure::NotFound) => {
                self.state.lock().index.forget_container(&container);
                return Ok(());
            }
            Err(CallFailure::Refused(error) | CallFailure::Lacking(error)) => {
                let error = error.text;
                debug!(%container, error, "cannot read a container's status");
                return Ok(());
            }
            Err(broken) => return Err(broken.into()),
        };
        let at = clock::boot_now();
        let raw = RawStatus { id: container.as_str().to_owned(), ..raw };
        let end = self.sensible("container status", convert::exit(&raw));
        // An invalid item would be invalid the next time, too.
        let ended = !matches!(end, Some(None));
        let Some(is_news) = self.state.lock().index.told(&container, ended) else { return Ok(()) };
        if let Some(signal) = convert::stop_signal(raw.stop_signal).filter(|_| is_news) {
            self.answer(at, CriEvent::StopSignal { container, signal }).await?;
        }
        if let Some(Some(exit)) = end {
            self.answer(at, CriEvent::ContainerExited(exit)).await?;
        }
        Ok(())
    }

    /// A container's cgroup, by the process that its verbose status names.
    async fn cgroup(
        &self,
        connection: &Connection,
        container: ContainerId,
    ) -> Result<(), LanesEnd> {
        self.state.lock().asking.0 = Some(container.clone());
        let mut runtime = None;
        let found = match &self.options.cgroup_root {
            None => Err("cgroup v2 is not mounted".to_owned()),
            Some(root) => match connection.status(&container, true).await {
                Ok((_, info)) => {
                    let info = info.get("info").map(String::as_str).unwrap_or_default();
                    let info = ContainerInfo::parse(info, &self.options.counters.truncated);
                    runtime = info.runtime;
                    match info.pid {
                        Some(pid) => self.cgroup_of(root.clone(), pid).await,
                        None => Err("the runtime reported no process".to_owned()),
                    }
                }
                Err(CallFailure::Refused(error) | CallFailure::Lacking(error)) => Err(error.text),
                Err(CallFailure::NotFound) => Err("unknown to the runtime".to_owned()),
                Err(broken) => return Err(broken.into()),
            },
        };
        self.pending.open().find.remove(&container);
        self.state.lock().asking.0 = None;
        let at = clock::boot_now();
        if let Some(runtime) = runtime {
            let container = container.clone();
            self.answer(at, CriEvent::RuntimeType { container, runtime }).await?;
        }
        match found {
            Ok((cgroup, path)) => {
                if path == "/" {
                    debug!(%container, "cannot find a container's cgroup: its process is in the root");
                }
                self.answer(at, CriEvent::ContainerCgroup { container, cgroup, path }).await?;
            }
            Err(error) => debug!(%container, error, "cannot find a container's cgroup"),
        }
        Ok(())
    }

    /// In a thread of its own: for the first one, this process' own cgroup is looked for among all.
    async fn cgroup_of(&self, root: PathBuf, pid: u32) -> Result<(CgroupId, String), String> {
        let proc = host_proc(&self.options.host_root);
        let look = move || process_cgroup::of_process(&proc, &root, pid);
        self.pool.call(look).await.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// All that the runtime knows of a suspect.
    async fn sandbox_status(
        &self,
        connection: &Connection,
        sandbox: SandboxId,
    ) -> Result<(), LanesEnd> {
        self.state.lock().asking.1 = Some(sandbox.clone());
        let asked = clock::boot_now();
        let answer = connection.sandbox_status(&sandbox).await;
        let at = clock::boot_now();
        let event = match answer {
            Ok(raw) => {
                let info = self.sensible("sandbox status", SandboxInfo::parse(&raw.info));
                let sandbox = sandbox.clone();
                let status = sandbox_status(sandbox, asked, &raw, info.unwrap_or_default());
                Some(CriEvent::SandboxStatus(status))
            }
            // A runtime without the call says nothing of the sandbox.
            Err(CallFailure::NotFound | CallFailure::Lacking(_)) => None,
            Err(CallFailure::Refused(error)) => {
                debug!(%sandbox, error = error.text, "cannot read a sandbox's status");
                let code = error.code().filter(|_| speaks_of_the_sandbox(&error));
                let sandbox = sandbox.clone();
                code.map(|code| CriEvent::SandboxStatusRefused { sandbox, code })
            }
            Err(broken) => return Err(broken.into()),
        };
        self.pending.open().statuses.remove(&sandbox);
        self.state.lock().asking.1 = None;
        if let Some(event) = event {
            self.answer(at, event).await?;
        }
        Ok(())
    }
}

/// Neither a runtime that lacks the call nor an answer too large for us says anything of the
/// sandbox.
fn speaks_of_the_sandbox(error: &CriError) -> bool {
    !matches!(error.code, Some(Code::Unimplemented | Code::ResourceExhausted | Code::OutOfRange))
}
