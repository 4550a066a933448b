//! A recording replays to what was said live, is never silently wrong, and holds no secrets.

mod format;
mod privacy;
mod reading;
mod writing;

use crate::{
    binary::{coroner, run},
    replay::recordings,
};
use coroner_core::{
    engine::{Engine, Settings},
    input::{ApiEvent, Input, Received},
    report::PodTermination,
    time::{Anchor, BootTime},
};

use coroner::outputs::recording::{
    Header, NodeFacts, Reader, Stopped, Writer,
    replay::{Replay, Timelines},
};
use std::{io::Cursor, time::Duration};

const SETTLE: Duration = Duration::from_millis(3500);

/// Recordings of real nodes.
const NODES: [&str; 4] = [
    "k1.33-containerd1.7/two-deaths",
    "k1.33-containerd1.7/prestop-then-handled",
    "k1.33-containerd1.7/containerd-killed",
    "k1.33-containerd1.7/force-delete",
];

/// What an agent on that node would have been given, ticks and all.
fn live(name: &str) -> (Anchor, Vec<Received>) {
    let recordings::Recording { anchor, inputs, .. } = recordings::load(name);
    let mut ticking = Vec::new();
    let mut next = inputs[0].at;
    let end = inputs.last().unwrap().at + Duration::from_secs(45);
    let mut inputs = inputs.into_iter().peekable();
    while next <= end {
        while let Some(input) = inputs.next_if(|input| input.at <= next) {
            ticking.push(input);
        }
        ticking.push(Received { at: next, input: Input::Tick });
        // A busy loop ticks late, and never twice at the same distance.
        next = next + Duration::from_nanos(1_000_000_000 + next.0 % 77_777);
    }
    (anchor, ticking)
}

fn header(anchor: Anchor) -> Header {
    Header::new(&Settings { settle: SETTLE, ..Settings::new(anchor) }, NodeFacts::default())
}

fn record(anchor: Anchor, inputs: &[Received]) -> Vec<u8> {
    let mut writer = Writer::begin(Vec::new(), &header(anchor)).unwrap();
    for input in inputs {
        writer.input(input).unwrap();
    }
    writer.end(Stopped::Agent).unwrap()
}

fn reader(file: &[u8]) -> Reader {
    Reader::new(Cursor::new(file.to_vec())).unwrap()
}

/// What the agent says of each life in the end, a line of JSON each, oldest first.
fn said_live(anchor: Anchor, inputs: &[Received]) -> Vec<String> {
    let mut engine = Engine::new(Settings { settle: SETTLE, ..Settings::new(anchor) });
    let mut timelines = Timelines::default();
    for input in inputs {
        timelines.note(engine.step(input.clone()).reports);
    }
    timelines.0.iter().map(|account| json(account)).collect()
}

fn json(account: &PodTermination) -> String {
    serde_json::to_string(account).unwrap()
}

fn replayed(file: &[u8]) -> Vec<String> {
    let mut reader = reader(file);
    let mut replay = Replay::new(reader.header());
    replay.run(&mut reader);
    replay.timelines().map(|account| json(account)).collect()
}

#[test]
fn a_replay_is_what_was_said_live_byte_for_byte() {
    for node in NODES {
        let (anchor, inputs) = live(node);
        let said = said_live(anchor, &inputs);
        assert!(!said.is_empty(), "{node} says nothing");
        let file = record(anchor, &inputs);
        assert_eq!(replayed(&file), said, "{node}");
        assert_eq!(replayed(&file), said, "{node}, again");
        let mut reader = reader(&file);
        let read: Vec<Received> = reader.by_ref().collect();
        assert_eq!(read, inputs, "{node}: every input survives the file");
        assert!(reader.status().is_whole(), "{:?}", reader.status());
        assert_eq!(reader.status().to_string(), "");
    }
}

#[test]
fn the_binary_replays_to_the_same_bytes() {
    let (anchor, inputs) = live(NODES[0]);
    let said: String = said_live(anchor, &inputs).iter().map(|line| line.clone() + "\n").collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.coroner");
    std::fs::write(&file, record(anchor, &inputs)).unwrap();
    let args = format!("replay -o json {}", file.display());
    assert_eq!(run(&mut coroner(&args)), (0, said, String::new()));
}

#[test]
fn what_was_open_at_the_end_is_closed_only_by_going_on() {
    let (anchor, mut inputs) = live(NODES[1]);
    let gone = |one: &Received| matches!(one.input, Input::Api(ApiEvent::Deleted(_)));
    let last = inputs.iter().rposition(gone).unwrap();
    inputs.truncate(last + 1);
    let mut reader = reader(&record(anchor, &inputs));
    let mut replay = Replay::new(reader.header());
    replay.run(&mut reader);
    assert_eq!((replay.timelines().count(), replay.open()), (0, 1));
    replay.go_on(Duration::from_secs(60));
    assert_eq!((replay.timelines().count(), replay.open()), (1, 0));
}

/// A corrupt time: there are no moments left to go on to.
#[test]
fn a_replay_goes_on_for_a_bounded_time() {
    let (anchor, inputs) = live(NODES[1]);
    for at in [u64::MAX / 2, u64::MAX - 1_500_000_000, u64::MAX] {
        let last = Received { at: BootTime(at), input: Input::Tick };
        let mut reader = reader(&record(anchor, &[inputs.clone(), vec![last.clone()]].concat()));
        let mut replay = Replay::new(reader.header());
        replay.run(&mut reader);
        replay.go_on(Duration::MAX);
    }
}
