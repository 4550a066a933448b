use super::{samples::*, *};
use crate::store::leaks::DetectionProgress;
use coroner_api::{
    List, Moment,
    terminations::{Death, Termination},
};
use coroner_core::time::{Anchor, BootTime};
use serde_json::json;

const PLAIN: Style = Style { width: 100, color: false };

#[test]
fn a_graceful_end() {
    golden("graceful.txt", &termination(&graceful(), &PLAIN));
}

#[test]
fn two_containers_and_the_second_tail() {
    let account = with_sandbox_removed(two_containers());
    golden("two_containers.txt", &termination(&account, &PLAIN));
    golden("two_containers_narrow.txt", &termination(&account, &Style { width: 70, ..PLAIN }));
    golden("two_containers_color.txt", &termination(&account, &Style { color: true, ..PLAIN }));
}

#[test]
fn a_second_life_of_which_little_is_known() {
    golden("second_life.txt", &termination(&second_life(), &PLAIN));
}

#[test]
fn an_end_explained() {
    golden("explain_graceful.txt", &explain(&graceful(), &[], &PLAIN));
    let (first, second) = (with_traffic(graceful()), with_traffic(second_life()));
    golden("explain_connections.txt", &explain(&first, &[&second], &PLAIN));
    golden("connections.txt", &termination(&first, &PLAIN));
    let account = with_sandbox_removed(two_containers());
    golden("explain_two_containers.txt", &explain(&account, &[], &PLAIN));
    golden("explain_gone_in_an_outage.txt", &explain(&gone_in_an_outage(), &[], &PLAIN));
    golden("explain_second_life.txt", &explain(&second_life(), &[], &PLAIN));
}

#[test]
fn what_was_inferred_or_shortened_is_said() {
    let mut account = graceful();
    for milestone in account.milestones.iter_mut().chain(&mut account.containers[0].milestones) {
        if milestone.kind == MilestoneKind::PreStopEnded {
            milestone.source = coroner_core::types::Source::Inferred;
        }
    }
    account.shortened_to_seconds = Some(3);
    account.containers[0].verdict = Verdict::Unknown;
    let text = explain(&account, &[], &Style { width: 1000, color: false });
    for wanted in [
        "the preStop hook ended (inferred)",
        "inferred from other evidence, not observed: preStop ended",
        "a later request shortened it to 3 s",
        "no verdict on web",
        "grace 30 s, shortened by a request of 3 s",
    ] {
        assert!(text.contains(wanted), "{wanted}:\n{text}");
    }
}

#[test]
fn a_victim_of_the_oom_killer_is_not_its_killer() {
    let mut account = two_containers();
    account.containers[1].verdict = Verdict::OomKilled;
    let text = termination(&account, &Style { width: 1000, color: false });
    assert!(
        text.contains("SIGKILL by the kernel's OOM killer\n") && !text.contains("4711"),
        "{text}"
    );
}

#[test]
fn no_line_is_wider_than_asked() {
    for width in [70, 80, 100, 140] {
        let text = termination(&two_containers(), &Style { width, color: false });
        let told = explain(&two_containers(), &[], &Style { width, color: false });
        for line in text.lines().chain(told.lines()) {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
    }
}

#[test]
fn a_terminal_is_not_told_what_to_do_by_a_container() {
    let text = termination(&second_life(), &PLAIN);
    assert!(!text.contains('\x1b'), "{text:?}");
    let mut account = two_containers();
    account.containers[1].killer.as_mut().unwrap().comm = "\x1b[2J".into();
    account.containers[1].name = "\x1b]0;".into();
    account.pod.name = "\x07".into();
    let text = explain(&account, &[], &PLAIN);
    assert!(!text.contains(['\x1b', '\x07']), "{text:?}");
}

#[test]
fn an_account_of_nothing_is_still_text() {
    let mut account = graceful();
    account.ended = account.began;
    account.phases.clear();
    account.containers.clear();
    account.milestones.clear();
    assert_eq!(termination(&account, &PLAIN), "shop/web-0  deleted  grace 30 s  took 0.000 s\n");
    assert!(explain(&account, &[], &PLAIN).contains("No container of this pod was observed."));
}

#[test]
fn the_log_line() {
    let line = log_line(&two_containers());
    assert_eq!((&*line.namespace, &*line.pod, line.cause), ("shop", "web-0", "api_delete"));
    assert_eq!(line.seconds, 11.312);
    assert_eq!((line.phases.len(), line.phases[&PhaseKind::Shutdown]), (6, 10.006));
    assert_eq!(line.verdicts, "web=graceful proxy=stop_signal_ignored");
    assert_eq!(line.findings, "runtime_restarted proxy:children_not_signalled");
    assert_eq!((line.truncated, &*line.incomplete), (false, "detail_ring_full"));
}

/// agent/api's tests compare these with what was released.
#[test]
fn the_api_keeps_its_form() {
    let clock = Anchor { boot_ns: 1_000_000_000_000, wall_ns: 1_790_000_000_000_000_000 };
    let write = |name: &str, value: serde_json::Value| {
        let text = serde_json::to_string_pretty(&value).unwrap() + "\n";
        golden(&format!("../../api/tests/golden/{name}.json"), &text);
    };
    let report = with_sandbox_removed(two_containers());
    let node = "n1".to_owned();
    write("termination", json!(Termination { node, ..Termination::from(&report) }));
    write("unfinished", json!(Termination::from(&second_life())));
    let death = Death { node: "n1".into(), ..Death::of(&report.containers[1], &clock) };
    write("death", json!(death));
    let mut leak = leak_json(&leaked(), &clock);
    leak.node = "n1".into();
    write("leak", json!(leak));
    write("stuck", json!(leak_json(&stuck(), &clock)));
    let progress = DetectionProgress { watched_seconds: 4, ..DetectionProgress::default() };
    let list = List {
        node: "n1".to_owned(),
        boot_id: "8c1b2f9e-0000-4000-8000-000000000001".to_owned(),
        observed_since: Some(Moment::of_boot(BootTime(clock.boot_ns), &clock)),
        detection: Some(detection_json(&progress, "waiting".into())),
        cursor: "5-7".to_owned(),
        complete: true,
        items: vec![leak],
    };
    write("list", json!(list));
    golden("../../api/tests/golden/openapi.json", &(coroner_api::openapi::document() + "\n"));
}

#[test]
fn a_client_has_the_report_that_the_agent_has() {
    for report in [graceful(), two_containers(), second_life(), gone_in_an_outage()] {
        let json = serde_json::to_string(&Termination::from(&report)).unwrap();
        let read: Termination = serde_json::from_str(&json).unwrap();
        assert_eq!(PodTermination::from(read), report);
    }
}

#[test]
fn a_leak_in_full() {
    let now = coroner_core::time::WallTime::from_secs(1_700_000_400);
    golden("leak.txt", &leak(&leaked(), now, &PLAIN));
    golden("leak_narrow.txt", &leak(&leaked(), now, &Style { width: 60, ..PLAIN }));
    golden("leak_stuck.txt", &leak(&stuck(), now, &PLAIN));
}

#[test]
fn ages() {
    let aged = |seconds: i64| {
        let made = leaked().created.unwrap_or_default();
        let now = coroner_core::time::WallTime(made.0 + seconds * 1_000_000_000);
        age(&leaked(), now)
    };
    for (seconds, wanted) in [
        (0, "0s"),
        (59, "59s"),
        (60, "1m"),
        (3_700, "1h 1m"),
        (90_000, "1d 1h"),
        (8_000_000, "92d"),
    ] {
        assert_eq!(aged(seconds), wanted, "{seconds}");
    }
}
