//! The real agent records.

use crate::{agent::agent, stage};
use coroner::outputs::recording::Reader;
use coroner_core::input::{CriEvent, Input, Received};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

/// An agent that records.
fn recording_agent(file: &Path) -> Child {
    let mut command = agent("run");
    command.args("--listen 127.0.0.1:0 --api-listen off --socket off --record".split(' '));
    command.arg(file).stderr(Stdio::piped()).spawn().unwrap()
}

/// What the recording says of the runtime that is not there.
fn silence(received: &Received) -> Option<&str> {
    match &received.input {
        Input::Cri(CriEvent::Unreachable { error, .. }) => Some(error),
        _ => None,
    }
}

/// Waits until the runtime's silence can be read, or the agent's log ends.
fn wait_for_inputs(agent: &mut Child, file: &Path) {
    let log = BufReader::new(agent.stderr.take().unwrap()).lines();
    let said: Vec<String> = log
        .map_while(Result::ok)
        .take_while(|line| !line.contains("kernel programs attached"))
        .collect();
    let has_silence = |reader: Reader| reader.into_iter().any(|one| silence(&one).is_some());
    stage::wait_for(Duration::from_millis(20), || {
        if Reader::open(file).is_ok_and(has_silence) {
            return Ok(());
        }
        assert!(agent.try_wait().unwrap().is_none(), "it ended: {said:#?}");
        Err(format!("it records nothing of the runtime: {said:#?}"))
    });
}

fn signal(agent: &mut Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(agent), signal).unwrap();
    agent.wait().unwrap();
}

#[test]
fn an_agent_that_is_stopped_leaves_a_whole_recording() {
    let _machine = stage::machine();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rec");
    let mut agent = recording_agent(&file);
    wait_for_inputs(&mut agent, &file);
    signal(&mut agent, rustix::process::Signal::TERM);
    let mut reader = Reader::open(&file).unwrap();
    assert!(!reader.header().node.hooks.is_empty());
    let read: Vec<Received> = reader.by_ref().collect();
    assert!(reader.status().is_whole(), "{:?}", reader.status());
    assert!(read.iter().any(|one| one.input == Input::Tick));
    let errors: Vec<&str> = read.iter().filter_map(silence).collect();
    assert_eq!(errors, ["no such file"], "the error's kind, not the socket's path");
}

#[test]
fn an_agent_that_is_killed_leaves_what_it_had_flushed() {
    let _machine = stage::machine();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rec");
    let mut agent = recording_agent(&file);
    wait_for_inputs(&mut agent, &file);
    signal(&mut agent, rustix::process::Signal::KILL);
    let mut reader = Reader::open(&file).unwrap();
    assert!(reader.by_ref().count() > 0);
    assert!(reader.status().to_string().contains("is truncated"), "{:?}", reader.status());
}
