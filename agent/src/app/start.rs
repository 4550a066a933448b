//! The start of the kernel side: with the privileges that it takes, and what is laid down after it.

use super::{Stop, TICK};
use crate::{
    linux::{
        allocator, clock,
        privileges::{self, Privileges},
    },
    outputs::http::Shared,
    sources::kernel::{self, Kernel, StartError},
};
use coroner_core::input::{Input, Received};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{error, info, warn};

/// Time between two attempts, where the agent stays (`--stay-unready`).
const RETRY: Duration = Duration::from_secs(30);

/// After so many it is taken as it is, with hooks that the self-test refused.
const ATTEMPTS: u32 = 3;

/// How the kernel side is started.
pub(super) struct Start<'a> {
    pub(super) options: &'a kernel::Options,
    /// Stay, unready, where it cannot be started.
    pub(super) stay: bool,
}

impl Start<'_> {
    /// Starts it, and lays down the privileges that only this takes; `None`: stopped before it
    /// could be.
    ///
    /// It blocks the event loop, which has nothing else to do yet: on a thread of its own it would
    /// leave this one, and all that come after, with privileges that nobody needs any more.
    pub(super) async fn kernel(
        &self,
        shared: &Shared,
        stop: &mut Stop,
    ) -> anyhow::Result<Option<Kernel>> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            // Each time: a limit may have been lifted meanwhile.
            let lacks = kernel::privileges_lacking(self.options);
            shared.health.lock().lacking(lacks);
            let failure = match kernel::start(self.options) {
                // A node that is overloaded just now may have been too slow for the self-test.
                Ok(kernel) if self.stay && attempts < ATTEMPTS && kernel.report().is_refused() => {
                    StartError::Refused(kernel.report().refusals())
                }
                Ok(kernel) => {
                    // The programs' maps were made: so much memory could be locked.
                    shared.health.lock().lacking(Privileges::held().lacking(false));
                    // It has read the kernel's BTF (5 MiB) and the object of the programs.
                    allocator::trim_heap();
                    log_start_report(&kernel);
                    drop_privileges(&kernel);
                    return Ok(Some(kernel));
                }
                Err(failure) => failure,
            };
            allocator::trim_heap();
            if !self.stay {
                return Err(explain(failure));
            }
            shared.health.lock().kernel_failed(failure.to_string());
            let failure = explain(failure);
            error!("{failure:#}; retrying in {} s", RETRY.as_secs());
            if !wait(shared, stop).await {
                return Ok(None);
            }
        }
    }
}

fn explain(failure: StartError) -> anyhow::Error {
    anyhow::Error::new(failure)
        .context("cannot start the kernel side; run `coroner doctor` to see what this node lacks")
}

/// Until it is time to try again. False: stopped.
async fn wait(shared: &Shared, stop: &mut Stop) -> bool {
    let until = Instant::now() + RETRY;
    loop {
        shared.health.lock().note(&Received { at: clock::boot_now(), input: Input::Tick });
        tokio::select! {
            () = sleep_until(until) => return true,
            () = sleep(TICK) => {}
            () = stop.wait() => return false,
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
    info!(hooks = attached, hierarchy = report.hierarchy, "kernel programs attached");
}

fn drop_privileges(kernel: &Kernel) {
    let names = |held: Privileges| held.names().collect::<Vec<_>>().join(",");
    match privileges::drop_privileges(|| kernel::frees_open_maps() && kernel.answers()) {
        Ok(kept) => info!(kept = names(kept), "dropped capabilities that are no longer needed"),
        // It works all the same, with more than it needs.
        Err(error) => {
            warn!(%error, kept = names(Privileges::held()), "cannot drop capabilities; continuing \
                                                             with more than needed");
        }
    }
}
