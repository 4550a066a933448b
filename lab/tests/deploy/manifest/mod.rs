//! What is deployed, as `kubectl kustomize` renders it, read strictly: a field that the type of its
//! object does not have is an error, as it is to an apiserver with strict field validation.

mod monitoring;

pub(crate) use monitoring::{PodMonitor, PrometheusRule};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Namespace, ResourceQuota, ServiceAccount},
    networking::v1::NetworkPolicy,
    rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{path::Path, process::Command};

/// An object of a kind that coroner deploys.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum DeployedObject {
    Namespace(Box<Namespace>),
    ServiceAccount(Box<ServiceAccount>),
    ResourceQuota(Box<ResourceQuota>),
    /// rbac.authorization.k8s.io/v1.
    ClusterRole(Box<ClusterRole>),
    /// rbac.authorization.k8s.io/v1.
    ClusterRoleBinding(Box<ClusterRoleBinding>),
    /// rbac.authorization.k8s.io/v1.
    RoleBinding(Box<RoleBinding>),
    /// apps/v1.
    DaemonSet(Box<DaemonSet>),
    /// networking.k8s.io/v1.
    NetworkPolicy(Box<NetworkPolicy>),
    /// monitoring.coreos.com/v1.
    PodMonitor(Box<PodMonitor>),
    /// monitoring.coreos.com/v1.
    PrometheusRule(Box<PrometheusRule>),
}

/// Renders a kustomization.
pub(crate) fn render(kubectl: &Path, directory: &Path) -> Result<Vec<DeployedObject>> {
    let output = Command::new(kubectl)
        .arg("kustomize")
        .arg(directory)
        .output()
        .with_context(|| format!("cannot run {}", kubectl.display()))?;
    ensure!(
        output.status.success(),
        "kubectl does not render {}: {}",
        directory.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let text = String::from_utf8(output.stdout).context("what kubectl renders is not UTF-8")?;
    read(&text).with_context(|| format!("as rendered of {}", directory.display()))
}

/// The DaemonSet among them.
pub(crate) fn daemon_set(objects: &[DeployedObject]) -> Result<&DaemonSet> {
    let mut all = objects.iter().filter_map(|object| match object {
        DeployedObject::DaemonSet(one) => Some(&**one),
        _ => None,
    });
    let one = all.next().context("there is no DaemonSet")?;
    ensure!(all.next().is_none(), "there is more than one DaemonSet");
    Ok(one)
}

/// The documents of a YAML text.
pub(crate) fn read(text: &str) -> Result<Vec<DeployedObject>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).context("not YAML")?;
    documents.into_iter().map(object).collect()
}

fn object(document: Value) -> Result<DeployedObject> {
    let word = |key: &str| document[key].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (word("apiVersion"), word("kind"));
    let name = document["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let typed = match (version.as_str(), kind.as_str()) {
        ("v1", "Namespace") => strict(document).map(DeployedObject::Namespace),
        ("v1", "ServiceAccount") => strict(document).map(DeployedObject::ServiceAccount),
        ("v1", "ResourceQuota") => strict(document).map(DeployedObject::ResourceQuota),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => {
            strict(document).map(DeployedObject::ClusterRole)
        }
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => {
            strict(document).map(DeployedObject::ClusterRoleBinding)
        }
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => {
            strict(document).map(DeployedObject::RoleBinding)
        }
        ("apps/v1", "DaemonSet") => strict(document).map(DeployedObject::DaemonSet),
        ("networking.k8s.io/v1", "NetworkPolicy") => {
            strict(document).map(DeployedObject::NetworkPolicy)
        }
        ("monitoring.coreos.com/v1", "PodMonitor") => {
            strict(document).map(DeployedObject::PodMonitor)
        }
        ("monitoring.coreos.com/v1", "PrometheusRule") => {
            strict(document).map(DeployedObject::PrometheusRule)
        }
        _ => bail!("{version:?} {kind:?} is of no kind that is deployed; is it misspelt?"),
    };
    typed.with_context(|| format!("{kind} {name}"))
}

/// Reads it, and demands that nothing of it was passed over: Kubernetes' types ignore what they do
/// not know.
fn strict<T: DeserializeOwned + Serialize>(document: Value) -> Result<Box<T>> {
    let typed: T = serde_json::from_value(document.clone())?;
    let kept = serde_json::to_value(&typed)?;
    let mut lost = Vec::new();
    compare(&document, &kept, String::new(), &mut lost);
    ensure!(lost.is_empty(), "no such field, or not of that value: {}", lost.join(", "));
    Ok(Box::new(typed))
}

fn compare(given: &Value, kept: &Value, path: String, lost: &mut Vec<String>) {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            for (key, value) in given.iter().filter(|(_, value)| !value.is_null()) {
                let path = format!("{path}.{key}");
                match kept.get(key) {
                    Some(kept) => compare(value, kept, path, lost),
                    // An empty list or object is left out where there is nothing else to say.
                    None if is_empty(value) => {}
                    None => lost.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(kept)) if given.len() == kept.len() => {
            for (index, (given, kept)) in given.iter().zip(kept).enumerate() {
                compare(given, kept, format!("{path}[{index}]"), lost);
            }
        }
        _ if given == kept => {}
        _ => lost.push(path),
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
        || value.as_object().is_some_and(serde_json::Map::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: &str = "\
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: a}
spec:
  selector: {matchLabels: {a: b}}
  template:
    spec:
      hostPID: true
      containers:
      - {name: c, ports: [{containerPort: 1, name: m}], FIELD}
";

    fn with(field: &str) -> Result<Vec<DeployedObject>> {
        read(&SET.replace("FIELD", field))
    }

    #[test]
    fn documents_are_typed() {
        let objects = read(&format!(
            "{}---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: ns}}\n",
            SET.replace(", FIELD", "")
        ))
        .unwrap();
        assert_eq!(objects.len(), 2);
        let spec = &daemon_set(&objects).unwrap().spec;
        assert_eq!(spec.template.spec.as_ref().unwrap().host_pid, Some(true));
        assert!(daemon_set(&objects[1..]).is_err());
    }

    #[test]
    fn what_no_such_object_has_is_refused_by_name() {
        assert!(with("image: i").is_ok());
        for (field, place) in [
            ("imagePullpolicy: Always", ".spec.template.spec.containers[0].imagePullpolicy"),
            ("securityContext: {priviledged: true}", ".containers[0].securityContext.priviledged"),
        ] {
            let said = format!("{:#}", with(field).unwrap_err());
            assert!(said.contains("DaemonSet a") && said.contains(place), "{said}");
        }
        assert!(with("image: [1]").is_err(), "of another type");
        let said = format!("{:#}", read("apiVersion: v1\nkind: Namspace\n").unwrap_err());
        assert!(said.contains("misspelt"), "{said}");
    }
}
