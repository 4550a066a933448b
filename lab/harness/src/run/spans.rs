//! How long phases may have taken, by the record of those who made them last: the kubelet's calls
//! and the processes' own lines. What a scenario's arithmetic says holds on a machine that never
//! pauses; these bounds hold on any, and are the narrower ones where it does not. Pure.

use crate::run::clock::{self, WorkloadLine};
use coroner_core::types::PhaseKind;
use coroner_lab_cluster::kubelet::record::StopCall;
use coroner_lab_scenarios::Span;

/// How long the start of a hook's process may take that has not told when it began, s.
const TO_EXEC: f64 = 1.0;

/// The bounds of a phase of the container that was stopped like this, `lines` being its log and
/// `deleted` when its pod's deletion was asked for. Without a record they stay what they are.
pub(super) fn fit(
    span: Span,
    deleted: Option<u64>,
    stops: &[StopCall],
    lines: &[WorkloadLine],
) -> Span {
    let asked = |stop: &StopCall| Some((stop.asked?, stop.timeout?));
    let called: Vec<&StopCall> = stops.iter().filter(|stop| asked(stop).is_some()).collect();
    let fitted = match span.phase {
        PhaseKind::PostStart => stops.first().and_then(|stop| post_start(span, deleted?, stop)),
        PhaseKind::PreStop => called.first().and_then(|stop| pre_stop(span, stop, lines)),
        PhaseKind::Shutdown => shutdown(span, &called, lines),
        _ => None,
    };
    fitted.unwrap_or(span)
}

/// From the deletion, which comes while the hook runs, to the first thing that is done to stop the
/// container. How much of the hook was left then is up to when the deletion came.
fn post_start(span: Span, deleted: u64, stop: &StopCall) -> Option<Span> {
    let waited = seconds(deleted, stop.hook_began.or(stop.asked)?);
    let at_least = span.at_least.min(waited - Span::EARLY);
    Some(Span { at_least, at_most: waited + Span::LATE, ..span })
}

/// From the hook's first instruction, or shortly before, to its end or to the stop signal.
fn pre_stop(span: Span, stop: &StopCall, lines: &[WorkloadLine]) -> Option<Span> {
    let (began, over, asked) = (stop.hook_began?, stop.hook_over?, stop.asked?);
    let own = clock::own_lines(&stop.hook_said);
    let at = |event: &str| own.iter().find(|line| line.event == event).map(|line| line.boot_ns);
    if at("exit").is_some_and(|at| at <= over) {
        // A sleep is never too short.
        return Some(Span { at_most: seconds(began, over), ..span });
    }
    let handled = term(lines, asked).filter(|at| stop.done.is_none_or(|done| *at <= done));
    let at_least = match at("start") {
        Some(start) => span.at_least.min(seconds(start, asked)),
        None => span.at_least - TO_EXEC,
    };
    Some(Span { at_least, at_most: seconds(began, handled.or(stop.done)?), ..span })
}

/// From the stop signal to the end, or to SIGKILL. Both are between StopContainer and its answer,
/// and SIGKILL no earlier than its timeout after the stop signal.
fn shutdown(span: Span, called: &[&StopCall], lines: &[WorkloadLine]) -> Option<Span> {
    let timeout = called.iter().filter_map(|stop| stop.timeout).min()? as f64;
    let at_least = span.at_least.min(timeout - Span::EARLY);
    let (first, last) = (called.first()?.asked?, called.last()?.done);
    let at_most = match (called.len(), last) {
        (1, done) => seconds(first, done?),
        // The runtime was away meanwhile, or failed, and when it answers says little.
        (_, done) => match (term(lines, first), exit(lines, first)) {
            (Some(term), Some(exit)) => seconds(term, exit) + Span::LATE,
            _ => seconds(first, done?),
        },
    };
    Some(Span { at_least, at_most, ..span })
}

/// When the stop signal was taken that was asked for then.
fn term(lines: &[WorkloadLine], asked: u64) -> Option<u64> {
    after("term", lines, asked)
}

fn exit(lines: &[WorkloadLine], asked: u64) -> Option<u64> {
    after("exit", lines, asked)
}

fn after(event: &str, lines: &[WorkloadLine], asked: u64) -> Option<u64> {
    lines.iter().filter(|line| line.event == event).map(|line| line.boot_ns).find(|at| *at >= asked)
}

fn seconds(from: u64, to: u64) -> f64 {
    std::time::Duration::from_nanos(to.saturating_sub(from)).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use PhaseKind::{PreStop, Shutdown};

    const MS: u64 = 1_000_000;

    fn line(event: &str, ms: u64) -> WorkloadLine {
        WorkloadLine { event: event.into(), boot_ns: ms * MS, pid: 1 }
    }

    fn bounds(span: Span) -> (f64, f64) {
        let milli = |seconds: f64| (seconds * 1e3).round() / 1e3;
        (milli(span.at_least), milli(span.at_most))
    }

    /// A hook from 1.0 to 6.0 s, StopContainer from 6.0 to 8.1 s.
    fn stop() -> StopCall {
        let said =
            |event, ms| format!("{{\"event\":\"{event}\",\"boot_ns\":{},\"pid\":9}}\n", ms * MS);
        StopCall {
            hook_began: Some(1000 * MS),
            hook_over: Some(6050 * MS),
            hook_said: said("start", 1040) + &said("exit", 6041),
            asked: Some(6050 * MS),
            timeout: Some(5),
            done: Some(8100 * MS),
        }
    }

    #[test]
    fn what_was_done_and_answered_bounds_what_was_between() {
        let (hook, work) = (Span::about(PreStop, 5.0), Span::about(Shutdown, 2.0));
        assert_eq!(bounds(fit(hook, None, &[stop()], &[])), (4.8, 5.05));
        assert_eq!(bounds(fit(work, None, &[stop()], &[])), (1.8, 2.05));
        let stalled = StopCall { done: Some(11_000 * MS), ..stop() };
        assert_eq!(bounds(fit(work, None, &[stalled], &[])), (1.8, 4.95));
        assert_eq!(fit(work, None, &[], &[]), work, "no record");
        let other = Span::about(PhaseKind::Kill, 1.0);
        assert_eq!(fit(other, None, &[stop()], &[]), other);
    }

    #[test]
    fn a_post_start_hook_is_waited_for_from_the_deletion() {
        let span = Span::about(PhaseKind::PostStart, 5.5);
        let of = |deleted, stop: StopCall| bounds(fit(span, deleted, &[stop], &[]));
        let hookless = || StopCall { hook_began: None, ..stop() };
        assert_eq!(of(Some(550 * MS), hookless()), (5.3, 5.5 + Span::LATE));
        assert_eq!(of(Some(1550 * MS), hookless()), (4.3, 4.5 + Span::LATE), "deleted late");
        assert_eq!(of(Some(500 * MS), stop()), (0.3, 0.5 + Span::LATE), "preStop comes first");
        assert_eq!(fit(span, None, &[stop()], &[]), span, "not deleted");
    }

    #[test]
    fn a_hook_that_was_cut_off_lasted_from_its_own_start_to_the_stop_signal() {
        let start = format!("{{\"event\":\"start\",\"boot_ns\":{},\"pid\":9}}\n", 1700 * MS);
        let cut = StopCall { hook_said: start, done: Some(7200 * MS), ..stop() };
        let lines = [line("term", 3000), line("term", 6130), line("exit", 7130)];
        let span = Span::about(PreStop, 5.0);
        assert_eq!(
            bounds(fit(span, None, std::slice::from_ref(&cut), &lines)),
            (4.35, 5.13),
            "it started late"
        );
        assert_eq!(bounds(fit(span, None, std::slice::from_ref(&cut), &[])), (4.35, 6.2), "no log");
        let silent = StopCall { hook_said: String::new(), ..cut };
        assert_eq!(bounds(fit(span, None, &[silent], &lines)), (3.8, 5.13));
    }

    #[test]
    fn a_killed_one_had_the_time_that_the_runtime_was_given() {
        let short = StopCall { timeout: Some(2), ..stop() };
        assert_eq!(bounds(fit(Span::about(Shutdown, 3.0), None, &[short], &[])), (1.8, 2.05));
    }

    #[test]
    fn where_it_was_asked_twice_the_process_itself_is_the_witness() {
        let unanswered = StopCall { done: None, ..stop() };
        let again =
            StopCall { asked: Some(9000 * MS), done: Some(9100 * MS), ..StopCall::default() };
        let again = StopCall { timeout: Some(5), ..again };
        let lines = [line("term", 6100), line("exit", 8100)];
        let both = [unanswered.clone(), again];
        let span = Span::about(Shutdown, 2.0);
        assert_eq!(bounds(fit(span, None, &both, &lines)), (1.8, 2.0 + Span::LATE));
        assert_eq!(bounds(fit(span, None, &both, &[])), (1.8, 3.05));
        assert_eq!(fit(span, None, &[unanswered], &lines), span, "no answer");
    }
}
