//! The alternative: what many agents do who want to know what runs on a node. A client of the same
//! stack, with nothing else to do, lists all sandboxes and containers once a second, as the
//! kubelet's generic PLEG does (`pkg/kubelet/pleg/generic.go`), and compares them with the last.

use super::cost::MeasuredProcess;
use super::figures::{Usage, Weight};
use anyhow::Context as _;
use coroner_cri_api::v1::{
    ListContainersRequest, ListPodSandboxRequest, runtime_service_client::RuntimeServiceClient,
};
use coroner_lab_cluster::containerd;
use coroner_lab_harness::agent::die_with_parent;
use std::{collections::HashMap, path::Path, process::Stdio, time::Duration};
use tokio::process::{Child, Command};

/// The sub-command of `coroner-lab` that [`relist`]s.
pub const COMMAND: &str = "relist";
/// The kubelet's `genericPlegRelistPeriod`.
const PERIOD: Duration = Duration::from_secs(1);

/// Such a client as a process of its own. Dropped, it is gone.
#[derive(Debug)]
pub(super) struct Relister {
    _child: Child,
    process: MeasuredProcess,
}

impl Relister {
    /// `program` is `coroner-lab`.
    pub(super) fn start(program: &Path, endpoint: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args([COMMAND, endpoint]);
        command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        die_with_parent(&mut command);
        let child =
            command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let process =
            MeasuredProcess::new(child.id().context("the relisting client ended at once")?);
        Ok(Self { _child: child, process })
    }

    pub(super) fn usage(&self) -> anyhow::Result<Usage> {
        self.process.usage().context("the relisting client")
    }

    pub(super) fn weight(&self) -> anyhow::Result<Weight> {
        self.process.weight().context("the relisting client")
    }
}

/// Lists for ever.
pub async fn relist(endpoint: &str) -> anyhow::Result<()> {
    let channel = containerd::connect(endpoint).await?;
    let mut client = RuntimeServiceClient::new(channel).max_decoding_message_size(16 << 20);
    let mut ticks = tokio::time::interval(PERIOD);
    let mut known: HashMap<String, i32> = HashMap::new();
    loop {
        ticks.tick().await;
        let sandboxes = client.list_pod_sandbox(ListPodSandboxRequest::default()).await?;
        let containers = client.list_containers(ListContainersRequest::default()).await?;
        let sandboxes = sandboxes.into_inner().items.into_iter().map(|one| (one.id, one.state));
        let containers =
            containers.into_inner().containers.into_iter().map(|one| (one.id, one.state));
        let seen: HashMap<String, i32> = sandboxes.chain(containers).collect();
        let changed = seen.iter().filter(|(id, state)| known.get(*id) != Some(state)).count();
        tracing::debug!(changed, listed = seen.len(), "relisted");
        known = seen;
    }
}
