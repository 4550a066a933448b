//! The DaemonSet's pod: where it is probed, and what a cluster adds to it.

use anyhow::{Context as _, Result};
use coroner_lab_cluster::apiserver::token;
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Container, EnvVar, HostPathVolumeSource, Pod, Probe, Volume, VolumeMount},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// What the manifests call the namespace and the agent's account.
const NAMESPACE: &str = "coroner";
const SERVICE_ACCOUNT: &str = "coroner";

/// The container whose agent is asked.
pub(super) const CONTAINER: &str = "coroner";

/// Where a pod finds its credentials for the apiserver.
const CREDENTIALS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How the node's first process is named in the manifest.
const HOST_ROOT: &str = "/proc/1/root";

/// Where the agent makes its socket on the node, which the lab does not touch.
const SOCKET: &str = "/run/coroner";

/// What [`SOCKET`] is on the lab's node.
pub(super) fn socket(credentials: &Path) -> PathBuf {
    credentials.with_file_name("socket")
}

/// Writes what the kubelet projects into a pod: a token, the namespace, and what to trust of the apiserver.
pub(super) fn write_credentials(certificate: &str, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let token = token(NAMESPACE, SERVICE_ACCOUNT);
    for (name, content) in [("token", &*token), ("namespace", NAMESPACE), ("ca.crt", certificate)] {
        let file = to.join(name);
        fs::write(&file, content).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Where the kubelet would ask whether the agent is well.
#[derive(Clone, Debug)]
pub(super) struct Probes {
    pub(super) port: u16,
    pub(super) liveness: String,
    pub(super) readiness: String,
}

/// Of the DaemonSet's container.
pub(super) fn probes(set: &DaemonSet) -> Result<Probes> {
    let container = container(set)?;
    let of = |probe: &Option<Probe>, name: &str| -> Result<(String, u16)> {
        let http = probe.as_ref().and_then(|probe| probe.http_get.as_ref());
        let http = http.with_context(|| format!("there is no {name} probe by HTTP"))?;
        let number = match &http.port {
            IntOrString::Int(number) => Some(*number),
            IntOrString::String(name) => container
                .ports
                .iter()
                .flatten()
                .find(|port| port.name.as_ref() == Some(name))
                .map(|port| port.container_port),
        };
        let port = number.and_then(|number| u16::try_from(number).ok());
        let port = port.with_context(|| format!("the {name} probe's port is none"))?;
        Ok((http.path.clone().unwrap_or_default(), port))
    };
    let (liveness, port) = of(&container.liveness_probe, "liveness")?;
    let (readiness, _) = of(&container.readiness_probe, "readiness")?;
    Ok(Probes { port, liveness, readiness })
}

fn container(set: &DaemonSet) -> Result<&Container> {
    let spec = set.spec.template.spec.as_ref();
    spec.and_then(|spec| spec.containers.iter().find(|one| one.name == CONTAINER))
        .with_context(|| format!("the DaemonSet has no container {CONTAINER}"))
}

/// What admission does: adds credentials, as that of service accounts, and the address at which the apiserver speaks
/// TLS, which is not that of the lab's other pods; and gives the node's first process, whose root is `host_root`, another
/// name.
pub(super) fn admit(pod: &mut Pod, host_root: &Path, credentials: &Path, apiserver: SocketAddr) {
    let Some(spec) = &mut pod.spec else { return };
    spec.volumes.get_or_insert_default().push(Volume {
        name: "kube-api-access".into(),
        host_path: Some(HostPathVolumeSource {
            path: credentials.display().to_string(),
            ..Default::default()
        }),
        ..Default::default()
    });
    for volume in spec.volumes.iter_mut().flatten() {
        if let Some(host) = volume.host_path.as_mut().filter(|host| host.path == SOCKET) {
            host.path = socket(credentials).display().to_string();
        }
    }
    for container in &mut spec.containers {
        container.volume_mounts.get_or_insert_default().push(VolumeMount {
            name: "kube-api-access".into(),
            mount_path: CREDENTIALS.into(),
            read_only: Some(true),
            ..Default::default()
        });
        for (name, value) in [
            ("KUBERNETES_SERVICE_HOST", apiserver.ip().to_string()),
            ("KUBERNETES_SERVICE_PORT", apiserver.port().to_string()),
        ] {
            let (name, value) = (name.to_owned(), Some(value));
            container.env.get_or_insert_default().push(EnvVar {
                name,
                value,
                ..Default::default()
            });
        }
        for value in container.env.iter_mut().flatten().filter_map(|one| one.value.as_mut()) {
            *value = value.replace(HOST_ROOT, &host_root.display().to_string());
        }
    }
}
