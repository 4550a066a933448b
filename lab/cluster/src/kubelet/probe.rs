//! Probes (prober/worker.go). An exec probe is a process in the container; httpGet and tcpSocket run in the
//! kubelet itself. A startup probe runs until it has succeeded, then the liveness probe for as long as the
//! container lives.

use super::{
    grace,
    hook::{self, Reach},
    klog::ContainerLog,
};
use anyhow::Context as _;
use coroner_cri_api::v1::ExecSyncRequest;
use k8s_openapi::{
    api::core::v1::{Container, ContainerPort, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use std::time::Duration;
use tokio::sync::mpsc;

/// What probing found out about a container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ProbeReport {
    /// The container's id: what is told of an earlier life is of no interest any more.
    pub(super) id: String,
    /// What was found.
    pub(super) what: Finding,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Finding {
    /// The startup probe succeeded.
    Started,
    /// This probe (`Liveness`) failed as often as its threshold allows; it is not run again. With the probe's own
    /// terminationGracePeriodSeconds.
    Unhealthy(&'static str, Option<i64>),
}

const LIVENESS: &str = "Liveness";
const STARTUP: &str = "Startup";

/// Probes a container that has just started. Dropped with the container's life.
pub(super) async fn watch(
    pod: Reach,
    id: String,
    mut container: Container,
    log: ContainerLog,
    tell: mpsc::UnboundedSender<ProbeReport>,
) {
    let ports = container.ports.take().unwrap_or_default();
    for probe in [&mut container.startup_probe, &mut container.liveness_probe].into_iter().flatten()
    {
        number_ports(probe, &ports);
    }
    // A receiver that is gone is a pod that is gone.
    let report = |what| {
        let _ = tell.send(ProbeReport { id: id.clone(), what });
    };
    if let Some(probe) = &container.startup_probe {
        if !succeeds(&pod, &id, probe, &log).await {
            return report(Finding::Unhealthy(STARTUP, probe.termination_grace_period_seconds));
        }
        report(Finding::Started);
    }
    if let Some(probe) = &container.liveness_probe {
        fails(&pod, &id, probe, &log).await;
        report(Finding::Unhealthy(LIVENESS, probe.termination_grace_period_seconds));
    }
}

/// Replaces names of the container's ports by their numbers (probe/util.go, `ResolveContainerPort`).
fn number_ports(probe: &mut Probe, ports: &[ContainerPort]) {
    let http = probe.http_get.as_mut().map(|get| &mut get.port);
    let tcp = probe.tcp_socket.as_mut().map(|socket| &mut socket.port);
    for port in http.into_iter().chain(tcp) {
        let IntOrString::String(name) = &*port else { continue };
        if let Some(named) = ports.iter().find(|one| one.name.as_ref() == Some(name)) {
            *port = IntOrString::Int(named.container_port);
        }
    }
}

/// Until it has succeeded once: true; or has failed too often: false.
async fn succeeds(pod: &Reach, id: &str, probe: &Probe, log: &ContainerLog) -> bool {
    pause(probe.initial_delay_seconds, 0).await;
    for _ in 0..threshold(probe) {
        match once(pod, id, probe).await {
            Ok(()) => return true,
            Err(error) => log.probe_failed(STARTUP, &error.to_string()),
        }
        pause(probe.period_seconds, 10).await;
    }
    false
}

/// Until it has failed too often in a row.
async fn fails(pod: &Reach, id: &str, probe: &Probe, log: &ContainerLog) {
    pause(probe.initial_delay_seconds, 0).await;
    let mut in_a_row = 0;
    loop {
        in_a_row = match once(pod, id, probe).await {
            Ok(()) => 0,
            Err(error) => {
                log.probe_failed(LIVENESS, &error.to_string());
                in_a_row + 1
            }
        };
        if in_a_row >= threshold(probe) {
            return;
        }
        pause(probe.period_seconds, 10).await;
    }
}

/// A probe that cannot be run is no failure (prober.go): its result is unknown, and ignored.
async fn once(pod: &Reach, id: &str, probe: &Probe) -> anyhow::Result<()> {
    let timeout = i64::from(probe.timeout_seconds.unwrap_or(1));
    if let Some(exec) = &probe.exec {
        let cmd = exec.command.clone().unwrap_or_default();
        let request = ExecSyncRequest { container_id: id.into(), cmd, timeout };
        return match pod.cri.clone().exec_sync(request).await {
            Ok(answer) => {
                let code = answer.into_inner().exit_code;
                anyhow::ensure!(code == 0, "command exited with {code}");
                Ok(())
            }
            Err(status) if status.code() == tonic::Code::DeadlineExceeded => {
                Err(anyhow::anyhow!("command timed out"))
            }
            Err(_) => Ok(()),
        };
    }
    let over_network = async {
        match (&probe.http_get, &probe.tcp_socket) {
            (Some(get), _) => hook::http_get(pod, get).await,
            (None, Some(socket)) => hook::connect(pod, socket).await,
            (None, None) => Ok(()),
        }
    };
    tokio::time::timeout(grace::wait(timeout), over_network).await.context("no answer")?
}

fn threshold(probe: &Probe) -> i32 {
    probe.failure_threshold.unwrap_or(3).max(1)
}

async fn pause(seconds: Option<i32>, default: i32) {
    let seconds = u64::try_from(seconds.unwrap_or(default)).unwrap_or(0);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::HTTPGetAction;

    #[test]
    fn a_probe_may_name_a_port() {
        let port = ContainerPort {
            name: Some("metrics".into()),
            container_port: 9470,
            ..Default::default()
        };
        let numbered = |named: &str| {
            let get =
                HTTPGetAction { port: IntOrString::String(named.into()), ..Default::default() };
            let mut probe = Probe { http_get: Some(get), ..Default::default() };
            number_ports(&mut probe, std::slice::from_ref(&port));
            probe.http_get.expect("it is one").port
        };
        assert_eq!(numbered("metrics"), IntOrString::Int(9470));
        assert_eq!(numbered("other"), IntOrString::String("other".into()));
    }
}
