//! In which order a pod's containers are started and stopped
//! (kuberuntime_termination_order.go). Pure.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use std::collections::{BTreeMap, BTreeSet};

/// The containers that run along the pod's life, in the order of their start: native sidecars
/// first, then the main ones.
pub fn start_order(spec: &PodSpec) -> Vec<&Container> {
    sidecars(spec).chain(spec.containers.iter()).collect()
}

/// Whether a container of this name is a native sidecar.
pub fn is_sidecar(spec: &PodSpec, name: &str) -> bool {
    sidecars(spec).any(|container| container.name == name)
}

/// For each container the names of those that must be gone before its StopContainer: nothing for a
/// main container; for a sidecar every main container and every sidecar that started after it.
pub fn waits_for(spec: &PodSpec) -> BTreeMap<String, BTreeSet<String>> {
    let mains: BTreeSet<String> = spec.containers.iter().map(|c| c.name.clone()).collect();
    let mut table: BTreeMap<String, BTreeSet<String>> =
        mains.iter().map(|name| (name.clone(), BTreeSet::new())).collect();
    let mut before = mains;
    let sidecars: Vec<&Container> = sidecars(spec).collect();
    for sidecar in sidecars.into_iter().rev() {
        table.insert(sidecar.name.clone(), before.clone());
        before.insert(sidecar.name.clone());
    }
    table
}

fn sidecars(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, restart: Option<&str>) -> Container {
        Container {
            name: name.into(),
            restart_policy: restart.map(Into::into),
            ..Container::default()
        }
    }

    fn spec() -> PodSpec {
        PodSpec {
            init_containers: Some(vec![
                named("setup", None),
                named("proxy", Some("Always")),
                named("logs", Some("Always")),
            ]),
            containers: vec![named("a", None), named("b", None)],
            ..PodSpec::default()
        }
    }

    #[test]
    fn sidecars_start_first_and_plain_init_containers_do_not_run_along() {
        let names: Vec<_> = start_order(&spec()).iter().map(|c| c.name.clone()).collect();
        assert_eq!(names, ["proxy", "logs", "a", "b"]);
    }

    #[test]
    fn sidecars_stop_last_and_in_reverse() {
        let table = waits_for(&spec());
        let waits = |name: &str| table[name].iter().map(String::as_str).collect::<Vec<_>>();
        assert!(waits("a").is_empty() && waits("b").is_empty());
        assert_eq!(waits("logs"), ["a", "b"]);
        assert_eq!(waits("proxy"), ["a", "b", "logs"]);
    }
}
