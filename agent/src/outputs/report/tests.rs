use super::{samples::*, *};
use coroner_report::{
    Cause, ContainerDeath, Finding, Leak, List, PhaseKind, PodTermination, Verdict, WallTime,
    openapi,
};
use serde::{Serialize, de::DeserializeOwned};

const PLAIN: Style = Style { width: 100, color: false };

#[test]
fn two_containers_and_the_second_tail() {
    let report = sandbox_removed();
    golden("two_containers.txt", &explain(&report, &[], true, &PLAIN));
    let color = Style { color: true, ..PLAIN };
    golden("two_containers_color.txt", &explain(&report, &[], false, &color));
}

/// What no recording shows: connections with those of another termination, and evidence that is missing.
#[test]
fn an_end_explained() {
    let (first, second) = (with_traffic(graceful()), with_traffic(second_life()));
    golden("connections.txt", &explain(&first, &[&second], true, &PLAIN));
    golden("second_life.txt", &explain(&second_life(), &[], true, &PLAIN));
}

/// What no recording in `tests/replay/explained.txt` shows.
#[test]
fn the_advice_looks_at_cause_and_evidence() {
    let ignored = two_containers().containers.remove(1);
    let advice = |change: &dyn Fn(&mut ContainerDeath)| {
        let mut death = ignored.clone();
        death.verdict = Verdict::GraceExceeded;
        change(&mut death);
        advice::of_death(&death, None).unwrap()
    };
    let late = |death: &mut ContainerDeath, ratio| {
        let missed = coroner_core::types::FindingKind::DeadlineMissed;
        death.verdict = Verdict::Graceful;
        death.findings = vec![Finding::new(missed, "It ended 9 s after its deadline.")];
        death.grace_ratio = Some(ratio);
    };
    for (text, wanted) in [
        (advice(&|_| {}), "raise terminationGracePeriodSeconds"),
        (advice(&|death| death.cause = Cause::NodeShutdown), "overridden (node_shutdown)"),
        (advice(&|death| death.cause = Cause::ForceDelete), "--force"),
        (advice(&|death| death.grace_seconds = Some(0)), "minimum of 2 s"),
        (
            advice(&|death| (death.grace_seconds, death.grace_ratio) = (Some(60), Some(1.0))),
            "without a shorter",
        ),
        (
            advice(&|death| (death.grace_seconds, death.grace_ratio) = (Some(10), Some(5.0))),
            "raise termination",
        ),
        (
            advice(&|death| (death.verdict, death.stop_signal) = (Verdict::ForceKilled, 9)),
            "STOPSIGNAL",
        ),
        (advice(&|death| late(death, 0.2)), "began late: a postStart hook"),
        (advice(&|death| late(death, 2.0)), "No SIGKILL came in time"),
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

#[test]
fn no_line_is_wider_than_asked() {
    for width in [70, 80, 100, 140] {
        let text = explain(&two_containers(), &[], true, &Style { width, color: false });
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
    }
}

#[test]
fn a_terminal_is_not_told_what_to_do_by_a_container() {
    let text = explain(&second_life(), &[], true, &PLAIN);
    assert!(!text.contains('\x1b'), "{text:?}");
    let mut account = two_containers();
    account.containers[1].killer.as_mut().unwrap().comm = "\x1b[2J".into();
    account.containers[1].name = "\x1b]0;".into();
    account.pod.name = "\x07".into();
    let text = explain(&account, &[], true, &PLAIN);
    assert!(!text.contains(['\x1b', '\x07']), "{text:?}");
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

/// What the agent sends, and a client reads.
#[test]
fn the_api_keeps_its_form() {
    fn keeps<T: Serialize + DeserializeOwned>(name: &str) {
        let text = serde_json::to_string_pretty(&example::<T>(name)).unwrap() + "\n";
        golden(&format!("../../report/tests/golden/{name}"), &text);
    }
    keeps::<PodTermination>("termination.json");
    keeps::<PodTermination>("unfinished.json");
    keeps::<ContainerDeath>("death.json");
    keeps::<Leak>("leak.json");
    keeps::<Leak>("stuck.json");
    keeps::<List<Leak>>("list.json");
    golden("../../report/tests/golden/openapi.json", &(openapi::document() + "\n"));
}

#[test]
fn a_leak_in_full() {
    let now = WallTime::from_secs(1_700_000_400);
    golden("leak.txt", &leak(&leaked(), now, &PLAIN));
    golden("leak_stuck.txt", &leak(&stuck(), now, &PLAIN));
}

#[test]
fn ages() {
    let made = leaked().created.unwrap_or_default().time;
    for (seconds, wanted) in
        [(59, "59s"), (60, "1m"), (3_700, "1h 1m"), (90_000, "1d 1h"), (8_000_000, "92d")]
    {
        assert_eq!(age(&leaked(), WallTime(made.0 + seconds * 1_000_000_000)), wanted);
    }
}

#[test]
fn without_an_advice_the_reason_is_the_right_one() {
    let mut report = with_traffic(graceful());
    report.traffic.as_mut().unwrap().stopped = None;
    let text = explain(&report, &[], true, &PLAIN);
    assert!(text.contains("Advice: none; the pod was sent no stop signal."), "{text}");
}
