//! The CRI adapter against a runtime on a real unix socket.

mod runtime;

use coroner::{
    cri::{self, Counters, Options, Request},
    domain::{
        ids::CgroupId,
        input::{CriEvent, CriExit, Input, Received},
        time::WallTime,
    },
};
use k8s_cri::v1::{self, ContainerState};
use prost::Message;
use runtime::{Call, FakeRuntime, Serving, container, sandbox, status};
use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tonic::Status;

/// Long enough that no list comes by itself.
const NEVER: Duration = Duration::from_secs(3_600);
/// Ends a test that would wait for ever; nothing is measured by it.
const STUCK: Duration = Duration::from_secs(60);

/// The adapter, running, and a runtime for it.
struct Bench {
    runtime: FakeRuntime,
    serving: Option<Serving>,
    socket: PathBuf,
    events: mpsc::Receiver<Received>,
    requests: mpsc::Sender<Request>,
    counters: Arc<Counters>,
    _folder: TempDir,
}

impl Bench {
    fn new(runtime: FakeRuntime, idle: Duration) -> Self {
        Self::with(runtime, |options| options.idle = idle)
    }

    fn with(runtime: FakeRuntime, change: impl FnOnce(&mut Options)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("cri.sock");
        let serving = runtime.serve(&socket);
        let mut options = Options::new(format!("unix://{}", socket.display()));
        options.busy = Duration::from_millis(1);
        options.idle = NEVER;
        change(&mut options);
        let counters = Arc::clone(&options.counters);
        let (to, events) = mpsc::channel(16);
        let (requests, asked) = mpsc::channel(16);
        tokio::spawn(cri::run(options, to, asked));
        let serving = Some(serving);
        Self { runtime, serving, socket, events, requests, counters, _folder: folder }
    }

    async fn event(&mut self) -> CriEvent {
        let received = tokio::time::timeout(STUCK, self.events.recv());
        let received = received.await.expect("no event came").expect("the adapter ended");
        match received.input {
            Input::Cri(event) => {
                if let CriEvent::Sandboxes { asked, .. } | CriEvent::Containers { asked, .. } =
                    &event
                {
                    assert!(*asked <= received.at, "answered before it was asked");
                }
                event
            }
            other => panic!("not of the CRI: {other:?}"),
        }
    }

    /// Skips to the next event that `pick` takes.
    async fn until<T>(&mut self, mut pick: impl FnMut(CriEvent) -> Option<T>) -> T {
        loop {
            if let Some(picked) = pick(self.event().await) {
                return picked;
            }
        }
    }

    /// Skips to the end of the next full list.
    async fn full_list(&mut self) {
        self.until(|event| matches!(event, CriEvent::Containers { only: None, .. }).then_some(()))
            .await;
    }

    async fn ask(&self, request: Request) {
        self.requests.send(request).await.expect("the adapter runs");
    }

    fn statuses_asked(&self, id: &str) -> usize {
        let state = self.runtime.state();
        let wanted =
            |call: &&Call| matches!(call, Call::Status { container, .. } if container == id);
        state.calls.iter().filter(wanted).count()
    }

    fn skipped(&self) -> u64 {
        self.counters.skipped.load(Ordering::Relaxed)
    }
}

fn exited(event: CriEvent) -> Option<CriExit> {
    match event {
        CriEvent::ContainerExited(exit) => Some(exit),
        _ => None,
    }
}

fn unreachable(event: CriEvent) -> Option<String> {
    match event {
        CriEvent::Unreachable { error, .. } => Some(error),
        _ => None,
    }
}

#[tokio::test]
async fn tells_who_answers_before_the_first_answer() {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes.push(sandbox("s1"));
    runtime.state().containers.push(container("c1", "s1", ContainerState::ContainerRunning));
    let mut bench = Bench::new(runtime, NEVER);

    let CriEvent::Connected { runtime, process } = bench.event().await else {
        panic!("not connected first")
    };
    assert_eq!(runtime, "containerd 1.7.24");
    let process = process.expect("the peer is this process");
    assert_eq!(process.pid, std::process::id());
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    assert!(stat.split(' ').any(|field| field == process.started.to_string()));

    let CriEvent::Sandboxes { only: None, sandboxes, .. } = bench.event().await else {
        panic!("no sandboxes")
    };
    assert_eq!(sandboxes.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["s1"]);
    let CriEvent::Containers { only: None, containers, .. } = bench.event().await else {
        panic!("no containers")
    };
    assert_eq!(containers.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["c1"]);
}

#[tokio::test]
async fn leaves_nonsense_out_and_counts_it() {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        state.sandboxes = vec![
            v1::PodSandbox { metadata: None, ..sandbox("no-metadata") },
            v1::PodSandbox { state: 77, ..sandbox("no-such-state") },
            v1::PodSandbox { created_at: -1, ..sandbox("before-time") },
            sandbox(""),
            sandbox("good"),
        ];
        state.containers = vec![
            container("no-sandbox", "", ContainerState::ContainerRunning),
            container("good", "good", ContainerState::ContainerRunning),
        ];
    }
    let mut bench = Bench::new(runtime, NEVER);
    let sandboxes = bench.until(|event| match event {
        CriEvent::Sandboxes { sandboxes, .. } => Some(sandboxes),
        _ => None,
    });
    assert_eq!(sandboxes.await.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["good"]);
    let containers = bench.until(|event| match event {
        CriEvent::Containers { containers, .. } => Some(containers),
        _ => None,
    });
    assert_eq!(containers.await.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["good"]);
    assert_eq!(bench.skipped(), 5);
}

#[tokio::test]
async fn an_end_is_fetched_once() {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        state.sandboxes.push(sandbox("s1"));
        state.containers.push(container("c1", "s1", ContainerState::ContainerExited));
        state.statuses.insert("c1".into(), status("c1", ContainerState::ContainerExited, 0));
    }
    let mut bench = Bench::new(runtime, Duration::from_millis(1));
    let exit = bench.until(exited).await;
    let expected = CriExit {
        container: "c1".into(),
        started: Some(WallTime(5)),
        finished: Some(WallTime(9)),
        exit_code: 143,
        reason: "Error".into(),
    };
    assert_eq!(exit, expected);
    for _ in 0..5 {
        bench
            .until(|event| {
                assert_eq!(exited(event.clone()), None, "told twice");
                matches!(event, CriEvent::Containers { .. }).then_some(())
            })
            .await;
    }
    assert_eq!(bench.statuses_asked("c1"), 1);

    // Removed and listed again (another container for all that the adapter knows): a new story.
    let gone = std::mem::take(&mut bench.runtime.state().containers);
    bench
        .until(|event| match event {
            CriEvent::Containers { containers, .. } if containers.is_empty() => Some(()),
            _ => None,
        })
        .await;
    bench.runtime.state().containers = gone;
    bench.until(exited).await;
}

#[tokio::test]
async fn a_refused_status_is_asked_for_again_and_no_outage() {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        state.containers.push(container("c1", "s1", ContainerState::ContainerExited));
        state.statuses.insert("c1".into(), status("c1", ContainerState::ContainerExited, 0));
        state.status_failures =
            vec![Status::internal("the shim is busy"), Status::not_found("not yet")];
    }
    let mut bench = Bench::new(runtime, Duration::from_millis(1));
    let exit = bench.until(|event| {
        assert_eq!(unreachable(event.clone()), None);
        exited(event)
    });
    assert_eq!(exit.await.exit_code, 143);
    assert_eq!(bench.statuses_asked("c1"), 3);
    assert_eq!(bench.counters.errors.load(Ordering::Relaxed), 1, "not found is not an error");
}

#[tokio::test]
async fn learns_stop_signals_where_the_runtime_tells_them() {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        for (id, signal) in [("default", 0), ("rtmin-plus-3", 38), ("unheard-of", 99)] {
            state.containers.push(container(id, "s1", ContainerState::ContainerRunning));
            let answer = status(id, ContainerState::ContainerRunning, signal);
            state.statuses.insert(id.into(), answer);
        }
    }
    let mut bench = Bench::new(runtime, Duration::from_millis(1));
    let told = bench.until(|event| match event {
        CriEvent::StopSignal { container, signal } => Some((container, signal)),
        _ => None,
    });
    assert_eq!(told.await, ("rtmin-plus-3".into(), 37));
    for _ in 0..5 {
        bench
            .until(|event| match event {
                CriEvent::StopSignal { container, .. } => panic!("told again of {container}"),
                CriEvent::Containers { .. } => Some(()),
                _ => None,
            })
            .await;
    }
    for id in ["default", "rtmin-plus-3", "unheard-of"] {
        assert_eq!(bench.statuses_asked(id), 1, "{id}");
    }

    // Its end is asked for all the same.
    let end = status("default", ContainerState::ContainerExited, 0);
    bench.runtime.state().statuses.insert("default".into(), end);
    bench.runtime.state().containers[0].state = ContainerState::ContainerExited.into();
    assert_eq!(bench.until(exited).await.container, "default".into());
}

#[tokio::test]
async fn polls_hurried_sandboxes_only_until_relaxed() {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes = vec![sandbox("s1"), sandbox("s2")];
    runtime.state().containers = vec![
        container("c1", "s1", ContainerState::ContainerUnknown),
        container("c2", "s2", ContainerState::ContainerUnknown),
    ];
    let mut bench = Bench::new(runtime, NEVER);
    bench.full_list().await;

    bench.ask(Request::Hurry(vec!["s1".into()])).await;
    for _ in 0..3 {
        let CriEvent::Sandboxes { only, sandboxes, .. } =
            bench.until(|event| matches!(event, CriEvent::Sandboxes { .. }).then_some(event)).await
        else {
            unreachable!()
        };
        assert_eq!(only, Some("s1".into()));
        assert_eq!(sandboxes.len(), 1);
        let CriEvent::Containers { only, containers, .. } = bench
            .until(|event| matches!(event, CriEvent::Containers { .. }).then_some(event))
            .await
        else {
            unreachable!()
        };
        assert_eq!(only, Some("s1".into()));
        assert_eq!(containers[0].id, "c1".into());
    }

    bench.ask(Request::Relax(vec!["s1".into()])).await;
    nothing_but_full_lists(&mut bench).await;
}

#[tokio::test]
async fn a_hurried_sandbox_that_is_gone_is_not_polled_any_more() {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes = vec![sandbox("s1"), sandbox("s2")];
    let mut bench = Bench::new(runtime, NEVER);
    bench.full_list().await;
    bench.ask(Request::Hurry(vec!["s1".into()])).await;
    bench
        .until(|event| match event {
            CriEvent::Sandboxes { only, .. } => only,
            _ => None,
        })
        .await;
    bench.runtime.state().sandboxes.remove(0);
    nothing_but_full_lists(&mut bench).await;
}

/// Whatever was under way is over, and nothing comes any more but what is asked for.
async fn nothing_but_full_lists(bench: &mut Bench) {
    bench.ask(Request::LookNow(None)).await;
    bench.full_list().await;
    bench.ask(Request::LookNow(None)).await;
    bench
        .until(|event| match event {
            CriEvent::Sandboxes { only, .. } | CriEvent::Containers { only, .. }
                if only.is_some() =>
            {
                panic!("still polled: {only:?}")
            }
            CriEvent::Containers { .. } => Some(()),
            _ => None,
        })
        .await;
}

#[tokio::test]
async fn looks_at_once_when_asked_to() {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes = vec![sandbox("s1")];
    let mut bench = Bench::new(runtime, NEVER);
    bench.full_list().await;

    let looked = |event| match event {
        CriEvent::Containers { only, .. } => Some(only),
        _ => None,
    };
    bench.ask(Request::LookNow(Some("s1".into()))).await;
    assert_eq!(bench.until(looked).await, Some("s1".into()));
    bench.ask(Request::LookNow(Some("never-seen".into()))).await;
    assert_eq!(bench.until(looked).await, None, "an unknown sandbox needs the full list");
    bench.ask(Request::LookNow(None)).await;
    assert_eq!(bench.until(looked).await, None);
}

#[tokio::test]
async fn a_storm_of_requests_neither_waits_nor_multiplies() {
    let runtime = FakeRuntime::default();
    let lists = Arc::clone(&runtime.lists);
    let closed = lists.write().await;
    let mut bench = Bench::new(runtime, NEVER);
    while !bench.runtime.state().calls.contains(&Call::Sandboxes(String::new())) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The first list hangs in the runtime; requests are taken all the same.
    for n in 0..1_000 {
        bench.ask(Request::LookNow(Some(format!("s{n}").as_str().into()))).await;
    }
    drop(closed);
    bench.full_list().await; // the first
    bench.full_list().await; // the one for all thousand
    let state = bench.runtime.state();
    let made = state.calls.iter().filter(|call| matches!(call, Call::Containers(_))).count();
    // The request that arrives while the second list is under way may cause a third.
    assert!(made <= 3, "{made} lists for one storm");
}

#[tokio::test]
async fn a_killed_runtime_is_told_once_and_met_again() {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        state.sandboxes.push(sandbox("s1"));
        state.containers.push(container("c1", "s1", ContainerState::ContainerExited));
        state.statuses.insert("c1".into(), status("c1", ContainerState::ContainerExited, 0));
    }
    let mut bench = Bench::new(runtime, Duration::from_millis(5));
    bench.until(exited).await;

    bench.serving.take().expect("it serves").kill();
    let error = bench.until(unreachable).await;
    assert!(!error.is_empty());
    // Some attempts fail meanwhile.
    let before = bench.counters.errors.load(Ordering::Relaxed);
    while bench.counters.errors.load(Ordering::Relaxed) < before + 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bench.serving = Some(bench.runtime.serve(&bench.socket));
    let next = bench.event().await;
    assert!(matches!(next, CriEvent::Connected { .. }), "{next:?}");
    let next = bench.event().await;
    assert!(matches!(next, CriEvent::Sandboxes { only: None, .. }), "{next:?}");
    for _ in 0..3 {
        bench
            .until(|event| {
                assert_eq!(exited(event.clone()), None, "told twice");
                matches!(event, CriEvent::Containers { .. }).then_some(())
            })
            .await;
    }
}

#[tokio::test]
async fn a_restart_between_two_polls_does_not_go_unnoticed() {
    let mut bench = Bench::new(FakeRuntime::default(), NEVER);
    bench.full_list().await;
    bench.serving.take().expect("it serves").kill();
    bench.serving = Some(bench.runtime.serve(&bench.socket));
    bench.ask(Request::LookNow(None)).await;
    bench.until(unreachable).await;
    let next = bench.event().await;
    assert!(matches!(next, CriEvent::Connected { .. }), "{next:?}");
}

#[tokio::test]
async fn a_runtime_that_hangs_is_an_outage() {
    let runtime = FakeRuntime::default();
    let lists = Arc::clone(&runtime.lists);
    let closed = lists.write().await;
    let mut bench = Bench::with(runtime, |options| options.timeout = Duration::from_millis(50));
    let error = bench.until(unreachable).await;
    assert!(error.contains("ListPodSandbox"), "{error}");
    drop(closed);
    bench.full_list().await;
}

#[tokio::test]
async fn a_missing_socket_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nobody.sock");
    let (to, mut events) = mpsc::channel(4);
    let (_requests, asked) = mpsc::channel(4);
    tokio::spawn(cri::run(Options::new(socket.to_str().unwrap()), to, asked));
    let first = tokio::time::timeout(STUCK, events.recv()).await.unwrap().unwrap();
    let Input::Cri(CriEvent::Unreachable { error, .. }) = first.input else { panic!("{first:?}") };
    assert!(error.contains("nobody.sock") && error.contains("no such socket"), "{error}");
}

#[tokio::test]
async fn an_endpoint_of_another_kind_is_refused() {
    let (to, _events) = mpsc::channel(4);
    let (_requests, asked) = mpsc::channel(4);
    let error = cri::run(Options::new("tcp://127.0.0.1:1"), to, asked).await.unwrap_err();
    assert!(error.to_string().contains("unix socket"), "{error}");
}

#[tokio::test]
async fn ends_when_nobody_listens() {
    let bench = Bench::new(FakeRuntime::default(), NEVER);
    let Bench { events, requests, .. } = bench;
    drop(events);
    tokio::time::timeout(STUCK, requests.closed()).await.expect("the adapter still runs");
}

fn padded(id: &str, bytes: usize) -> v1::PodSandbox {
    let mut one = sandbox(id);
    one.annotations.insert("padding".into(), "x".repeat(bytes));
    one
}

#[tokio::test]
async fn answers_between_4_and_16_mib_arrive() {
    let runtime = FakeRuntime::default();
    let items: Vec<_> = (0..10_000).map(|n| padded(&format!("s{n}"), 800)).collect();
    let size = v1::ListPodSandboxResponse { items: items.clone() }.encoded_len();
    assert!((4 << 20..16 << 20).contains(&size), "{size} bytes prove nothing");
    runtime.state().sandboxes = items;
    let mut bench = Bench::new(runtime, NEVER);
    let count = bench.until(|event| match event {
        CriEvent::Sandboxes { sandboxes, .. } => Some(sandboxes.len()),
        CriEvent::Unreachable { error, .. } => panic!("{error}"),
        _ => None,
    });
    assert_eq!(count.await, 10_000);
}

#[tokio::test]
async fn an_answer_above_16_mib_is_named_and_survived() {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes = (0..17).map(|n| padded(&format!("s{n}"), 1 << 20)).collect();
    let mut bench = Bench::new(runtime, NEVER);
    let error = bench.until(unreachable).await;
    assert!(error.contains("ListPodSandbox") && error.contains("16 MiB"), "{error}");
    bench.runtime.state().sandboxes.truncate(1);
    let left = bench.until(|event| match event {
        CriEvent::Connected { .. } => panic!("the connection was good"),
        CriEvent::Sandboxes { sandboxes, .. } => Some(sandboxes.len()),
        _ => None,
    });
    assert_eq!(left.await, 1);
}

#[tokio::test]
async fn finds_the_cgroup_of_a_container() {
    // This process plays the container's main process, in whatever hierarchy is mounted here.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = mounts
        .lines()
        .find(|line| line.contains(" - cgroup2 ") || line.contains(" - cgroup "))
        .and_then(|line| line.split(' ').nth(4))
        .expect("a cgroup file system is mounted");

    let runtime = FakeRuntime::default();
    let mut answer = status("c1", ContainerState::ContainerRunning, 0);
    answer.info.insert("info".into(), format!(r#"{{"pid":{}}}"#, std::process::id()));
    runtime.state().statuses.insert("c1".into(), answer);
    let mut bench = Bench::with(runtime, |options| options.cgroup_root = Some(root.into()));
    bench.ask(Request::FindCgroup("gone".into())).await;
    bench.ask(Request::FindCgroup("c1".into())).await;
    let (container, CgroupId(id)) = bench
        .until(|event| match event {
            CriEvent::ContainerCgroup { container, cgroup } => Some((container, cgroup)),
            _ => None,
        })
        .await;
    assert_eq!(container, "c1".into());
    let memberships = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let mine = memberships.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| {
        let directory = Path::new(root).join(path.trim_start_matches('/'));
        std::fs::metadata(directory).is_ok_and(|found| found.ino() == id)
    });
    assert!(mine, "{id} is no cgroup of this process under {root}");
    assert!(
        bench
            .runtime
            .state()
            .calls
            .contains(&Call::Status { container: "c1".into(), verbose: true })
    );
}

#[tokio::test]
async fn makes_no_call_but_the_four_that_read() {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        state.sandboxes.push(sandbox("s1"));
        state.containers.push(container("c1", "s1", ContainerState::ContainerExited));
        state.statuses.insert("c1".into(), status("c1", ContainerState::ContainerExited, 0));
    }
    let mut bench = Bench::new(runtime, Duration::from_millis(1));
    bench.ask(Request::Hurry(vec!["s1".into()])).await;
    bench.ask(Request::FindCgroup("c1".into())).await;
    bench.until(exited).await;
    bench.full_list().await;
    let state = bench.runtime.state();
    assert!(!state.calls.iter().any(|call| matches!(call, Call::Other(_))), "{:?}", state.calls);
}

/// The generated client can do everything; the adapter's source must not even name the rest.
#[test]
fn the_source_names_no_call_that_changes_anything() {
    const WRITING: [&str; 15] = [
        "RunPodSandbox",
        "StopPodSandbox",
        "RemovePodSandbox",
        "CreateContainer",
        "StartContainer",
        "StopContainer",
        "RemoveContainer",
        "UpdateContainerResources",
        "ReopenContainerLog",
        "ExecSync",
        "Attach",
        "PortForward",
        "UpdateRuntimeConfig",
        "CheckpointContainer",
        // Reads, but takes the events away from the kubelet on containerd 1.7.
        "GetContainerEvents",
    ];
    let snake = |name: &str| {
        let mut out = String::new();
        for letter in name.chars() {
            if letter.is_uppercase() && !out.is_empty() {
                out.push('_');
            }
            out.push(letter.to_ascii_lowercase());
        }
        out
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cri");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let source = std::fs::read_to_string(&path).unwrap();
        for name in WRITING {
            for name in [name.to_owned(), snake(name)] {
                assert!(!source.contains(&name), "{} names {name}", path.display());
            }
        }
        assert!(!source.contains(".exec("), "{} calls exec", path.display());
        read += 1;
    }
    assert!(read >= 5, "the adapter's source has moved");
}
