use crate::checks::{binary, recorded};
use coroner::sources::kube::fuzzing;
use coroner_core::input::{ApiEvent, ApiPod, Hook, Input};

/// Answers of the apiserver: any JSON as a list, as lines of a watch, as a node → inputs.
pub fn api(bytes: &[u8]) {
    for (pod, gone) in fuzzing::events(bytes) {
        sound(&pod);
        let event = if gone { ApiEvent::Deleted(pod) } else { ApiEvent::Applied(pod) };
        recorded(Input::Api(event));
    }
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Some(pods) = fuzzing::list(line) {
            pods.iter().for_each(sound);
            recorded(Input::Api(ApiEvent::Snapshot { pods }));
        }
        if let Some(node) = fuzzing::node(line) {
            assert!(!node.boot_id.is_empty());
            recorded(Input::Api(ApiEvent::Node(node)));
        }
    }
}

fn sound(pod: &ApiPod) {
    assert!(!pod.uid.is_empty() && !pod.namespace.is_empty() && !pod.name.is_empty());
    for container in pod.containers.values() {
        if let Some(Hook::Exec(name)) = &container.pre_stop {
            binary(name);
        }
        let probes = container.liveness.iter().chain(&container.startup);
        probes.filter_map(|probe| probe.exec.as_ref()).for_each(|name| binary(name));
        assert!(container.id.as_ref().is_none_or(|id| !id.as_str().is_empty()));
        assert!(container.stop_signal.is_none_or(|signal| (1..=64).contains(&signal)));
    }
}
