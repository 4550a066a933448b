//! Reads a recording of a real node (see `recordings/README.md`) as the inputs that the adapters
//! would have made of it.

use coroner::sources::{
    cri::convert::{self as cri, RawContainer, RawSandbox, RawStatus},
    kube::{self as kube_events, convert as kube},
};
use coroner_core::{
    ids::{CgroupId, PodUid, Tgid},
    input::{
        ApiEvent, CriEvent, Disposition, ExitStatus, Input, KernelEvent, KernelFact, LookupEvent,
        PostedEvent, ProcessRef, Received, SignalGenerated, SignalResult, Task,
    },
    time::{Anchor, BootTime, WallTime},
};
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    io::Read as _,
    path::Path,
    time::Duration,
};

/// The recorder polled this often and wrote down only what had changed.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// A recording as inputs, in order of receipt.
pub(crate) struct Recording {
    pub(crate) anchor: Anchor,
    pub(crate) inputs: Vec<Received>,
    pub(crate) truth: Value,
}

pub(crate) fn load(dir: &Path) -> Recording {
    load_with(dir, false)
}

/// `events`: with the kubelet's Events, where they were recorded.
pub(crate) fn load_with(dir: &Path, events: bool) -> Recording {
    let anchor: Anchor =
        serde_json::from_str(&fs::read_to_string(dir.join("clock.json")).unwrap()).unwrap();
    let mut inputs = kernel(&lines(&dir.join("kernel.jsonl")));
    if events {
        inputs.extend(self::events(dir, anchor));
    }
    inputs.extend(runtime(&with_marks(dir)));
    inputs.extend(apiserver(&lines(&dir.join("api.jsonl"))));
    inputs.sort_by_key(|i| i.at);
    let truth = fs::read_to_string(dir.join("truth.json")).unwrap();
    Recording { anchor, inputs, truth: serde_json::from_str(&truth).unwrap() }
}

pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The Events: each time that one is posted, a list of all of its pod up to then.
fn events(dir: &Path, anchor: Anchor) -> Vec<Received> {
    let mut all = String::new();
    if let Ok(file) = fs::File::open(dir.join("events.jsonl.gz")) {
        GzDecoder::new(file).read_to_string(&mut all).unwrap();
    }
    let mut lists: HashMap<PodUid, Vec<PostedEvent>> = HashMap::new();
    let of = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let event = &line["event"];
        let (reason, message) = (text(&event["reason"]), text(&event["message"]));
        let object = text(&event["involvedObject"]["fieldPath"]);
        let posted: jiff::Timestamp = event["lastTimestamp"].as_str().unwrap().parse().unwrap();
        let posted = WallTime::from_secs(posted.as_second());
        let pod = PodUid::new(event["involvedObject"]["uid"].as_str().unwrap());
        let mut entry = kube_events::event((&reason, &object, &message), posted, &anchor)?;
        entry.posted = event["count"].as_u64().and_then(|count| u32::try_from(count).ok());
        let wall = WallTime((line["wall"].as_f64().unwrap() * 1e9) as i64);
        let at = anchor.boot(wall);
        let entries = lists.entry(pod.clone()).or_default();
        entries.push(entry);
        let event = LookupEvent::Events { pod, asked: at, entries: Some(entries.clone()) };
        Some(Received { at, input: Input::Events(event) })
    };
    all.lines().filter_map(of).collect()
}

pub(crate) fn at(line: &Value) -> BootTime {
    BootTime(line["t"].as_u64().unwrap())
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The runtime of the recorded nodes is behind a wrapper that drops limits and executes it as `runc-real`
/// or `crun-real` (README.md).
fn comm(task: &Value) -> String {
    let comm = text(&task["comm"]);
    comm.strip_suffix("-real").map(str::to_owned).unwrap_or(comm)
}

/// The recorder named a signal's target by its tid only, and told of all processes of the node:
/// this joins and filters as the programs do.
fn kernel(lines: &[Value]) -> Vec<Received> {
    let mut tasks: HashMap<u64, (u64, u64)> = HashMap::new();
    let mut watched: BTreeSet<u64> = BTreeSet::new();
    let mut made: BTreeSet<u64> = BTreeSet::new();
    let mut out = Vec::new();
    for line in lines {
        let task = &line["task"];
        if let Some(cgroup) = task["cgroup"].as_u64() {
            tasks.insert(number(&task["tid"]), (number(&task["tgid"]), cgroup));
        }
        let (Some(id), Some(path)) = (line["id"].as_u64(), line["path"].as_str()) else { continue };
        if !path.contains("kubepods") {
            continue;
        }
        watched.insert(id);
        // What was there before the recording began is what the scan at start would have found.
        if made.insert(id) && line["ev"] != "cgroup_mkdir" {
            let fact = KernelFact::CgroupCreated {
                cgroup: CgroupId(id),
                parent: None,
                name: path.to_owned(),
                scanned: true,
            };
            let first = at(&lines[0]);
            let event = KernelEvent { time: first, fact };
            out.push(Received { at: first, input: Input::Kernel(event) });
        }
    }
    let facts = lines.iter().filter_map(|line| {
        let fact = fact(line, &tasks, &watched)?;
        Some(Received { at: at(line), input: Input::Kernel(KernelEvent { time: at(line), fact }) })
    });
    out.extend(facts);
    out
}

fn fact(
    line: &Value,
    tasks: &HashMap<u64, (u64, u64)>,
    watched: &BTreeSet<u64>,
) -> Option<KernelFact> {
    let task = |value: &Value| Task {
        tgid: Tgid(number(&value["tgid"]) as u32),
        tid: number(&value["tid"]) as u32,
        ns_pid: None,
        started: None,
        comm: comm(value),
    };
    let sender = |value: &Value| ProcessRef {
        tgid: Tgid(number(&value["tgid"]) as u32),
        comm: comm(value),
        cgroup: value["cgroup"].as_u64().map(CgroupId),
        in_container: value["cgroup"].as_u64().map(|id| watched.contains(&id)),
    };
    let of_task = line["task"]["cgroup"].as_u64().filter(|id| watched.contains(id)).map(CgroupId);
    let of_group = line["id"].as_u64().filter(|id| watched.contains(id)).map(CgroupId);
    Some(match line["ev"].as_str()? {
        "cgroup_mkdir" => KernelFact::CgroupCreated {
            cgroup: of_group?,
            parent: None,
            name: text(&line["path"]),
            scanned: false,
        },
        "cgroup_rmdir" => KernelFact::CgroupRemoved { cgroup: of_group? },
        "cgroup_notify_populated" if line["val"] == 0 => {
            KernelFact::CgroupEmpty { cgroup: of_group? }
        }
        "sched_process_exec" => KernelFact::Exec {
            cgroup: of_task?,
            task: task(&line["task"]),
            parent: sender(&line["parent"]),
        },
        "sched_process_exit" => {
            let own = number(&line["exit_code"]) as u32;
            let group = number(&line["group_exit_code"]) as u32;
            KernelFact::Exit {
                cgroup: of_task?,
                task: task(&line["task"]),
                status: ExitStatus::from_wait(if group == 0 { own } else { group }),
                parent: Some(sender(&line["parent"])),
            }
        }
        "signal_generate" => {
            let tid = number(&line["target"]["tid"]);
            let (tgid, cgroup) = tasks.get(&tid).filter(|(_, id)| watched.contains(id))?;
            KernelFact::SignalGenerated(SignalGenerated {
                cgroup: CgroupId(*cgroup),
                target: Task {
                    tgid: Tgid(*tgid as u32),
                    tid: tid as u32,
                    ns_pid: None,
                    started: None,
                    comm: text(&line["target"]["comm"]),
                },
                signal: number(&line["sig"]) as u8,
                code: line["code"].as_i64().unwrap_or_default() as i32,
                group: line["group"] == 1,
                result: match number(&line["result"]) {
                    0 => SignalResult::Delivered,
                    1 => SignalResult::Ignored,
                    2 => SignalResult::AlreadyPending,
                    _ => SignalResult::Overflow,
                },
                sender: sender(&line["sender"]),
                state: None,
            })
        }
        "signal_deliver" => KernelFact::SignalDelivered {
            cgroup: of_task?,
            task: task(&line["task"]),
            signal: number(&line["sig"]) as u8,
            disposition: match number(&line["handler"]) {
                0 => Disposition::Default,
                1 => Disposition::Ignore,
                _ => Disposition::Handler,
            },
        },
        _ => return None,
    })
}

/// The runtime's lines, and what the marks say of its life: the recorder wrote down one error for
/// two outages.
fn with_marks(dir: &Path) -> Vec<Value> {
    let mut all = lines(&dir.join("cri.jsonl"));
    let told = fs::read_to_string(dir.join("marks.jsonl")).unwrap_or_default();
    for line in told.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let mark = text(&line["mark"]).to_lowercase();
        let t = line["t"].clone();
        match (mark.contains("containerd"), mark.contains("sigkill"), mark.contains("up")) {
            (true, true, _) => all.push(json!({ "t": t, "error": { "code": "UNAVAILABLE" } })),
            (true, false, true) => all.push(json!({ "t": t, "unchanged": true })),
            _ => {}
        }
    }
    all.sort_by_key(|line| line["t"].as_u64());
    all
}

fn runtime(lines: &[Value]) -> Vec<Received> {
    let mut out = Vec::new();
    let mut before: BTreeMap<&str, CriEvent> = BTreeMap::new();
    let mut last = BootTime(0);
    let mut connected = false;
    for (place, line) in lines.iter().enumerate() {
        let at = at(line);
        let mut say = |at, event| out.push(Received { at, input: Input::Cri(event) });
        if line["error"].is_object() || line["error"].is_string() {
            if connected {
                let code = line["error"]["code"].as_str().map(str::to_owned);
                say(at, CriEvent::Unreachable { error: line["error"].to_string(), code });
            }
            connected = false;
            last = at;
            continue;
        }
        if connected {
            // The unchanged poll just before, which was not written.
            let poll = at - POLL;
            for event in before.values().filter(|_| poll > last) {
                say(poll, asked_at(event.clone(), poll));
            }
        } else {
            say(at, CriEvent::Connected { runtime: "containerd".into(), process: None });
            connected = true;
            // What had not changed over the outage was not written again.
            let soon = |line: &&Value| self::at(line) <= at + POLL * 2;
            let now: Vec<_> = lines[place..].iter().take_while(soon).collect();
            for (kind, call) in [("sandboxes", "ListPodSandbox"), ("containers", "ListContainers")]
            {
                let written = now.iter().any(|line| line.get(call).is_some());
                if let Some(event) = before.get(kind).filter(|_| !written) {
                    say(at, asked_at(event.clone(), at));
                }
            }
        }
        if let Some(list) = line.get("ListPodSandbox") {
            let sandboxes =
                items(&list["items"]).map(|s| cri::sandbox(raw_sandbox(s)).unwrap()).collect();
            let event = CriEvent::Sandboxes { asked: at, only: None, sandboxes };
            before.insert("sandboxes", event.clone());
            say(at, event);
        } else if let Some(list) = line.get("ListContainers") {
            let containers = items(&list["containers"])
                .map(|c| cri::container(raw_container(c)).unwrap())
                .collect();
            let event = CriEvent::Containers { asked: at, only: None, containers };
            before.insert("containers", event.clone());
            say(at, event);
        } else if let Some(status) = line.get("ContainerStatus") {
            let raw = raw_status(&status["status"]);
            say(at, CriEvent::ContainerExited(cri::exit(&raw).unwrap().unwrap()));
        }
        last = at;
    }
    out
}

pub(crate) fn asked_at(event: CriEvent, at: BootTime) -> CriEvent {
    match event {
        CriEvent::Sandboxes { only, sandboxes, .. } => {
            CriEvent::Sandboxes { asked: at, only, sandboxes }
        }
        CriEvent::Containers { only, containers, .. } => {
            CriEvent::Containers { asked: at, only, containers }
        }
        other => other,
    }
}

pub(crate) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn map(value: &Value) -> HashMap<String, String> {
    value.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), text(v))).collect()
}

/// protobuf JSON writes 64-bit numbers as text.
fn long(value: &Value) -> i64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}

pub(crate) fn raw_sandbox(value: &Value) -> RawSandbox {
    RawSandbox {
        id: text(&value["id"]),
        name: text(&value["metadata"]["name"]),
        uid: text(&value["metadata"]["uid"]),
        namespace: text(&value["metadata"]["namespace"]),
        attempt: number(&value["metadata"]["attempt"]) as u32,
        state: i32::from(value["state"] == "SANDBOX_NOTREADY"),
        created_at: long(&value["createdAt"]),
        labels: map(&value["labels"]),
        annotations: map(&value["annotations"]),
        handler: text(&value["runtimeHandler"]),
    }
}

fn state(value: &Value) -> i32 {
    match value.as_str() {
        None | Some("CONTAINER_CREATED") => 0,
        Some("CONTAINER_RUNNING") => 1,
        Some("CONTAINER_EXITED") => 2,
        Some(_) => 3,
    }
}

pub(crate) fn raw_container(value: &Value) -> RawContainer {
    RawContainer {
        id: text(&value["id"]),
        sandbox: text(&value["podSandboxId"]),
        name: text(&value["metadata"]["name"]),
        attempt: number(&value["metadata"]["attempt"]) as u32,
        state: state(&value["state"]),
        created_at: long(&value["createdAt"]),
        labels: map(&value["labels"]),
        annotations: map(&value["annotations"]),
    }
}

pub(crate) fn raw_status(value: &Value) -> RawStatus {
    RawStatus {
        id: text(&value["id"]),
        state: state(&value["state"]),
        started_at: long(&value["startedAt"]),
        finished_at: long(&value["finishedAt"]),
        exit_code: value["exitCode"].as_i64().unwrap_or_default() as i32,
        reason: text(&value["reason"]),
        stop_signal: 0,
    }
}

fn apiserver(lines: &[Value]) -> Vec<Received> {
    let pod = |value: &Value| kube::pod(&serde_json::from_value(value.clone()).unwrap());
    let mut out = Vec::new();
    for line in lines {
        let at = at(line);
        let mut say = |event| out.push(Received { at, input: Input::Api(event) });
        if let Some(list) = line.get("list") {
            say(ApiEvent::Snapshot { pods: items(&list["items"]).filter_map(pod).collect() });
        } else if let Some(watch) = line.get("watch") {
            match watch["type"].as_str().unwrap() {
                "ADDED" | "MODIFIED" => {
                    say(ApiEvent::Applied(pod(&watch["object"]).unwrap()));
                }
                "DELETED" => say(ApiEvent::Deleted(pod(&watch["object"]).unwrap())),
                _ => {}
            }
        } else {
            say(ApiEvent::OutOfSync { error: line["error"].to_string() });
        }
    }
    out
}
