//! `coroner doctor`: whether `run` works on this node. Does what `run` does at its start, until each source has answered,
//! and prints the same checks as /readyz.

use super::{observer::Observer, output::document, print};
use crate::{
    config::{
        Sources, StandaloneConfig,
        args::{DoctorArgs, TextOutput},
    },
    linux::{clock, restrictions::Restrictions},
    sources::{host, kernel, kube},
    store::health::{Check, Checks, Health, Severity},
};
use coroner_core::input::{ApiEvent, Input, Received};
use std::{process::ExitCode, time::Duration};
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs and prints all checks. The exit status says whether `run` works.
pub(super) fn main(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let checks = diagnose(args)?;
    let text = match args.output {
        TextOutput::Text => checks.to_string(),
        form => document(&checks, form == TextOutput::Yaml)?,
    };
    print(&text)?;
    Ok(if checks.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn diagnose(args: &DoctorArgs) -> anyhow::Result<Checks> {
    let (node, no_api) = (&args.sources.node, args.sources.no_api);
    let mut health = Health::new(!no_api, clock::boot_now());
    health.restrictions = Restrictions::probe(&node.host_root);
    let sources = Sources::of(&args.sources);
    // The kernel side does not depend on the other flags, and is checked anyway.
    let cgroup_root = node.cgroup_root.clone();
    let options = match &sources {
        Ok(sources) => sources.kernel.clone(),
        Err(_) => kernel::KernelOptions { cgroup_root, ..Default::default() },
    };
    health.lacks = kernel::privileges_lacking(&options);
    match kernel::start(&options) {
        Ok(kernel) => health.kernel_started(kernel.report()),
        Err(error) => health.kernel_failed(error.to_string()),
    }
    match sources {
        Ok(sources) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let health = runtime.block_on(observe(sources, health));
            runtime.shutdown_timeout(Duration::from_millis(100));
            Ok(health.checks(clock::boot_now()))
        }
        Err(error) => {
            let flags = Check {
                name: "flags",
                severity: Severity::Failing,
                found: error.to_string(),
                todo: "".into(),
            };
            let mut checks = health.node_checks();
            checks.extend([health.kernel_check(), flags]);
            Ok(Checks { ready: false, checks })
        }
    }
}

async fn observe(sources: Sources, health: Health) -> Health {
    let cgroup_root = kernel::hierarchy(sources.kernel.cgroup_root.as_deref());
    let cgroup_root = cgroup_root.unwrap_or_else(|_| "/sys/fs/cgroup".into());
    let look = StandaloneConfig {
        // Nothing is confirmed before the timeout.
        threshold: TIMEOUT * 2,
        kubelet: host::HostView::KUBELETS.map(str::to_owned).to_vec(),
        cgroup_root: None,
        cri: sources.cri,
        // A single query needs no spread.
        kube: sources.kube.map(|kube| kube::KubeOptions { spread: Duration::ZERO, ..kube }),
    };
    let mut observer = Observer::start(look, cgroup_root, health);
    let settle = async {
        while !observer.health.is_settled() {
            if let Err(error) = observer.step().await {
                // Only a kubeconfig that cannot be used ends an adapter.
                let error = crate::chain(error.as_ref());
                let input = Input::Api(ApiEvent::OutOfSync { error });
                observer.health.note(&Received { at: clock::boot_now(), input });
            }
        }
    };
    // What has not answered by then is named as such.
    let _ = timeout(TIMEOUT, settle).await;
    observer.health
}
