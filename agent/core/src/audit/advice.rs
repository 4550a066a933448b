//! What of a pod's spec does not fit, and what to change.

use super::{Past, Reading, is_shell};
use crate::{
    input::{Hook, StopState},
    process::SIGKILL,
    report::{GRACE_FLOOR_SECONDS, StopResponse, seconds, secs, signal},
};
use coroner_report::audit::{SpecPatch, of_blocked, of_default, of_ignored};
use std::time::Duration;

/// What a container's spec says of its stop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spec<'a> {
    pub container: &'a str,
    pub grace_seconds: Option<i64>,
    pub pre_stop: Option<&'a Hook>,
    /// The grace of a restart by the liveness probe, where it has its own.
    pub liveness_grace_seconds: Option<i64>,
    /// The pod has no other main container.
    pub is_only: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Advice {
    pub warnings: Vec<String>,
    pub fix: Option<String>,
    pub patch: Option<SpecPatch>,
}

/// What to change. `past`: earlier stops of the container; `late`: for how long clients of the workload connected after the
/// stop began.
pub fn advise(
    reading: &Reading,
    state: Option<&StopState>,
    stop_signal: u8,
    spec: &Spec<'_>,
    past: Option<&Past>,
    late: Duration,
) -> Advice {
    let (mut patch, mut warnings) = (SpecPatch::default(), Vec::new());
    let mut fixes: Vec<String> = state
        .and_then(|state| of_response(reading, state, stop_signal, spec.is_only, &mut patch))
        .into_iter()
        .collect();
    // A longer grace only makes a process wait longer that does not take the signal.
    if !matches!(reading.response, StopResponse::Ignores | StopResponse::Blocked) {
        fixes.extend(of_grace(spec, past, &mut warnings, &mut patch));
    }
    if late > Duration::ZERO && spec.pre_stop.is_none() && spec.is_only {
        let sleep = ceil(late);
        warnings.push(format!("Clients still connected {} after a stop began.", secs(late)));
        fixes.push(format!("Sleep {sleep} s before the stop signal (lifecycle.preStop.sleep)."));
        patch.containers.push(SpecPatch::sleep(spec.container, sleep));
    }
    let fix = (!fixes.is_empty()).then(|| fixes.join(" "));
    let patch = (patch != SpecPatch::default()).then_some(patch);
    Advice { warnings, fix, patch }
}

fn of_response(
    reading: &Reading,
    state: &StopState,
    stop_signal: u8,
    is_only: bool,
    patch: &mut SpecPatch,
) -> Option<String> {
    let (name, is_shell) = (signal::name(stop_signal), is_shell(state));
    match reading.response {
        StopResponse::Ignores => {
            let mut fix = of_ignored(&name, state.ignored, is_shell);
            // A child of a shell would still be killed, and another container's init may have to be PID 1.
            let helps =
                reading.certain && state.ns_pid == Some(1) && state.children == 0 && is_only;
            if helps && !state.ignored && super::DOES_NOT_END.iter().all(|one| *one != stop_signal)
            {
                patch.share_process_namespace = Some(true);
                fix += &format!(
                    " With shareProcessNamespace (each container then sees the processes and files of the others) it is not \
                     PID 1, and {name} ends it, without any cleanup."
                );
            }
            Some(fix)
        }
        StopResponse::Blocked => Some(of_blocked(&name)),
        StopResponse::EndsByDefault if stop_signal == SIGKILL => Some(
            "Give the container a stop signal that it can handle: STOPSIGNAL in the image, or \
             lifecycle.stopSignal."
                .into(),
        ),
        StopResponse::EndsByDefault => Some(of_default(&name)),
        StopResponse::HasHandler if state.ns_pid == Some(1) && state.exe == "node" => {
            Some(format!("Handle {name} in the program: process.on('{name}', …)."))
        }
        StopResponse::HasHandler if is_shell && state.children > 0 => {
            Some(of_ignored(&name, false, true))
        }
        _ => None,
    }
}

/// The hook and the measured shutdowns against the grace.
fn of_grace(
    spec: &Spec<'_>,
    past: Option<&Past>,
    warnings: &mut Vec<String>,
    patch: &mut SpecPatch,
) -> Option<String> {
    let hook = match spec.pre_stop {
        Some(Hook::Sleep(sleep)) => seconds(*sleep),
        Some(_) => past.map(Past::hook).unwrap_or_default(),
        None => Duration::ZERO,
    };
    let measured = past.and_then(Past::shutdown);
    let (shutdown, is_cut) = measured.map_or((Duration::ZERO, false), |(longest, _)| longest);
    let how_long = measured.map_or(String::new(), |((shutdown, is_cut), count)| {
        let at_least = if is_cut { "at least " } else { "up to " };
        format!("; the shutdown took {at_least}{} in {count} earlier stops", secs(shutdown))
    });
    if let Some(own) = spec.liveness_grace_seconds.filter(|own| seconds(*own) < shutdown) {
        warnings.push(format!(
            "A restart by the liveness probe grants {own} s (livenessProbe.terminationGracePeriodSeconds){how_long}."
        ));
    }
    let grace = spec.grace_seconds?;
    let needed = hook + shutdown;
    if grace > 0 && needed < seconds(grace) {
        return None;
    }
    let left = seconds(grace).saturating_sub(hook).max(seconds(GRACE_FLOOR_SECONDS));
    warnings.push(match grace {
        ..=0 => format!("The grace period is 0: no preStop hook runs, and SIGKILL follows the stop signal after \
             {GRACE_FLOOR_SECONDS} s{how_long}."),
        _ if hook.is_zero() => format!("The grace period is {grace} s{how_long}."),
        _ => format!(
            "The preStop hook takes {} of the grace period of {grace} s and leaves {}{how_long}.",
            secs(hook),
            secs(left)
        ),
    });
    if is_cut {
        return Some("Shorten the shutdown, or raise terminationGracePeriodSeconds.".into());
    }
    // Half as much again: the next shutdown may be longer than those that were measured.
    let enough = ceil(hook + (shutdown + shutdown / 2).max(seconds(10))).max(30);
    patch.termination_grace_period_seconds = Some(enough);
    Some(format!("Raise terminationGracePeriodSeconds to {enough}."))
}

/// In whole seconds.
fn ceil(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX)
}
