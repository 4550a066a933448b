//! What was left behind, on real nodes: the leaks of the truth come out and no others.

use super::{
    adversities::{answers, pods},
    names, recordings,
};
use coroner::outputs::report::{self, Style};
use coroner_core::{
    engine::{Engine, Settings},
    ids::PodRef,
    input::{ApiEvent, ApiNode, CriEvent, HostEvent, HostSurvey, Input, PodCheck, Received},
    leak::Leak,
    output::{Outputs, Report, Request},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// The recordings of leaks go on for 90 s and more; an innocent sandbox in one stays for 16 s.
const THRESHOLD: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_secs(1);

/// What was said of leaks: all that were found, and those that were there at the end.
struct FoundLeaks {
    ever: Vec<Arc<Leak>>,
    last: BTreeMap<String, Arc<Leak>>,
}

/// The node of a recording: its kubelet's version is in the folder's name.
fn node(name: &str) -> ApiNode {
    let kubelet = match name.split('-').next().unwrap() {
        "k1.23" => "v1.23.1",
        "k1.25" => "v1.25.10",
        "k1.33" => "v1.33.13",
        "k1.36" => "v1.36.2",
        other => panic!("{other}: which kubelet?"),
    };
    ApiNode { boot_id: "b".into(), kubelet_version: kubelet.into(), ready: Some(true) }
}

/// A recording has a runtime's answer only where it is another one: it answers each second, but in an outage. The
/// apiserver answers what the watch had told up to then.
fn run(name: &str) -> FoundLeaks {
    let recording = recordings::load(name);
    let first = recording.inputs[0].at;
    let of_node = [
        Input::Host(HostEvent::Boot { boot_id: Some("b".into()) }),
        Input::Api(ApiEvent::Node(node(name))),
        Input::Host(HostEvent::Survey(HostSurvey::default())),
    ];
    let of_node = of_node.map(|input| Received { at: first, input });
    let mut waiting = of_node.into_iter().chain(recording.inputs.clone()).peekable();
    let settings = Settings { leak_threshold: THRESHOLD, ..Settings::new(recording.anchor) };
    let mut engine = Engine::new(settings);
    let mut found = FoundLeaks { ever: Vec::new(), last: BTreeMap::new() };
    let (mut tick, mut is_away) = (first, false);
    while tick <= recording.end {
        tick = tick + TICK;
        let mut now = Vec::new();
        while let Some(input) = waiting.next_if(|input| input.at <= tick) {
            if let Input::Cri(event) = &input.input {
                is_away = matches!(event, CriEvent::Unreachable { .. });
            }
            now.push(input);
        }
        if !is_away {
            now.extend(answers(&recording.inputs, tick));
        }
        now.push(Received { at: tick, input: Input::Tick });
        for input in now {
            let at = input.at;
            let outputs = engine.step(input);
            for request in outputs.requests {
                if let Request::VerifyPods(wanted) = request {
                    let pods = pods(&recording.inputs, at);
                    let exists = |pod: &PodRef| pods.iter().any(|one| one.uid == pod.uid.as_str());
                    let check =
                        |pod: &PodRef| PodCheck { uid: pod.uid.clone(), exists: Some(exists(pod)) };
                    let pods = wanted.iter().map(check).collect();
                    let input = Input::Api(ApiEvent::Checked { asked: at, pods });
                    assert_eq!(engine.step(Received { at, input }), Outputs::default());
                }
            }
            outputs.reports.into_iter().for_each(|report| found.note(report));
        }
    }
    found
}

impl FoundLeaks {
    fn note(&mut self, report: Report) {
        match report {
            Report::LeakOpened(leak) => {
                self.last.insert(name_of(&leak), Arc::clone(&leak));
                self.ever.push(leak);
            }
            Report::LeakChanged(leak) => {
                self.last.insert(name_of(&leak), leak);
            }
            Report::LeakResolved(leak) => {
                self.last.remove(&name_of(&leak));
            }
            _ => {}
        }
    }
}

fn name_of(leak: &Leak) -> String {
    leak.pod.as_ref().map(|pod| format!("{}/{}", pod.namespace, pod.name)).unwrap_or_default()
}

#[test]
fn every_recording_has_the_leaks_of_its_truth() {
    let mut leaks = 0;
    for name in &names() {
        let truth = recordings::load(name).truth;
        let found = run(name);
        let shown = format!("{name}: {:#?}", found.ever);
        let mut expected = 0;
        for (pod, truth) in truth["pods"].as_object().unwrap() {
            for wanted in truth["leaks"].as_array().into_iter().flatten() {
                expected += 1;
                let leak = found.last.get(pod).unwrap_or_else(|| panic!("{pod} of {shown}"));
                assert_eq!(wanted["class"], leak.class.as_str(), "{shown}");
                let cause = wanted["likely_cause"].as_str().unwrap();
                let said = leak.cause.message.replace(" v1.", " 1.");
                let start = said.get(..cause.len()).unwrap_or(&said);
                assert_eq!(start, cause, "{shown}");
            }
        }
        assert_eq!(found.ever.len(), expected, "no more than the truth knows: {shown}");
        leaks += expected;
    }
    assert_eq!(leaks, 2);
}

/// What an operator needs is in the evidence: when the object went, that the runtime was away then,
/// and what to do.
#[test]
fn the_story_of_the_stuck_worker_is_told() {
    let found = run("k1.23-containerd1.7/leak-notready");
    let leak = &found.last["default/leak2"];
    let text = report::leak(leak, leak.confirmed.time, &Style::default());
    for wanted in [
        "its object was deleted",
        "its sandbox was no longer ready",
        "the runtime failed",
        "Restarting the kubelet cleans up",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let seen = leak.confirmed.since(leak.first_observed).as_secs();
    assert!((60..=66).contains(&seen), "one threshold, less the outage: {seen} s");
}
