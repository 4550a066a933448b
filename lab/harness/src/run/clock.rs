//! The agent's times against the workload's own record of the same moments. Pure.

use coroner_core::{input::ExitStatus, report::ContainerDeath, types::MilestoneKind};
use serde::Deserialize;

/// One line of the workload's log.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(super) struct WorkloadLine {
    /// `start`, `term` (the stop signal was taken), `called` (the apiserver has answered), `exit`
    /// (about to leave).
    pub event: String,
    /// CLOCK_BOOTTIME, ns.
    pub boot_ns: u64,
    /// Its pid in its own namespace: 1 is the container's init.
    pub pid: u32,
}

/// The workload's lines of a log in the CRI's format: `<time> stdout F <text>`. Anything else is
/// skipped.
pub(super) fn lines(log: &str) -> Vec<WorkloadLine> {
    log.lines()
        .filter_map(|line| line.splitn(4, ' ').nth(3))
        .filter_map(|text| serde_json::from_str(text).ok())
        .collect()
}

/// The same, of what a process wrote itself.
pub(super) fn own_lines(written: &str) -> Vec<WorkloadLine> {
    written.lines().filter_map(|text| serde_json::from_str(text).ok()).collect()
}

/// How much later than the workload's own record the agent's times are, ns: of the handler's run
/// and of the exit, for those that both know.
pub(super) fn differences(
    death: &ContainerDeath,
    lines: &[WorkloadLine],
) -> Vec<(MilestoneKind, i64)> {
    let left_by_itself = matches!(death.exit, Some(ExitStatus::Code(_)));
    [("term", MilestoneKind::TermHandled, true), ("exit", MilestoneKind::Exited, left_by_itself)]
        .into_iter()
        .filter(|(_, _, comparable)| *comparable)
        .filter_map(|(event, kind, _)| {
            let own = lines.iter().find(|line| line.event == event && line.pid == 1)?;
            let measured = death.milestone(kind)?;
            Some((kind, measured.at.0.wrapping_sub(own.boot_ns) as i64))
        })
        .collect()
}

/// How many calls to the apiserver were answered after the stop signal was handled, as the agent
/// has it, and before the end.
pub(super) fn calls(death: &ContainerDeath, lines: &[WorkloadLine]) -> usize {
    let at = |kind| death.milestone(kind).map(|milestone| milestone.at.0);
    let (Some(from), Some(to)) = (at(MilestoneKind::TermHandled), at(MilestoneKind::Exited)) else {
        return 0;
    };
    let in_time =
        |line: &&WorkloadLine| line.event == "called" && (from..=to).contains(&line.boot_ns);
    lines.iter().filter(in_time).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_api::terminations::Death;

    const LOG: &str = "\
2026-11-21T04:00:00.000000001Z stdout F {\"event\":\"start\",\"boot_ns\":1000,\"pid\":1}
2026-11-21T04:00:00.000000001Z stdout F {\"event\":\"term\",\"boot_ns\":1500,\"pid\":7}
2026-11-21T04:00:01.000000001Z stdout F {\"event\":\"term\",\"boot_ns\":2000,\"pid\":1}
2026-11-21T04:00:01.000000001Z stderr F workload: something else
broken
2026-11-21T04:00:02.000000001Z stdout F {\"event\":\"exit\",\"boot_ns\":3000,\"pid\":1}
";

    fn death(exit: &str) -> ContainerDeath {
        let at = |ns| serde_json::json!({"time": "2026-11-21T04:00:00Z", "bootNs": ns});
        let death: Death = serde_json::from_value(serde_json::json!({
            "id": "c", "name": "app", "pod": null, "kind": "main", "verdict": "graceful",
            "proof": {"message": "", "evidence": []}, "cause": "api_delete",
            "causeCertainty": "proven", "causeSource": "api", "causeMessage": "",
            "exit": serde_json::from_str::<serde_json::Value>(exit).unwrap(),
            "stopSignal": 15, "graceSeconds": 10, "graceRatio": null, "childrenKilled": 0,
            "milestones": [
                {"kind": "term_handled", "at": at(1990), "source": "kernel"},
                {"kind": "exited", "at": at(3010), "source": "kernel"},
            ],
        }))
        .unwrap();
        death.into()
    }

    #[test]
    fn reads_the_workloads_lines_and_nothing_else() {
        let events: Vec<_> = lines(LOG).into_iter().map(|line| (line.event, line.pid)).collect();
        let expected = [("start", 1), ("term", 7), ("term", 1), ("exit", 1)];
        assert_eq!(events, expected.map(|(event, pid)| (event.to_owned(), pid)));
    }

    #[test]
    fn compares_what_the_init_says_of_itself() {
        let found = differences(&death(r#"{"code":0}"#), &lines(LOG));
        assert_eq!(found, [(MilestoneKind::TermHandled, -10), (MilestoneKind::Exited, 10)]);
    }

    #[test]
    fn a_killed_init_did_not_tell_its_exit() {
        let found = differences(&death(r#"{"signal":{"signal":9,"core":false}}"#), &lines(LOG));
        assert_eq!(found, [(MilestoneKind::TermHandled, -10)]);
    }

    #[test]
    fn counts_the_calls_between_handler_and_end() {
        let line = |event: &str, boot_ns| WorkloadLine { event: event.into(), boot_ns, pid: 1 };
        let log = [
            line("called", 1989),
            line("called", 1990),
            line("term", 2000),
            line("called", 3010),
            line("called", 3011),
        ];
        assert_eq!(calls(&death(r#"{"code":0}"#), &log), 2);
    }
}
