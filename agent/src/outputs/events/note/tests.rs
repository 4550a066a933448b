use super::*;
use crate::outputs::report::samples;
use coroner_core::{ids::ContainerId, leak::LeakCause, report::Finding};
use std::{path::Path, sync::Arc};

fn died(death: ContainerDeath) -> Option<EventDraft> {
    note(&Report::CountDeath(Box::new(death)))
}

fn ignored() -> ContainerDeath {
    samples::two_containers().containers.remove(1)
}

fn field_of(note: &EventDraft) -> &str {
    match &note.about {
        Regarding::Pod { field: Some(field), .. } => field,
        _ => "",
    }
}

#[test]
fn the_workload_to_change_is_named() {
    let workload = Some(Workload { kind: "Deployment".into(), name: "web".into() });
    let note = died(ContainerDeath { workload, stop_signal: 10, ..ignored() }).unwrap();
    assert!(note.message.ends_with(" Workload: Deployment/web."), "{}", note.message);
    assert!(note.message.contains("Handle SIGUSR1 in the program"), "{}", note.message);
    assert!(!died(ignored()).unwrap().message.contains("Workload"));
}

#[test]
fn every_verdict_has_its_reason_or_none() {
    for verdict in Verdict::ALL {
        let wanted = match verdict {
            Verdict::StopSignalIgnored => Some(Reason::StopSignalIgnored),
            Verdict::StopSignalBlocked => Some(Reason::StopSignalBlocked),
            Verdict::GraceExceeded => Some(Reason::GraceExceeded),
            Verdict::PrestopExhaustedGrace => Some(Reason::PreStopExhaustedGrace),
            Verdict::OomKilled => Some(Reason::OomKilled),
            _ => None,
        };
        let draft_of = died(ContainerDeath { verdict: *verdict, ..ignored() });
        assert_eq!(draft_of.as_ref().map(|note| note.reason), wanted, "{verdict}");
        // The proof with its figures comes first, then what to do.
        if let Some(note) = draft_of {
            let rest = note.message.strip_prefix(&ignored().proof.message).unwrap();
            assert!(rest.len() > 20 && rest.ends_with('.'), "{verdict}: {}", note.message);
        }
    }
}

#[test]
fn an_observation_has_one_event() {
    assert_eq!(note(&Report::ContainerDied(Box::new(ignored()))), None);
    let leak = Arc::new(samples::leaked());
    assert_eq!(note(&Report::LeakChanged(Arc::clone(&leak))), None);
    assert_eq!(note(&Report::LeakResolved(leak)), None);
}

#[test]
fn it_names_pod_and_container_as_the_kubelet_does() {
    let note = died(ignored()).unwrap();
    let Regarding::Pod { pod, field } = note.about else { panic!("{note:?}") };
    assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("shop", "web-0"));
    assert_eq!(field.as_deref(), Some("spec.containers{proxy}"));
    let list = |kind| died(ContainerDeath { kind, ..ignored() }).unwrap();
    assert_eq!(field_of(&list(ContainerKind::Init)), "spec.initContainers{proxy}");
    assert_eq!(field_of(&list(ContainerKind::Sidecar)), "spec.initContainers{proxy}");
    assert_eq!(field_of(&list(ContainerKind::Ephemeral)), "spec.ephemeralContainers{proxy}");
    let unnamed = died(ContainerDeath { name: String::new(), ..ignored() }).unwrap();
    assert_eq!(field_of(&unnamed), "");
    assert_eq!(died(ContainerDeath { pod: None, ..ignored() }), None, "nothing to put it on");
}

#[test]
fn a_missed_deadline_is_told_where_the_verdict_is_harmless() {
    let missed = Finding::new(FindingKind::DeadlineMissed, "It ended 9 s after its deadline.");
    let late = |verdict| ContainerDeath { verdict, findings: vec![missed.clone()], ..ignored() };
    let note = died(late(Verdict::Graceful)).unwrap();
    assert_eq!(note.reason, Reason::GraceExceeded);
    assert!(note.message.contains("It ended 9 s after its deadline."), "{}", note.message);
    assert_eq!(died(late(Verdict::StopSignalIgnored)).unwrap().reason, Reason::StopSignalIgnored);
    for verdict in [Verdict::ForceKilled, Verdict::Unknown, Verdict::Crashed] {
        assert_eq!(died(late(verdict)), None, "{verdict}: not known, or not true");
    }
}

#[test]
fn what_sigkill_does_not_end_is_told_while_it_lasts() {
    let holdout = UnkillableContainer {
        container: Some(ContainerId::new("c1")),
        name: "app".into(),
        kind: ContainerKind::Main,
        pod: ignored().pod,
        detail: "Still alive 2.1 s after SIGKILL: dd (pid 7) in state D (uninterruptible) in nfs."
            .into(),
        over: false,
    };
    let draft_of =
        |holdout: &UnkillableContainer| note(&Report::Unkillable(Box::new(holdout.clone())));
    let note = draft_of(&holdout).unwrap();
    assert_eq!((note.reason, field_of(&note)), (Reason::Unkillable, "spec.containers{app}"));
    assert!(note.message.starts_with(&holdout.detail), "{}", note.message);
    assert_eq!(draft_of(&UnkillableContainer { over: true, ..holdout.clone() }), None);
    assert_eq!(draft_of(&UnkillableContainer { pod: None, ..holdout }), None);
}

#[test]
fn every_class_of_leak_has_its_reason_and_object() {
    for class in LeakClass::ALL {
        let leak = Leak { class: *class, ..samples::leaked() };
        let note = note(&Report::LeakOpened(Arc::new(leak.clone()))).unwrap();
        let reason = match class.orphan() {
            Some("shim") => Reason::ShimOrphaned,
            Some("netns") => Reason::NetnsOrphaned,
            Some(_) => Reason::PodCgroupOrphaned,
            None if class.is_sandbox() => Reason::SandboxLeaked,
            None => Reason::StuckTerminating,
        };
        assert_eq!(note.reason, reason, "{class}");
        let pod = leak.pod.clone().unwrap();
        let about = match reason {
            Reason::StuckTerminating => Regarding::Pod { pod, field: None },
            _ => {
                let field = Some(format!("{class}{{398445f28f116}}"));
                Regarding::Node { related: Some(pod), field }
            }
        };
        assert_eq!(note.about, about, "{class}");
        assert!(note.message.contains(&leak.cause.message), "{class}: {}", note.message);
    }
}

#[test]
fn a_leak_says_what_it_holds_and_what_to_do() {
    let note = note(&Report::LeakOpened(Arc::new(samples::leaked()))).unwrap();
    for wanted in [
        "Sandbox 398445f28f116 of shop/web-0 leaked (notready_no_pod), 92d old: kubelet pod worker",
        " Holds network namespace /run/netns/cni-7a3f; addresses 10.244.1.17. To do: Restarting",
        " at once: `systemctl restart kubelet`. To fix the bug, ",
    ] {
        assert!(note.message.contains(wanted), "{wanted}: {}", note.message);
    }
}

#[test]
fn of_a_cgroup_only_the_uid_is_known() {
    let mut leak = Leak { class: LeakClass::OrphanPodCgroup, ..samples::leaked() };
    let pod = leak.pod.as_mut().unwrap();
    (pod.name, pod.namespace) = (String::new(), String::new());
    let draft_of = |leak: &Leak| note(&Report::LeakOpened(Arc::new(leak.clone())));
    let about = |leak| draft_of(leak).unwrap().about;
    assert!(matches!(about(&leak), Regarding::Node { related: None, .. }));
    let mut other = leak.clone();
    other.key = LeakKey::Sandbox { id: "another".into() };
    assert_ne!(about(&leak), about(&other), "two of them are two Events");
    leak.class = LeakClass::StuckTerminating;
    assert_eq!(draft_of(&leak), None);
}

#[test]
fn no_message_is_longer_than_the_apiserver_takes_or_harms_a_terminal() {
    let mut leak = samples::leaked();
    leak.cause.kind = LeakCause::RuntimeFailing;
    leak.cause.message = format!("\x1b[2J{}", "ü".repeat(2000));
    let note = note(&Report::LeakOpened(Arc::new(leak))).unwrap();
    assert!((1020..=1024).contains(&note.message.len()), "{}", note.message.len());
    assert!(note.message.ends_with("ü…") && !note.message.contains('\x1b'), "{}", note.message);
}

#[test]
fn what_the_end_cost_its_clients_is_an_event_of_the_pod() {
    let end = samples::with_traffic(samples::graceful());
    let note = super::note(&Report::CountTermination(Box::new(end))).unwrap();
    assert_eq!(note.reason, Reason::ConnectionsCut);
    assert!(note.message.contains("cut 4 connection(s)"), "{}", note.message);
    let quiet = Report::CountTermination(Box::new(samples::graceful()));
    assert_eq!(super::note(&quiet), None);
}

/// As the apiserver wants them, and as the documentation lists them.
#[test]
fn reasons_and_actions_are_camel_case_and_documented() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/events.md");
    let page = std::fs::read_to_string(&page).unwrap();
    for reason in Reason::ALL {
        for word in [reason.as_str(), reason.action()] {
            assert!(word.starts_with(|c: char| c.is_ascii_uppercase()), "{word}");
            assert!(word.chars().all(|c| c.is_ascii_alphanumeric()), "{word}");
        }
        assert!(page.contains(&format!("| `{reason}` |")), "docs/events.md lacks {reason}");
    }
    let listed = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(listed, Reason::ALL.len(), "docs/events.md lists others");
}
