//! Starts the kernel side, then drops the capabilities that only the start needs.

use super::{TICK, stop::StopSignals};
use crate::{
    linux::{allocator, clock, privileges, seccomp},
    outputs::http::SharedState,
    sources::kernel::{self, Kernel},
};
use anyhow::anyhow;
use coroner_core::input::{Input, Received};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{error, info, warn};

const RETRY: Duration = Duration::from_secs(30);

const FAILED: &str =
    "cannot start the kernel programs; run `coroner doctor` to see what this node lacks";

/// Number of attempts after which the kernel side is used even if the self-test refused hooks.
const ATTEMPTS: u32 = 3;

/// Starts the kernel side and drops the capabilities that only the start needs. `None`: a signal stopped the
/// agent first. `stay`: unready instead of failing (`--keep-running-unready`). `runs_programs`: a kubeconfig may name a
/// program that gets credentials.
///
/// Blocks the event loop, which has nothing else to do yet. Capabilities belong to a thread: if another
/// thread started the programs, this thread and its children would keep the capabilities.
pub(super) async fn kernel(
    options: &kernel::KernelOptions,
    stay: bool,
    runs_programs: bool,
    shared: &SharedState,
    stop: &mut StopSignals,
) -> anyhow::Result<Option<Kernel>> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        // At each attempt, because a limit may have been raised in between.
        let lacks = kernel::privileges_lacking(options);
        shared.health.lock().lacks = lacks;
        let failure = match kernel::start(options) {
            // On an overloaded node the self-test may have timed out.
            Ok(kernel) if stay && attempts < ATTEMPTS && kernel.report().is_refused() => {
                anyhow!("hooks refused: {}", kernel.report().refusals())
            }
            Ok(kernel) => {
                // The programs' maps exist, so RLIMIT_MEMLOCK is high enough.
                shared.health.lock().lacks = privileges::lacking(privileges::held(), false);
                // Frees the kernel's BTF (5 MiB) and the programs' object.
                allocator::trim_heap();
                log_start_report(&kernel);
                drop_privileges(&kernel);
                shared.health.lock().confinement.insert("seccomp", confine(runs_programs));
                return Ok(Some(kernel));
            }
            Err(failure) => failure,
        };
        allocator::trim_heap();
        if !stay {
            return Err(failure.context(FAILED));
        }
        shared.health.lock().kernel_failed(failure.to_string());
        let failure = failure.context(FAILED);
        error!("{}; retrying in {} s", crate::chain(failure.as_ref()), RETRY.as_secs());
        if !wait(shared, stop).await {
            return Ok(None);
        }
    }
}

/// Denies this process what it never needs from now on. `Err`: why its system calls are not filtered.
fn confine(runs_programs: bool) -> Result<(), String> {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        warn!(%error, "the process stays dumpable");
    }
    let confined = seccomp::confine(runs_programs).map_err(|error| error.to_string());
    match &confined {
        Ok(()) => info!("system calls are filtered"),
        Err(error) => warn!(error, "system calls are not filtered"),
    }
    confined
}

/// Waits for the next attempt. False: a signal stopped the agent.
async fn wait(shared: &SharedState, stop: &mut StopSignals) -> bool {
    let until = Instant::now() + RETRY;
    loop {
        shared.health.lock().note(&Received { at: clock::boot_now(), input: Input::Tick });
        tokio::select! {
            () = sleep_until(until) => return true,
            () = sleep(TICK) => {}
            signal = stop.wait() => {
                info!("received {signal}; shutting down");
                return false;
            }
        }
    }
}

fn log_start_report(kernel: &Kernel) {
    let report = kernel.report();
    for (hook, how) in &report.hooks {
        if let Err(why) = how {
            warn!(hook, why, "hook not attached");
        }
    }
    match &report.unproven {
        Some(unproven) if unproven.is_harmless() => info!("{unproven}"),
        Some(unproven) => warn!("{unproven}"),
        None => {}
    }
    let attached = report.hooks.values().filter(|how| how.is_ok()).count();
    info!(hooks = attached, cgroup_root = %report.cgroup_root.display(), "kernel programs attached");
}

fn drop_privileges(kernel: &Kernel) {
    match privileges::drop_privileges(|| kernel::frees_open_maps() && kernel.answers()) {
        Ok(kept) => info!(?kept, "dropped capabilities that are no longer needed"),
        // The agent works, with more capabilities than it needs.
        Err(error) => {
            warn!(%error, kept = ?privileges::held(), "cannot drop capabilities; continuing \
                                                             with more than needed");
        }
    }
}
