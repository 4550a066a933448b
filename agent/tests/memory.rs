//! What an apiserver can make the agent hold: every limit of docs/security.md filled at once, measured.

use coroner::sources::{
    cut::Cut,
    kube::{self, KubeOptions},
};
use coroner_core::{
    engine::{Engine, Settings},
    input::{ApiEvent, Input},
    time::Anchor,
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    fmt::Write as _,
    io::{BufRead, BufReader, BufWriter, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::mpsc;

/// The most of docs/security.md, for what comes from the apiserver.
const MOST: usize = 72 << 20;

/// Ends a test that would wait for ever; nothing is measured by it.
const STUCK: Duration = Duration::from_secs(300);

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is the system allocator's; the counters change nothing of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(HELD.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn x(count: usize) -> String {
    "x".repeat(count)
}

/// A pod with so many containers of each kind, each with all that is kept of one, at its longest.
fn large(number: usize, containers: usize) -> String {
    let (hook, word) = (format!(r#"{{"exec":{{"command":["/{}"]}}}}"#, x(400)), x(100));
    let probe = format!(r#"{{"exec":{{"command":["/{}"]}}}}"#, x(400));
    let (mut specs, mut statuses) = (String::new(), String::new());
    for n in 0..containers {
        let comma = if n == 0 { "" } else { "," };
        write!(
            specs,
            r#"{comma}{{"name":"KIND-{n}-{word}","image":"{word}{word}{word}{word}","lifecycle":{{"preStop":{hook},
            "postStart":{hook}}},"livenessProbe":{probe},"startupProbe":{probe},"restartPolicy":"{word}"}}"#
        )
        .unwrap();
        let end = format!(
            r#"{{"terminated":{{"containerID":"c://{word}{word}{word}","exitCode":1,"reason":"{word}{word}{word}"}}}}"#
        );
        write!(
            statuses,
            r#"{comma}{{"name":"KIND-{n}-{word}","containerID":"c://{word}{word}{word}","restartCount":1,
            "state":{end},"lastState":{end}}}"#
        )
        .unwrap();
    }
    let of = |text: &str, kind: &str| text.replace("KIND", kind);
    format!(
        r#"{{"metadata":{{{},"finalizers":["{}"{}]}},"spec":{{"containers":[{}],"initContainers":[{}],
        "ephemeralContainers":[{}]}},"status":{{"phase":"Running","containerStatuses":[{}],
        "initContainerStatuses":[{}],"ephemeralContainerStatuses":[{}]}}}}"#,
        identity(number),
        x(400),
        format!(r#","{}""#, x(400)).repeat(30),
        of(&specs, "m"),
        of(&specs, "i"),
        of(&specs, "e"),
        of(&statuses, "m"),
        of(&statuses, "i"),
        of(&statuses, "e"),
    )
}

fn identity(number: usize) -> String {
    format!(r#""uid":"{number:064}","namespace":"{}","name":"{number}-{}""#, x(63), x(240))
}

/// 1.2 MB of finalizers, as a real apiserver takes them.
fn finalizers(number: usize) -> String {
    let more = r#","a.b/c""#.repeat(150_000);
    format!(r#"{{"metadata":{{{},"finalizers":["a.b/c"{more}]}}}}"#, identity(number))
}

fn deep(number: usize) -> String {
    let (open, close) = ("{\"f:a\":".repeat(140), "}".repeat(140));
    format!(
        r#"{{"metadata":{{"managedFields":[{{"fieldsV1":{open}{{}}{close}}}],{}}}}}"#,
        identity(number)
    )
}

/// A pod that fills the room that each has, and no more.
fn ordinary(number: usize) -> String {
    let container = |n: usize| format!(r#"{{"name":"{n}-{}"}}"#, x(80));
    let containers: Vec<_> = (0..22).map(container).collect();
    format!(
        r#"{{"metadata":{{{},"finalizers":["{f}","{f}"]}},"spec":{{"containers":[{}]}},
        "status":{{"phase":"Running"}}}}"#,
        identity(number),
        containers.join(","),
        f = x(300),
    )
}

/// One list of 1,024 pods: as many as are kept.
fn list(stream: TcpStream) -> std::io::Result<()> {
    let mut to = BufWriter::new(stream);
    write!(to, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
    write!(to, r#"{{"metadata":{{"resourceVersion":"10"}},"items":["#)?;
    let mut number = 0;
    let mut next = || {
        number += 1;
        number - 1
    };
    for _ in 0..20 {
        write!(to, "{},", finalizers(next()))?;
    }
    for _ in 0..10 {
        write!(to, "{},", deep(next()))?;
    }
    for _ in 0..10 {
        write!(to, "{},", large(next(), 300))?;
    }
    for _ in 40..1_023 {
        write!(to, "{},", ordinary(next()))?;
    }
    write!(to, "{}]}}", ordinary(next()))?;
    to.flush()
}

/// Lists, and a watch that says that its place is gone: so there is a second list, while all of the first
/// is held.
fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    head.read_line(&mut line)?;
    let mut rest = String::new();
    while head.read_line(&mut rest)? > 2 {
        rest.clear();
    }
    if line.contains("watch=true") {
        let event = r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410}}"#;
        write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{event}\n")
    } else if line.contains("/pods") {
        list(stream)
    } else {
        write!(stream, "HTTP/1.1 404 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    }
}

#[tokio::test]
async fn every_limit_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that has seen enough hangs up.
            std::thread::spawn(move || serve(stream));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"x",
        "clusters":[{{"name":"c","cluster":{{"server":"{server}"}}}}],"users":[{{"name":"u","user":{{}}}}],
        "contexts":[{{"name":"x","context":{{"cluster":"c","user":"u"}}}}]}}"#
    );
    std::fs::write(&file, text).unwrap();
    let mut options =
        KubeOptions { kubeconfig: Some(file), spread: Duration::ZERO, ..KubeOptions::new("n1") };
    options.counters = Arc::default();
    let counters = Arc::clone(&options.counters);
    let (to, mut inputs) = mpsc::channel(16);
    let (_ask, requests) = mpsc::channel(1);
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    tokio::spawn(kube::run(options, to, requests));
    let anchor = Anchor { boot_ns: 0, wall_ns: 0 };
    let mut engine = Engine::new(Settings::new(anchor));
    let (mut lists, mut pods) = (0, 0);
    while lists < 3 {
        let received = tokio::time::timeout(STUCK, inputs.recv()).await.expect("in time").unwrap();
        if let Input::Api(ApiEvent::Snapshot { pods: listed }) = &received.input {
            (lists, pods) = (lists + 1, listed.len());
        }
        engine.step(received);
    }
    let (held, peak) = (HELD.load(Relaxed) - before, PEAK.load(Relaxed) - before);
    println!("{} MiB held, {} MiB at the most", held >> 20, peak >> 20);
    assert_eq!(pods, 1_024);
    let cut = |cut| counters.truncated.of(cut);
    assert!(cut(Cut::Text) > 0 && cut(Cut::Containers) > 0 && cut(Cut::Finalizers) > 0);
    assert!(peak < MOST, "{} MiB", peak >> 20);
    assert!(peak > MOST / 3, "far from what is allowed, the limits are not filled: {peak}");
}
