//! `--cri/--kubeconfig/--node`: no lab, the agent on a real node.

use crate::{
    agent::{self, Agent},
    work::{self, AGENT_LOG, interrupted, work_directory},
};
use crate::{
    console::Screen,
    monitor::{self, Told},
    run::{Options, RealNode},
};
use std::{collections::HashSet, time::Duration};
use tokio::sync::watch;

/// Starts the agent against the node and prints what ends there, until Ctrl-C.
pub(super) async fn observe(
    options: &Options,
    node: &RealNode,
    screen: Screen,
) -> anyhow::Result<()> {
    let work = work_directory(&options.lab.work)?;
    screen.step(&format!("starting the agent on node {}", node.node));
    let mut agent = Agent::start(&agent::Options {
        binary: options.agent.clone(),
        listen: options.listen,
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
        log: work.join(AGENT_LOG),
    })
    .await?;
    screen.step(&format!(
        "ready after {:.2} s at {}; delete a pod of this node to see it, Ctrl-C to end",
        agent.ready_after().as_secs_f64(),
        agent.url()
    ));
    let (tell, mut accounts) = watch::channel(Told::default());
    let (_asked, whom) = watch::channel(Some(agent.http()));
    let polling = tokio::spawn(monitor::poll(whom, tell, None));
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
                    if options.json {
                        screen.timeline(timeline);
                    } else {
                        screen.print(&format!("\n{}", screen.waterfall(timeline)));
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
    polling.abort();
    agent.stop().await;
    work::leave(&work, result.is_err(), screen);
    result
}
