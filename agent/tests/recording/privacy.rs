//! A recording can be attached to a bug report: whatever a pod, a runtime or an error says beside
//! what the join needs, none of it is in the file.

use super::{header, reader};
use crate::cri::{self, runtime::entries};
use coroner::{
    outputs::recording::{Stopped, Writer, redact},
    sources::{cri::convert, cut::Cuts, kube::pod as kube},
};
use coroner_core::{
    input::{ApiEvent, CriEvent, Input, Received},
    time::{Anchor, BootTime},
};
use coroner_cri_api::read;
use flate2::read::GzDecoder;
use prost::bytes::Bytes;
use serde_json::{Value, json};
use std::io::Read;

/// In everything that must not be recorded.
const CANARY: &str = "CANARY";

fn canary(what: &str) -> String {
    format!("{CANARY}-{what}")
}

fn pod() -> Value {
    let handler = json!({
        "exec": { "command": ["/opt/drain --token=CANARY-word", canary("argument")] } });
    let container = json!({
        "name": "app", "image": canary("image"), "workingDir": canary("dir"),
        "command": [canary("command")], "args": [canary("arg")],
        "env": [{ "name": canary("variable"), "value": canary("value") }],
        "envFrom": [{ "secretRef": { "name": canary("secret") } }],
        "volumeMounts": [{ "name": canary("volume"), "mountPath": canary("mount") }],
        "lifecycle": { "preStop": handler },
        "livenessProbe": { "exec": {
            "command": ["/opt/alive --token=CANARY-probe", canary("probe")] } },
        "startupProbe": { "httpGet": { "port": 1, "path": canary("path") } },
    });
    let state = json!({ "terminated": {
        "exitCode": 1, "reason": "Error", "message": canary("message"),
        "containerID": "containerd://c1" } });
    json!({
        "metadata": {
            "name": "web-0", "namespace": "shop", "uid": "u1",
            "labels": { "app": canary("label"), (canary("key")): "" },
            "annotations": { "note": canary("annotation"), "kubernetes.io/config.mirror": "m1" },
            "managedFields": [{ "manager": canary("manager") }],
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": canary("owner"),
                                  "uid": canary("owner-uid") }],
        },
        "spec": {
            "containers": [container],
            "nodeName": canary("node"), "serviceAccountName": canary("account"),
            "hostname": canary("host"), "schedulerName": canary("scheduler"),
            "volumes": [{ "name": canary("volume") }],
            "imagePullSecrets": [{ "name": canary("pull-secret") }],
        },
        "status": {
            "phase": "Failed", "reason": "Evicted", "message": canary("status"),
            "hostIP": canary("ip"), "podIP": canary("pod-ip"),
            "conditions": [{ "type": "DisruptionTarget", "status": "True",
                             "reason": "EvictionByEvictionAPI", "message": canary("condition") }],
            "containerStatuses": [{
                "name": "app", "image": canary("image"), "imageID": canary("image-id"),
                "ready": false, "restartCount": 0, "containerID": "containerd://c1",
                "state": state, "lastState": state }],
        },
    })
}

fn map(own: &[(&str, &str)]) -> Vec<Bytes> {
    entries(&[own, &[("note", "CANARY-value"), ("CANARY-key", "")]].concat())
}

fn inputs() -> Vec<Input> {
    let pod = kube::pod(&serde_json::from_value(pod()).unwrap()).unwrap();
    let cuts = Cuts::default();
    let from = read::PodSandbox {
        labels: map(&[]),
        annotations: map(&[("kubernetes.io/config.source", "api")]),
        ..cri::runtime::sandbox("s1")
    };
    let sandbox = convert::sandbox(from, &cuts);
    let hook = json!({ "exec": { "command": ["/opt/drain", canary("annotated")] } }).to_string();
    let from = read::Container {
        labels: map(&[("io.kubernetes.pod.uid", "u1")]),
        annotations: map(&[
            ("io.kubernetes.pod.terminationGracePeriod", "30"),
            ("io.kubernetes.container.preStopHandler", &hook),
        ]),
        ..cri::runtime::container("c1", "s1", read::ContainerState::ContainerRunning)
    };
    let container = convert::container(from, &cuts);
    let error = || format!("https://{}/?token={}: connection refused", canary("host"), canary("t"));
    let (asked, only) = (BootTime(1), None);
    let sandboxes = vec![sandbox.unwrap()];
    let containers = vec![container.unwrap()];
    vec![
        Input::Api(ApiEvent::Snapshot { pods: vec![pod.clone()] }),
        Input::Api(ApiEvent::Deleted(pod)),
        Input::Api(ApiEvent::OutOfSync { error: error() }),
        Input::Cri(CriEvent::Unreachable { error: error(), code: None }),
        Input::Api(ApiEvent::NodeUnknown { missing: false, error: error() }),
        Input::Cri(CriEvent::Sandboxes { asked, only: only.clone(), sandboxes }),
        Input::Cri(CriEvent::Containers { asked, only, containers }),
    ]
}

#[test]
fn no_canary_gets_into_the_file() {
    let mut writer = Writer::begin(Vec::new(), &header(Anchor { boot_ns: 1, wall_ns: 1 })).unwrap();
    let inputs: Vec<Input> = inputs().into_iter().map(redact).collect();
    for input in &inputs {
        writer.input(&Received { at: BootTime(2), input: input.clone() }).unwrap();
    }
    let file = writer.end(Stopped::Agent).unwrap();
    let mut text = String::new();
    GzDecoder::new(&*file).read_to_string(&mut text).unwrap();
    let found: Vec<&str> = text.match_indices(CANARY).map(|(at, _)| &text[at..at + 20]).collect();
    assert!(found.is_empty(), "{found:?} in\n{text}");
    // What the join needs is there all the same.
    for wanted in
        ["web-0", "shop", "drain", "alive", "\"m1\"", "\"api\"", "EvictionByEvictionAPI", "refused"]
    {
        assert!(text.contains(wanted), "{wanted} is missing from\n{text}");
    }
    let read: Vec<Input> = reader(&file).map(|received| received.input).collect();
    assert_eq!(read, inputs);
}
