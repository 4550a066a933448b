//! The adapter that counts connections, whose answers are what it was asked for, and what must come of them.

use coroner_core::{input::ConnectionEvent, testkit::*};
use std::collections::BTreeMap;

/// One history's. Each reading shows one more connection that was cut.
#[derive(Default)]
pub(super) struct Connections {
    /// How many were cut so far, of each sandbox that is counted.
    counted: BTreeMap<SandboxId, u64>,
    /// When counting last began.
    began: BootTime,
}

impl Connections {
    /// The answer, or what is wrong with the request.
    pub(super) fn answer(
        &mut self,
        request: &Request,
        at: BootTime,
    ) -> Result<Option<Input>, String> {
        let Request::Traffic(request) = request else { return Ok(None) };
        let network = Some(NetworkCounters { listening: vec![80], ..NetworkCounters::default() });
        let reading = TrafficReading { at, network, ..TrafficReading::default() };
        let (sandbox, fact) = match request {
            TrafficRequest::Count(wanted) if wanted.processes.is_empty() => {
                let reason = TrafficBlindness::NoProcess;
                self.counted.insert(wanted.sandbox.clone(), 0);
                (&wanted.sandbox, TrafficFact::NotVisible { reason })
            }
            // It starts over where it counted.
            TrafficRequest::Count(wanted) => {
                self.counted.insert(wanted.sandbox.clone(), 0);
                self.began = at;
                (&wanted.sandbox, TrafficFact::Began { reading, sees_refusals: true })
            }
            TrafficRequest::Read(sandbox) => {
                let cut = self.counted.get_mut(sandbox).ok_or("read, and not counted")?;
                *cut += 1;
                let (peer, event) = (TrafficPeer::Client, ConnectionEvent::Cut);
                let cut = TrafficCount { peer, event, count: *cut, first: at, last: at };
                let reading = TrafficReading { counts: vec![cut], ..reading };
                (sandbox, TrafficFact::Counted { reading })
            }
            TrafficRequest::Forget(sandbox) => {
                self.counted.remove(sandbox).ok_or("forgotten, and not counted")?;
                return Ok(None);
            }
        };
        Ok(Some(Input::Traffic(TrafficEvent { sandbox: sandbox.clone(), fact })))
    }

    /// What is wrong with a report: it has the last reading, if it has any, or it was too late to count.
    pub(super) fn check(&self, report: &PodTermination) -> Option<String> {
        let traffic = report.traffic.as_ref()?;
        if traffic.not_visible == Some(TrafficBlindness::TooLate) {
            let mut milestones = report.containers.iter().flat_map(|death| &death.milestones);
            let is_late = milestones
                .any(|one| one.kind == MilestoneKind::CgroupEmpty && one.at.boot < self.began);
            return (!is_late).then(|| "too late to count, and nothing had ended".to_owned());
        }
        let seen = traffic.sum(&[TrafficPeer::Client], &[ConnectionEvent::Cut]).count;
        let read = self.counted.values().copied().max().unwrap_or(seen);
        (seen != read).then(|| format!("{seen} connections cut instead of {read}"))
    }

    /// What is counted when all is over.
    pub(super) fn rest(&self) -> Option<String> {
        let rest = self.counted.len();
        (rest > 0).then(|| format!("the connections of {rest} sandboxes are counted for ever"))
    }
}
