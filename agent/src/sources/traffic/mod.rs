//! The traffic adapter: has the kernel programs count the connections of terminating pods, and reads what they have
//! counted, and the namespaces' own counters.
//!
//! To attach a program takes up to 35 ms, and to read the table of a namespace's sockets as long beside thousands of
//! others': all of it is done in a thread of the runtime's, one request after the other.

mod pods;

use crate::{
    linux::clock,
    sources::kernel::counting::{Counting, RESETS, TRANSITIONS},
};
use coroner_core::{
    input::{Input, Received, TrafficBlindness, TrafficEvent, TrafficFact},
    output::TrafficRequest,
};
use pods::CountedPods;
use std::{path::PathBuf, time::Duration};
use tokio::{
    sync::mpsc,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

/// Requests that are answered at once: as many as one pod of a drained node each.
const BATCH: usize = 256;
/// How often it is looked whether the programs can be detached.
const SWEEP: Duration = Duration::from_secs(5);

/// When the programs that count connections are attached.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Attachment {
    /// While some pod terminates.
    #[default]
    OnDemand,
    /// Always: at the cost of a tenth of a microsecond for every connection of the node.
    Always,
    /// Never.
    Off,
}

pub struct TrafficOptions {
    pub host_root: PathBuf,
    pub attachment: Attachment,
    /// The programs; `None`: there are none.
    pub counting: Option<Counting>,
}

impl TrafficOptions {
    /// Refused connections are visible.
    pub fn shows_refusals(&self) -> bool {
        self.usable().is_some_and(|counting| counting.loads(RESETS))
    }

    fn usable(&self) -> Option<&Counting> {
        self.counting
            .as_ref()
            .filter(|counting| self.attachment != Attachment::Off && counting.loads(TRANSITIONS))
    }
}

/// Answers requests until either channel is closed.
pub async fn run(
    options: TrafficOptions,
    to: mpsc::Sender<Received>,
    mut requests: mpsc::Receiver<TrafficRequest>,
) -> anyhow::Result<()> {
    let is_usable = options.usable().is_some();
    let TrafficOptions { host_root, attachment, counting } = options;
    let reason = match attachment {
        Attachment::Off => TrafficBlindness::Off,
        Attachment::OnDemand | Attachment::Always => TrafficBlindness::NoProgram,
    };
    let Some(counting) = counting.filter(|_| is_usable) else {
        return refuse(reason, to, requests).await;
    };
    let mut pods = spawn_blocking(move || {
        let mut pods = CountedPods::new(&host_root, counting, attachment == Attachment::Always);
        pods.sweep();
        pods
    })
    .await?;
    let mut sweeps = interval(SWEEP);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            () = to.closed() => return Ok(()),
            count = requests.recv_many(&mut batch, BATCH) => if count == 0 { return Ok(()) },
            _ = sweeps.tick() => if pods.is_idle() { continue },
        }
        // What is counted late is missed; what is read late is still there.
        batch.sort_by_key(|request| matches!(request, TrafficRequest::Read(_)));
        // Each answer at once: a whole batch may take seconds.
        let answers = to.clone();
        let is_wanted;
        (pods, is_wanted) = spawn_blocking(move || {
            let send =
                |input| answers.blocking_send(Received { at: clock::boot_now(), input }).is_ok();
            let mut events = batch.into_iter().filter_map(|one| pods.answer(one));
            let is_wanted = events.all(|event| send(Input::Traffic(event)));
            drop(events);
            pods.sweep();
            let is_wanted =
                is_wanted && pods.take_loss().is_none_or(|loss| send(Input::Lost(loss)));
            (pods, is_wanted)
        })
        .await?;
        if !is_wanted {
            return Ok(());
        }
    }
}

/// Nothing can be counted, for one reason.
async fn refuse(
    reason: TrafficBlindness,
    to: mpsc::Sender<Received>,
    mut requests: mpsc::Receiver<TrafficRequest>,
) -> anyhow::Result<()> {
    while let Some(request) = requests.recv().await {
        let sandbox = match request {
            TrafficRequest::Forget(_) => continue,
            TrafficRequest::Count(wanted) => wanted.sandbox,
            TrafficRequest::Read(sandbox) => sandbox,
        };
        let event = TrafficEvent { sandbox, fact: TrafficFact::NotVisible { reason } };
        let received = Received { at: clock::boot_now(), input: Input::Traffic(event) };
        if to.send(received).await.is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_core::{ids::SandboxId, output::CountTraffic};

    #[tokio::test]
    async fn without_programs_each_question_has_an_answer() {
        for (attachment, reason) in [
            (Attachment::Off, TrafficBlindness::Off),
            (Attachment::OnDemand, TrafficBlindness::NoProgram),
        ] {
            let options = TrafficOptions { host_root: "/".into(), attachment, counting: None };
            let (to, mut inputs) = mpsc::channel(8);
            let (ask, requests) = mpsc::channel(8);
            let task = tokio::spawn(run(options, to, requests));
            let sandbox = SandboxId::new("s");
            let count = CountTraffic { sandbox: sandbox.clone(), processes: Vec::new() };
            ask.send(TrafficRequest::Forget(sandbox.clone())).await.unwrap();
            ask.send(TrafficRequest::Count(count)).await.unwrap();
            ask.send(TrafficRequest::Read(sandbox.clone())).await.unwrap();
            for _ in 0..2 {
                let received = inputs.recv().await.unwrap();
                let fact = TrafficFact::NotVisible { reason };
                let event = TrafficEvent { sandbox: sandbox.clone(), fact };
                assert_eq!(received.input, Input::Traffic(event));
            }
            drop(ask);
            task.await.unwrap().unwrap();
        }
    }
}
