//! What is asked about single containers and sandboxes, between the lists.

use super::{Known, Poller, Stop};
use crate::{
    clock,
    cri::{
        cgroup,
        client::Connection,
        convert::{
            self, RawStatus,
            sandbox_status::{Info, sandbox_status},
        },
        failure::{Failure, Trouble},
    },
};
use coroner_core::{
    ids::{ContainerId, SandboxId},
    input::CriEvent,
};
use tonic::Code;
use tracing::debug;

impl Poller {
    /// ContainerStatus, for a container's end and its stop signal.
    pub(super) async fn status(
        &mut self,
        connection: &mut Connection,
        container: ContainerId,
    ) -> Result<(), Stop> {
        if !self.containers.get(&container).is_some_and(Known::wants_status) {
            return Ok(()); // it was queued twice
        }
        let raw = match connection.status(&container, false).await {
            Ok((raw, _)) => raw,
            Err(Failure::NotFound) => {
                self.containers.remove(&container);
                return Ok(());
            }
            Err(Failure::Refused(trouble) | Failure::Lacking(trouble)) => {
                let error = trouble.text;
                debug!(%container, error, "a container's status could not be had");
                return Ok(());
            }
            Err(broken) => return Err(broken.into()),
        };
        let at = clock::boot_now();
        let raw = RawStatus { id: container.as_str().to_owned(), ..raw };
        let end = self.sensible("container status", convert::exit(&raw));
        let Some(known) = self.containers.get_mut(&container) else { return Ok(()) };
        let signal = if known.signal_asked { None } else { convert::stop_signal(raw.stop_signal) };
        known.signal_asked = true;
        // Nonsense would be the same the next time.
        known.exit_told |= !matches!(end, Some(None));
        if let Some(signal) = signal {
            self.answer(at, CriEvent::StopSignal { container, signal }).await?;
        }
        if let Some(Some(exit)) = end {
            self.answer(at, CriEvent::ContainerExited(exit)).await?;
        }
        Ok(())
    }

    /// A container's cgroup, by the process that its verbose status names.
    pub(super) async fn cgroup(
        &mut self,
        connection: &mut Connection,
        container: ContainerId,
    ) -> Result<(), Stop> {
        let mut runtime = None;
        let found = match &self.options.cgroup_root {
            None => Err("the watched hierarchy is not known".to_owned()),
            Some(root) => match connection.status(&container, true).await {
                Ok((_, info)) => {
                    let info = info.get("info").map(String::as_str).unwrap_or_default();
                    runtime = convert::runtime_type(info);
                    match convert::pid(info) {
                        Some(pid) => cgroup::of_process(&self.options.host_root, root, pid),
                        None => Err("the runtime names no process".to_owned()),
                    }
                }
                Err(Failure::Refused(trouble) | Failure::Lacking(trouble)) => Err(trouble.text),
                Err(Failure::NotFound) => Err("the runtime does not know it".to_owned()),
                Err(broken) => {
                    // Still wanted, but after the others: it may break the next connection too.
                    let mut open = self.wishes.open();
                    open.find.leave(&container);
                    open.find.join(container);
                    return Err(broken.into());
                }
            },
        };
        self.wishes.open().find.leave(&container);
        let at = clock::boot_now();
        if let Some(runtime) = runtime {
            let container = container.clone();
            self.answer(at, CriEvent::RuntimeType { container, runtime }).await?;
        }
        match found {
            Ok(cgroup) => {
                self.answer(at, CriEvent::ContainerCgroup { container, cgroup }).await?;
            }
            Err(error) => debug!(%container, error, "a container's cgroup could not be found"),
        }
        Ok(())
    }

    /// All that the runtime knows of a suspect.
    pub(super) async fn sandbox_status(
        &mut self,
        connection: &mut Connection,
        sandbox: SandboxId,
    ) -> Result<(), Stop> {
        let asked = clock::boot_now();
        let answer = connection.sandbox_status(&sandbox).await;
        let at = clock::boot_now();
        // Also if the connection broke: the runtime may not survive this very question.
        self.wishes.open().statuses.leave(&sandbox);
        let event = match answer {
            Ok(raw) => {
                let info = self.sensible("sandbox status", Info::parse(&raw.info));
                let status = sandbox_status(sandbox, asked, &raw, info.unwrap_or_default());
                CriEvent::SandboxStatus(status)
            }
            // A runtime without the call says nothing of the sandbox.
            Err(Failure::NotFound | Failure::Lacking(_)) => return Ok(()),
            Err(Failure::Refused(trouble)) => {
                debug!(%sandbox, error = trouble.text, "a sandbox' status could not be had");
                match trouble.code() {
                    Some(code) if speaks_of_the_sandbox(&trouble) => {
                        CriEvent::SandboxStatusRefused { sandbox, code }
                    }
                    _ => return Ok(()),
                }
            }
            Err(broken) => return Err(broken.into()),
        };
        self.answer(at, event).await?;
        Ok(())
    }
}

/// Neither a runtime that lacks the call nor an answer too large for us says anything of the
/// sandbox.
fn speaks_of_the_sandbox(trouble: &Trouble) -> bool {
    !matches!(trouble.code, Some(Code::Unimplemented | Code::ResourceExhausted | Code::OutOfRange))
}
