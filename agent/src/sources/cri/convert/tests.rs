use super::*;
use coroner_core::input::Hook;

fn map(pairs: &[(&str, &str)]) -> Vec<Bytes> {
    let entry =
        |(key, value): &(&str, &str)| read::Entry { key: (*key).into(), value: (*value).into() };
    pairs.iter().map(|pair| entry(pair).encode_to_vec().into()).collect()
}

fn raw_sandbox() -> read::PodSandbox {
    read::PodSandbox {
        id: "s1".into(),
        metadata: Some(read::PodSandboxMetadata {
            name: "web-0".into(),
            uid: "u1".into(),
            namespace: "shop".into(),
            attempt: 2,
        }),
        state: 1,
        created_at: 5,
        labels: map(&[(POD_NAME, "label-name"), (POD_NAMESPACE, "label-ns"), (POD_UID, "lu")]),
        annotations: map(&[(CONFIG_SOURCE, "file"), ("secret", "never kept")]),
        runtime_handler: "kata".into(),
    }
}

fn raw_container() -> read::Container {
    read::Container {
        id: "c1".into(),
        pod_sandbox_id: "s1".into(),
        metadata: Some(read::ContainerMetadata { name: "app".into(), attempt: 3 }),
        state: 1,
        created_at: 7,
        labels: map(&[(POD_UID, "u1"), (CONTAINER_NAME, "label-name")]),
        annotations: map(&[(GRACE_PERIOD, "30")]),
    }
}

fn sandbox(from: read::PodSandbox) -> Result<CriSandbox, Invalid> {
    super::sandbox(from, &Cuts::default())
}

fn container(from: read::Container) -> Result<CriContainer, Invalid> {
    super::container(from, &Cuts::default())
}

#[test]
fn sandboxes() {
    let expected = CriSandbox {
        id: "s1".into(),
        pod: "u1".into(),
        name: "web-0".into(),
        namespace: "shop".into(),
        attempt: 2,
        ready: false,
        created: Some(WallTime(5)),
        handler: "kata".into(),
        config_source: Some("file".into()),
    };
    assert_eq!(sandbox(raw_sandbox()), Ok(expected.clone()));
    assert_eq!(
        sandbox(read::PodSandbox { state: 0, ..raw_sandbox() }),
        Ok(CriSandbox { ready: true, ..expected })
    );
    let bare = read::PodSandbox { metadata: None, ..raw_sandbox() };
    let named = sandbox(bare.clone()).unwrap();
    assert_eq!(
        (named.pod.as_str(), &*named.name, &*named.namespace),
        ("lu", "label-name", "label-ns")
    );
    for label in 0..3 {
        let mut unnamed = bare.clone();
        unnamed.labels.remove(label);
        assert!(sandbox(unnamed).is_err(), "{label}");
    }
    assert!(sandbox(read::PodSandbox { id: String::new(), ..raw_sandbox() }).is_err());
    for state in [2, -1] {
        assert!(sandbox(read::PodSandbox { state, ..raw_sandbox() }).is_err());
    }
}

#[test]
fn containers() {
    let expected = CriContainer {
        id: "c1".into(),
        sandbox: "s1".into(),
        name: "app".into(),
        attempt: 3,
        state: ContainerState::Running,
        created: Some(WallTime(7)),
        pod: Some("u1".into()),
        grace_seconds: Some(30),
        pre_stop: None,
    };
    for (raw, state) in [
        (0, ContainerState::Created),
        (1, ContainerState::Running),
        (2, ContainerState::Exited),
        (3, ContainerState::Unknown),
        (4, ContainerState::Unknown),
        (-1, ContainerState::Unknown),
    ] {
        assert_eq!(
            container(read::Container { state: raw, ..raw_container() }),
            Ok(CriContainer { state, ..expected.clone() })
        );
    }
    for (text, seconds) in
        [("0", Some(0)), ("-1", None), ("30s", None), ("9223372036854775808", None)]
    {
        let raw = read::Container { annotations: map(&[(GRACE_PERIOD, text)]), ..raw_container() };
        assert_eq!(container(raw).unwrap().grace_seconds, seconds, "{text:?}");
    }
    let bare = read::Container { metadata: None, ..raw_container() };
    assert_eq!(container(bare.clone()).unwrap().name, "label-name");
    for invalid in [
        read::Container { labels: vec![], ..bare },
        read::Container { id: String::new(), ..raw_container() },
        read::Container { pod_sandbox_id: String::new(), ..raw_container() },
    ] {
        assert!(container(invalid).is_err());
    }
}

#[test]
fn what_cannot_be_decoded_is_left_out_of_a_list() {
    let items = vec![Bytes::from_static(&[0xff]), raw_sandbox().encode_to_vec().into()];
    let list = super::sandboxes(read::ListPodSandboxResponse { items }, &Cuts::default());
    assert_eq!((list.valid.len(), list.invalid), (1, 1));
}

#[test]
fn hooks_keep_their_kind_and_binary_only() {
    let deep =
        format!(r#"{{"httpGet":{{"path":{}1{}}}}}"#, "[".repeat(1 << 20), "]".repeat(1 << 20));
    for (json, expected) in [
        (
            r#"{"exec":{"command":["/usr/bin/drain","--token=secret"]}}"#,
            Some(Hook::Exec("drain".into())),
        ),
        (r#"{"exec":{}}"#, None),
        (r#"{"httpGet":{"path":"/bye","port":8080}}"#, Some(Hook::HttpGet)),
        (&deep, Some(Hook::HttpGet)),
        (r#"{"tcpSocket":{"port":"web"}}"#, Some(Hook::TcpSocket)),
        (r#"{"sleep":{"seconds":5}}"#, Some(Hook::Sleep(5))),
        (r#"{"later":{}}"#, None),
        ("[]", None),
        (r#"{"exec":7}"#, None),
        ("", None),
    ] {
        let raw = read::Container { annotations: map(&[(PRE_STOP, json)]), ..raw_container() };
        assert_eq!(container(raw).unwrap().pre_stop, expected, "{json:.99}");
    }
}

/// A time that is only shown does not decide whether a thing exists (containerd#9673).
#[test]
fn a_time_that_cannot_be_is_unknown() {
    for created_at in [-6_795_364_578_871_345_152, -1, 0, i64::MIN] {
        let read = sandbox(read::PodSandbox { created_at, ..raw_sandbox() });
        assert_eq!(read.unwrap().created, None);
        let read = container(read::Container { created_at, ..raw_container() });
        assert_eq!(read.unwrap().created, None);
        assert_eq!(moment(created_at), None);
    }
}

#[test]
fn stop_signals() {
    for (raw, expected) in [
        (0, None),
        (1, Some(6)),
        (23, Some(15)),
        (34, Some(25)),
        (35, Some(34)),
        (50, Some(49)),
        (65, Some(64)),
        (66, None),
        (-1, None),
    ] {
        assert_eq!(stop_signal(raw), expected, "{raw}");
    }
    assert!((1..=65).all(|raw| stop_signal(raw).is_some()), "the table has a bad name");
}

#[test]
fn container_infos() {
    for (json, pid, runtime) in [
        (
            r#"{"sandboxID":"s1","pid":4711,"runtimeType":"io.kata.v2"}"#,
            Some(4711),
            Some("io.kata.v2"),
        ),
        (r#"{"pid":0,"runtimeType":""}"#, None, None),
        (r#"{"pid":-5}"#, None, None),
        (r#"{"runtimeType":7}"#, None, None),
        ("{", None, None),
    ] {
        let info = ContainerInfo::parse(json);
        assert_eq!((info.pid(), info.runtime().as_deref()), (pid, runtime), "{json}");
    }
}

/// As containerd 1.4 to 1.7 marshal their `SandboxInfo`, in their order.
const CONTAINERD_1: &str = r#"{"pid":4711,"processStatus":"running",
    "netNamespaceClosed":false,"image":"registry.k8s.io/pause:3.6","snapshotKey":"s1",
    "snapshotter":"overlayfs","runtimeHandler":"","runtimeType":"io.containerd.runc.v2",
    "runtimeOptions":{},"config":{"metadata":{"name":"web-0","uid":"u1","namespace":"shop"},
    "annotations":{"pid":"no number","netNamespaceClosed":"?"},"linux":{"security_context":
    {"namespace_options":{"pid":1}}}},"runtimeSpec":{"ociVersion":"1.0.2-dev","process":
    {"args":["/pause"]},"linux":{"resources":{},"namespaces":[{"type":"pid"},
    {"type":"ipc"},{"type":"uts"},{"type":"mount"},{"type":"network",
    "path":"/var/run/netns/cni-1"}]}},"cniResult":{"Interfaces":{"eth0":
    {"IPConfigs":[{"IP":"10.88.0.2","Gateway":"10.88.0.1"}]}},"DNS":[{}],"Routes":null}}"#;

/// As containerd 2.x does, of a sandbox that its controller has lost.
const CONTAINERD_2_LOST: &str = r#"{"pid":0,"processStatus":"deleted",
    "netNamespaceClosed":false,"image":"","snapshotKey":"","snapshotter":"","runtimeType":"",
    "runtimeOptions":null,"config":{},"runtimeSpec":null,"cniResult":{},"sandboxMetadata":
    {"Version":"v1","Metadata":{"ID":"s1","Name":"web-0_shop_u1_0","Config":{},
    "NetNSPath":"/var/run/netns/cni-2","IP":"10.88.0.3","AdditionalIPs":null,
    "RuntimeHandler":"","CNIResult":{},"ProcessLabel":""}}}"#;

/// As all of containerd's do of a sandbox in the host's network.
const CONTAINERD_HOST: &str = r#"{"pid":4712,"processStatus":"running",
    "netNamespaceClosed":false,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},
    {"type":"ipc"},{"type":"mount"}]}},"cniResult":null,"sandboxMetadata":{"Version":"v1",
    "Metadata":{"ID":"s1","NetNSPath":""}}}"#;

const CRI_O: &str = r#"{"image":"registry.k8s.io/pause:3.9","pid":4713,"runtimeSpec":
    {"ociVersion":"1.0.2-dev","linux":{"namespaces":[{"type":"pid"},{"type":"network",
    "path":"/var/run/netns/3d1"},{"type":"ipc","path":"/var/run/ipcns/3d1"}]}}}"#;

/// What a verbose status says whose `info` and network mode are these: pid, network, whether the info is readable.
fn status(info: &str, network: Option<i32>) -> (u32, SandboxNetwork, bool) {
    let options = network.map(|network| read::NamespaceOption { network });
    let linux = read::LinuxPodSandboxStatus { namespaces: Some(read::Namespace { options }) };
    let answer = read::PodSandboxStatusResponse {
        status: Some(read::PodSandboxStatus { linux: Some(linux), ..Default::default() }),
        info: [("info".to_owned(), info.to_owned())].into(),
    };
    let (status, readable) = sandbox_status("s1".into(), BootTime(5), answer).unwrap();
    (status.pid.unwrap_or(0), status.network, readable.is_ok())
}

fn own(path: &str, closed: impl Into<Option<bool>>) -> SandboxNetwork {
    SandboxNetwork::Own { path: (!path.is_empty()).then(|| path.to_owned()), closed: closed.into() }
}

#[test]
fn what_each_runtime_writes_of_a_sandbox() {
    let closed = CONTAINERD_1.replace(":4711", ":0").replace("Closed\":false", "Closed\":true");
    let deep = format!(r#"{{"config":{}1{},"pid":7}}"#, "[".repeat(1 << 20), "]".repeat(1 << 20));
    let path = |length| {
        format!(r#"{{"sandboxMetadata":{{"Metadata":{{"NetNSPath":"{}"}}}}}}"#, "/".repeat(length))
    };
    let unknown = || SandboxNetwork::Unknown;
    for (text, pid, network, readable) in [
        (CONTAINERD_1, 4711, own("/var/run/netns/cni-1", false), true),
        (&closed, 0, own("/var/run/netns/cni-1", true), true),
        (CONTAINERD_2_LOST, 0, own("/var/run/netns/cni-2", false), true),
        (CONTAINERD_HOST, 4712, unknown(), true),
        (CRI_O, 4713, own("/var/run/netns/3d1", None), true),
        (r#"{"runtimeSpec":{"ociVersion":"","annotations":{}}}"#, 0, unknown(), true),
        ("", 0, unknown(), true),
        ("{}", 0, unknown(), true),
        (r#"{"pid":-1}"#, 0, unknown(), true),
        (r#"{"pid":null,"sandboxMetadata":{"Metadata":null}}"#, 0, unknown(), true),
        (r#"{"netNamespaceClosed":false}"#, 0, unknown(), true),
        (r#"{"netNamespaceClosed":true}"#, 0, own("", true), true),
        (r#"{"runtimeSpec":{"linux":{"namespaces":[{"path":"/x"},{}]}}}"#, 0, unknown(), true),
        (&path(4096), 0, own(&"/".repeat(4096), None), true),
        (&path(4097), 0, unknown(), true),
        (&deep, 7, unknown(), true),
        ("{", 0, unknown(), false),
        ("7", 0, unknown(), false),
        (r#"{"pid":"7"}"#, 0, unknown(), false),
        (r#"{"runtimeSpec":7}"#, 0, unknown(), false),
    ] {
        assert_eq!(status(text, None), (pid, network, readable), "{text:.99}");
    }
}

#[test]
fn the_hosts_network_is_nobodys_leak() {
    const POD: Option<i32> = Some(read::NamespaceMode::Pod as i32);
    const NODE: Option<i32> = Some(read::NamespaceMode::Node as i32);
    const PATH: &str =
        r#"{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/n"}]}}}"#;
    for (network, info, expected) in [
        (NODE, "{}", SandboxNetwork::Host),
        (NODE, PATH, SandboxNetwork::Host),
        (POD, PATH, own("/n", None)),
        (POD, "{}", own("", None)),
        (None, PATH, own("/n", None)),
        (Some(9), "{}", SandboxNetwork::Unknown),
    ] {
        assert_eq!(status(info, network).1, expected, "{network:?} {info:?}");
    }
}

#[test]
fn only_addresses_are_addresses() {
    let ip = |ip: &str| read::PodIp { ip: ip.into() };
    let network = read::PodSandboxNetworkStatus {
        ip: "10.88.0.2".into(),
        additional_ips: vec![ip(""), ip("fd00::2"), ip(&"x".repeat(1 << 20))],
    };
    let status = read::PodSandboxStatus { network: Some(network), ..Default::default() };
    let answer = read::PodSandboxStatusResponse { status: Some(status), ..Default::default() };
    let (status, _) = sandbox_status("s1".into(), BootTime(5), answer).unwrap();
    assert_eq!(status.ips, ["10.88.0.2", "fd00::2"]);
    assert_eq!((status.pid, status.network), (None, SandboxNetwork::Unknown));
}

#[test]
fn the_stop_signal_of_an_image() {
    let of = |info: &str| {
        let info = HashMap::from([("info".to_owned(), info.to_owned())]);
        image_stop_signal(&read::ImageStatusResponse { info })
    };
    for (signal, expected) in [("SIGQUIT", Some(3)), ("9", Some(9)), ("", None), ("65", None)] {
        let info = format!(
            r#"{{"chainID":"x","imageSpec":{{"os":"linux","config":{{"Env":["A=b"],"StopSignal":"{signal}"}}}}}}"#
        );
        assert_eq!(of(&info), expected, "{signal}");
    }
    for nonsense in ["", "[]", "{}", r#"{"imageSpec":null}"#, r#"{"imageSpec":{"config":7}}"#] {
        assert_eq!(of(nonsense), None, "{nonsense}");
    }
    assert_eq!(image_stop_signal(&read::ImageStatusResponse::default()), None);
}
