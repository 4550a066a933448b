use super::*;
use crate::sources::cri::client;
use prost::Message as _;

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn raw_sandbox() -> RawSandbox {
    RawSandbox {
        id: "s1".into(),
        name: "web-0".into(),
        uid: "u1".into(),
        namespace: "shop".into(),
        attempt: 2,
        state: 1,
        created_at: 5,
        labels: map(&[(POD_NAME, "label-name"), (POD_NAMESPACE, "label-ns"), (POD_UID, "lu")]),
        annotations: map(&[(CONFIG_SOURCE, "file"), ("secret", "never kept")]),
        handler: "kata".into(),
    }
}

fn raw_container() -> RawContainer {
    RawContainer {
        id: "c1".into(),
        sandbox: "s1".into(),
        name: "app".into(),
        attempt: 3,
        state: 1,
        created_at: 7,
        labels: map(&[(POD_UID, "u1"), (CONTAINER_NAME, "label-name")]),
        annotations: map(&[(GRACE_PERIOD, "30"), (HASH, "5c0ffee")]),
    }
}

#[test]
fn a_sandbox() {
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
        sandbox(RawSandbox { state: 0, ..raw_sandbox() }),
        Ok(CriSandbox { ready: true, ..expected })
    );
}

#[test]
fn a_sandbox_without_metadata_is_named_by_its_labels() {
    let bare = v1::PodSandbox {
        id: "s1".into(),
        labels: raw_sandbox().labels,
        ..v1::PodSandbox::default()
    };
    let read = client::sandbox(bare.encode_to_vec().into(), &Cuts::default()).unwrap();
    let named = sandbox(read).unwrap();
    assert_eq!(
        (named.pod.as_str(), &*named.name, &*named.namespace),
        ("lu", "label-name", "label-ns")
    );
}

#[test]
fn nonsensical_sandboxes() {
    let unnamed = || RawSandbox { labels: HashMap::new(), ..raw_sandbox() };
    for (raw, expected) in [
        (RawSandbox { id: String::new(), ..raw_sandbox() }, InvalidItem::NoId),
        (RawSandbox { uid: String::new(), ..unnamed() }, InvalidItem::NoName),
        (RawSandbox { name: String::new(), ..unnamed() }, InvalidItem::NoName),
        (RawSandbox { namespace: String::new(), ..unnamed() }, InvalidItem::NoName),
        (RawSandbox { state: 2, ..raw_sandbox() }, InvalidItem::State(2)),
        (RawSandbox { state: -1, ..raw_sandbox() }, InvalidItem::State(-1)),
    ] {
        assert_eq!(sandbox(raw), Err(expected));
    }
}

#[test]
fn a_container() {
    let expected = CriContainer {
        id: "c1".into(),
        sandbox: "s1".into(),
        name: "app".into(),
        attempt: 3,
        state: ContainerState::Running,
        created: Some(WallTime(7)),
        pod: Some("u1".into()),
        hash: Some("5c0ffee".into()),
        grace_seconds: Some(30),
        pre_stop: None,
    };
    assert_eq!(container(raw_container()), Ok(expected.clone()));
    for (raw, state) in [
        (0, ContainerState::Created),
        (1, ContainerState::Running),
        (2, ContainerState::Exited),
        (3, ContainerState::Unknown),
        (4, ContainerState::Unknown),
        (-1, ContainerState::Unknown),
    ] {
        assert_eq!(
            container(RawContainer { state: raw, ..raw_container() }),
            Ok(CriContainer { state, ..expected.clone() })
        );
    }
}

#[test]
fn nonsensical_containers() {
    for (raw, expected) in [
        (RawContainer { id: String::new(), ..raw_container() }, InvalidItem::NoId),
        (RawContainer { sandbox: String::new(), ..raw_container() }, InvalidItem::NoSandbox),
        (
            RawContainer { name: String::new(), labels: HashMap::new(), ..raw_container() },
            InvalidItem::NoName,
        ),
    ] {
        assert_eq!(container(raw), Err(expected));
    }
}

#[test]
fn graces() {
    for (text, expected) in [
        ("0", Some(0)),
        ("86400", Some(86_400)),
        ("-1", None),
        ("", None),
        ("30s", None),
        ("9223372036854775808", None),
    ] {
        let raw = RawContainer { annotations: map(&[(GRACE_PERIOD, text)]), ..raw_container() };
        assert_eq!(container(raw).unwrap().grace_seconds, expected, "{text:?}");
    }
}

#[test]
fn hooks_keep_their_kind_and_binary_only() {
    for (json, expected) in [
        (
            r#"{"exec":{"command":["/usr/bin/drain","--token=secret"]}}"#,
            Some(Hook::Exec("drain".into())),
        ),
        (r#"{"exec":{"command":["sh"]}}"#, Some(Hook::Exec("sh".into()))),
        (r#"{"exec":{"command":[]}}"#, None),
        (r#"{"exec":{}}"#, None),
        (r#"{"httpGet":{"path":"/bye","port":8080}}"#, Some(Hook::HttpGet)),
        (r#"{"tcpSocket":{"port":"web"}}"#, Some(Hook::TcpSocket)),
        (r#"{"sleep":{"seconds":5}}"#, Some(Hook::Sleep(5))),
        (r#"{"later":{}}"#, None),
        ("{}", None),
        ("null", None),
        ("[]", None),
        (r#"{"exec":7}"#, None),
        ("", None),
    ] {
        let raw = RawContainer { annotations: map(&[(PRE_STOP, json)]), ..raw_container() };
        assert_eq!(container(raw).unwrap().pre_stop, expected, "{json}");
    }
}

#[test]
fn exits() {
    let raw = RawStatus {
        id: "c1".into(),
        state: 2,
        started_at: 0,
        finished_at: 9,
        exit_code: 137,
        reason: "Error".into(),
        stop_signal: 0,
    };
    let expected = CriExit {
        container: "c1".into(),
        started: None,
        finished: Some(WallTime(9)),
        exit_code: 137,
        reason: "Error".into(),
    };
    assert_eq!(exit(&raw), Ok(Some(expected)));
    for state in [0, 1, 3, 4] {
        assert_eq!(exit(&RawStatus { state, ..raw.clone() }), Ok(None));
    }
    assert_eq!(exit(&RawStatus { id: String::new(), ..raw.clone() }), Err(InvalidItem::NoId));
}

/// A time that is only shown does not decide whether a thing exists (containerd#9673).
#[test]
fn a_time_that_cannot_be_is_unknown() {
    for unknown in [-6_795_364_578_871_345_152, -1, 0, i64::MIN] {
        let read = sandbox(RawSandbox { created_at: unknown, ..raw_sandbox() });
        assert_eq!(read.unwrap().created, None);
        let read = container(RawContainer { created_at: unknown, ..raw_container() });
        assert_eq!(read.unwrap().created, None);
        assert_eq!(moment(unknown), None);
    }
}

#[test]
fn stop_signals() {
    for (raw, expected) in [
        (0, None),
        (1, Some(6)),
        (5, Some(17)),
        (13, Some(9)),
        (18, Some(3)),
        (23, Some(15)),
        (29, Some(10)),
        (32, Some(28)),
        (34, Some(25)),
        (35, Some(34)),
        (38, Some(37)),
        (50, Some(49)),
        (51, Some(50)),
        (64, Some(63)),
        (65, Some(64)),
        (66, None),
        (-1, None),
    ] {
        assert_eq!(stop_signal(raw), expected, "{raw}");
    }
    assert!((1..=65).all(|raw| stop_signal(raw).is_some()), "the table has a bad name");
}

#[test]
fn runtime_types() {
    let kata = r#"{"pid":4711,"runtimeType":"io.containerd.kata.v2","config":{}}"#;
    assert_eq!(info_runtime(kata).as_deref(), Some("io.containerd.kata.v2"));
    for json in [r#"{"pid":1}"#, r#"{"runtimeType":""}"#, r#"{"runtimeType":7}"#, "{"] {
        assert_eq!(info_runtime(json), None, "{json}");
    }
}

fn info(json: &str) -> ContainerInfo {
    ContainerInfo::parse(json, &Cuts::default())
}

fn info_runtime(json: &str) -> Option<String> {
    info(json).runtime
}

#[test]
fn pids() {
    for (json, expected) in [
        (r#"{"sandboxID":"s1","pid":4711,"config":{}}"#, Some(4711)),
        (r#"{"pid":0}"#, None),
        (r#"{"pid":-5}"#, None),
        (r#"{"pid":"7"}"#, None),
        ("{}", None),
        ("", None),
    ] {
        assert_eq!(info(json).pid, expected, "{json}");
    }
}
