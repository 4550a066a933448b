//! How a process will respond, by what /proc shows of it.

use coroner_core::{
    audit::{PastStops, Spec, advise, read},
    input::{Hook, OtherThreads, StopState, Workload},
    report::{ContainerDeath, Milestone, MilestoneKind, Source, Verdict},
    testkit::ms,
};
use std::time::Duration;

/// A process by letters: `c`aught, `i`gnored, `b`locked, `w`aits, `1` PID 1, `f` signalfd; other threads: `o` one does not
/// block, `O` one waits; `r` ran while it was read, `?` its wait could not be read, `!` nor its threads, `R` a thread ran.
fn process(letters: &str) -> StopState {
    let has = |letter| letters.contains(letter);
    let others = OtherThreads { all_block: !has('o'), waits: has('O'), settled: !has('R') };
    StopState {
        comm: "app".into(),
        exe: "app".into(),
        ns_pid: Some(if has('1') { 1 } else { 7 }),
        caught: has('c'),
        ignored: has('i'),
        blocked: has('b'),
        waits: (!has('?')).then(|| has('w')),
        settled: !has('r'),
        others: (has('b') && !has('!')).then_some(others),
        signalfd: (has('b') && !has('!')).then(|| has('f')),
        ..StopState::default()
    }
}

#[test]
fn each_row_and_what_makes_it_uncertain() {
    let table = [
        // PID 1 or not, default action.
        ("1", 15, "ignores certain"),
        ("1r", 15, "ignores"),
        ("1?", 15, "ignores"),
        ("", 15, "ends_by_default certain"),
        ("r", 15, "ends_by_default"),
        ("?", 15, "ends_by_default"),
        // Signals whose default action ends nothing, and SIGKILL.
        ("", 28, "ignores certain"),
        ("", 20, "ignores certain"),
        ("1", 9, "ends_by_default certain"),
        ("1cibr?!", 9, "ends_by_default certain"),
        // A handler comes first, SIG_IGN only where the leading thread does not block the signal.
        ("1c", 15, "has_handler"),
        ("cbO", 15, "has_handler"),
        ("i", 15, "ignores certain"),
        ("1i?", 15, "ignores"),
        ("ibf", 15, "waits"),
        ("ib", 15, "blocked certain"),
        ("ibo", 15, "ignores certain"),
        ("iw", 15, "waits"),
        // While a thread waits, its mask does not show the signal.
        ("1w", 15, "waits"),
        ("1bw", 15, "waits"),
        ("1bf", 15, "waits"),
        ("1bfr", 15, "waits"),
        ("1bO", 15, "waits"),
        ("1bOo", 15, "waits"),
        // Blocked in all threads, or in the leading one only.
        ("1b", 15, "blocked certain"),
        ("b", 15, "blocked certain"),
        ("br", 15, "blocked"),
        ("bR", 15, "blocked"),
        ("b!", 15, "blocked"),
        ("1bo", 15, "ignores certain"),
        ("1boR", 15, "ignores"),
        ("bo", 15, "ends_by_default certain"),
    ];
    for (letters, signal, expected) in table {
        let reading = read(&process(letters), signal, &[]);
        let certain = if reading.certain { " certain" } else { "" };
        assert_eq!(format!("{}{certain}", reading.response), expected, "{letters}: {reading:?}");
        assert!(!reading.why.contains('{'), "{}", reading.why);
    }
    let no_number = StopState { ns_pid: None, ..process("") };
    assert!(!read(&no_number, 15, &[]).certain);
}

#[test]
fn programs_with_a_name_and_their_children() {
    let says = |letters, exe: &str, comm: &str, children| {
        let (exe, comm, child) = (exe.into(), comm.into(), "java".into());
        let state = StopState { exe, comm, children, child, ..process(letters) };
        let spec = Spec { is_only: true, ..Spec::default() };
        let reading = read(&state, 15, &["/proc/7/fd: no".into()]);
        let advice = advise(&reading, Some(&state), 15, &spec, None, Duration::ZERO);
        (reading.why, advice.fix.unwrap_or_default(), advice.patch.is_some())
    };
    let table = [
        (
            "1",
            "dash",
            "sh",
            1,
            "PID 1 (sh) has no handler for SIGTERM: the kernel discards it. Its child (java) will",
            "`exec`",
            false,
        ),
        ("1", "busybox", "run.sh", 2, "Its 2 children (java, …) will not", "`exec`", false),
        ("1", "busybox", "sleep", 0, "PID 1 (sleep)", "Handle SIGTERM in the program, or", true),
        (
            "1",
            "app",
            "app",
            1,
            "Its child (java) will not be sent SIGTERM",
            "Handle SIGTERM",
            false,
        ),
        ("1i", "app", "app", 0, "SIG_IGN", "Do not set SIGTERM to SIG_IGN", false),
        ("1c", "bash", "bash", 1, "runs its trap when its foreground child", "`exec`", false),
        ("1c", "bash", "bash", 0, "what the handler does is not known", "", false),
        ("1c", "node", "MainThread", 0, "it runs until SIGKILL", "process.on('SIGTERM', …)", false),
        ("c", "node", "node", 0, "The main process (node) has a handler", "", false),
        ("1b!", "app", "app", 0, "Not read: /proc/7/fd: no.", "Do not block SIGTERM", false),
        ("1r", "app", "app", 0, "Not read: /proc/7/fd: no.", "Handle SIGTERM", false),
        (
            "",
            "app",
            "app",
            0,
            "default action ends the process",
            "If the program has anything",
            false,
        ),
    ];
    for (letters, exe, comm, children, why, fix, is_patched) in table {
        let (said, advice, patched) = says(letters, exe, comm, children);
        assert!(said.contains(why), "{said}");
        assert!(advice.contains(fix) && advice.is_empty() == fix.is_empty(), "{advice}");
        assert_eq!(patched, is_patched, "{exe} {comm}");
    }
}

/// A stop of Deployment/web: hook, shutdown, and whether SIGKILL came, in seconds.
fn stop(hook: u64, shutdown: u64, verdict: Verdict) -> ContainerDeath {
    let golden = include_str!("../../../report/tests/golden/death.json");
    let mut death: ContainerDeath = serde_json::from_str(golden).unwrap();
    let last = match verdict {
        Verdict::GraceExceeded => MilestoneKind::KillSent,
        _ => MilestoneKind::Exited,
    };
    let times = [
        (MilestoneKind::PreStopBegan, 0),
        (MilestoneKind::PreStopEnded, hook),
        (MilestoneKind::TermSent, hook),
        (last, hook + shutdown),
    ];
    let milestone =
        |(kind, at): (_, u64)| Milestone::exact(kind, Some(ms(at * 1000)), Source::Kernel);
    death.milestones = times.into_iter().filter_map(milestone).collect();
    death.workload = Some(Workload { kind: "Deployment".into(), name: "web".into() });
    ContainerDeath { verdict, name: "app".into(), ..death }
}

#[test]
fn the_grace_against_the_hook_and_what_was_measured() {
    use Verdict::{GraceExceeded, Graceful, StopSignalIgnored};
    let (handles, drains) = (process("1c"), Hook::Exec("drain".into()));
    let said = |stops: &[(u64, u64, Verdict)], grace, hook: Option<&Hook>, liveness, late| {
        let mut past = PastStops::default();
        stops.iter().for_each(|(hook, took, verdict)| past.died(&stop(*hook, *took, *verdict)));
        let one = stop(0, 1, Graceful);
        let past = past.of(one.pod.as_ref().unwrap(), one.workload.as_ref().unwrap(), "app");
        let spec = Spec {
            container: "app",
            grace_seconds: Some(grace),
            pre_stop: hook,
            liveness_grace_seconds: liveness,
            is_only: true,
        };
        let reading = read(&handles, 15, &[]);
        let advice = advise(&reading, Some(&handles), 15, &spec, past, Duration::from_millis(late));
        let grace = advice.patch.as_ref().and_then(|p| p.termination_grace_period_seconds);
        let sleep = advice.patch.iter().flat_map(|p| &p.containers).next();
        let sleep = sleep.map(|patch| patch.lifecycle.pre_stop.sleep.seconds);
        (advice.warnings.join(" "), grace, sleep)
    };
    let took = |hook, shutdown| (hook, shutdown, Graceful);
    let table = [
        (said(&[], 30, None, None, 0), "", None, None),
        (said(&[took(0, 8)], 30, None, None, 0), "", None, None),
        (said(&[], 0, None, None, 0), "The grace period is 0", Some(30), None),
        (
            said(&[took(0, 8), took(0, 40), (0, 90, StopSignalIgnored)], 30, None, None, 0),
            "up to 40.0 s in 2 earlier stops",
            Some(60),
            None,
        ),
        (said(&[(0, 30, GraceExceeded)], 30, None, None, 0), "at least 30.0 s", None, None),
        (said(&[(0, 30, StopSignalIgnored)], 30, None, None, 0), "", None, None),
        (
            said(&[], 30, Some(&Hook::Sleep(40)), None, 0),
            "takes 40.0 s of the grace period of 30 s and leaves 2.0 s",
            Some(50),
            None,
        ),
        (
            said(&[took(25, 8)], 30, Some(&drains), None, 0),
            "leaves 5.0 s; the shutdown took up to 8.0 s",
            Some(37),
            None,
        ),
        (said(&[took(0, 8)], 30, None, Some(5), 0), "liveness probe grants 5 s", None, None),
        (said(&[], 30, None, None, 2500), "Clients still connected 2.5 s", None, Some(3)),
        (said(&[], 30, Some(&Hook::HttpGet), None, 2500), "", None, None),
    ];
    for ((warnings, grace, sleep), expected, patched, sleeps) in table {
        assert!(warnings.contains(expected), "{warnings}: {expected}");
        assert_eq!((warnings.is_empty(), grace, sleep), (expected.is_empty(), patched, sleeps));
    }
}
