//! `--cri/--kubeconfig/--node`: no lab, the agent on a real node.

use super::RealNode;
use crate::{
    agent::{self, Agent},
    environment::{Environment, Setup, interrupted},
    monitor::AgentMonitor,
};
use std::{collections::HashSet, net::SocketAddr, time::Duration};

/// Starts the agent against the node and prints what ends there, until Ctrl-C.
pub(super) async fn observe(
    environment: Environment,
    setup: &Setup,
    listen: Option<SocketAddr>,
    node: &RealNode,
) -> anyhow::Result<()> {
    let console = environment.console;
    console.step(&format!("starting the agent on node {}", node.node));
    let mut agent = Agent::start(&agent::AgentOptions {
        binary: setup.agent.clone(),
        listen,
        node: node.node.clone(),
        cri: node.cri.clone(),
        kubeconfig: node.kubeconfig.clone(),
        cgroup_root: None,
        cri_idle: None,
        leak_threshold: None,
        state_dir: None,
        host_root: None,
        kubelet_process: None,
        events: false,
        log: environment.log(),
    })
    .await?;
    console.step(&format!(
        "ready after {:.2} s at {}; delete a pod of this node to see it, Ctrl-C to end",
        agent.ready_after().as_secs_f64(),
        agent.url()
    ));
    let monitor = AgentMonitor::of_foreign(agent.http(), None);
    let mut accounts = monitor.reports();
    let mut told = HashSet::new();
    let result = loop {
        tokio::select! {
            () = interrupted() => break Ok(()),
            changed = accounts.changed() => {
                if changed.is_err() {
                    break Ok(());
                }
                let known = accounts.borrow_and_update();
                let lives = known.pods.iter().flat_map(|(uid, lives)| lives.iter().map(move |l| (uid, l)));
                let mut new: Vec<_> =
                    lives.filter(|(uid, of)| told.insert(((*uid).clone(), of.life))).collect();
                new.sort_by_key(|(_, timeline)| timeline.ended);
                for (_, timeline) in new {
                    if setup.json {
                        console.timeline(timeline);
                    } else {
                        console.print(&format!("\n{}", console.waterfall(timeline)));
                    }
                }
            }
            () = tokio::time::sleep(Duration::from_secs(1)) => {
                if let Err(error) = agent.check() {
                    break Err(error);
                }
            }
        }
    };
    monitor.stop().await;
    agent.stop().await;
    environment.tear_down(result, false).await
}
