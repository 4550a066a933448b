//! The lab's own record of what was left behind in truth: when objects of pods went, and how long
//! the runtime listed their sandboxes after that. The lab's collector comes late on a machine that
//! pauses, and what it leaves lying for that long the agent rightly tells.

use super::{
    lab::Lab,
    watcher::{self, THRESHOLD},
};
use crate::kubelet::{Cri, api::Change, translate};
use coroner::domain::leak::{Leak, LeakKey};
use coroner_cri_api::v1::ListPodSandboxRequest;
use coroner_workload::page::boot_now;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinHandle};

/// How often the runtime is asked.
const LOOK: Duration = Duration::from_millis(250);
/// How much later than this the agent may hear that the runtime does not answer: it asks so often.
const LATER: Duration = watcher::ASKS_EVERY;

/// The record, while it is kept.
pub(crate) struct Ledger {
    pages: Arc<Mutex<Pages>>,
    keeping: JoinHandle<()>,
}

impl Ledger {
    /// Of this lab, from now on.
    pub(crate) fn of(lab: &Lab) -> Self {
        let pages = Arc::default();
        let (changes, cri) = (lab.watch(), lab.hand().cri.clone());
        let keeping = tokio::spawn(keep(Arc::clone(&pages), changes, cri));
        Self { pages, keeping }
    }

    /// It was there without its pod for as long as the agent waits, and has gone since: the
    /// collector was late. What is still there is not excused.
    pub(super) fn shows(&self, leak: &Leak) -> bool {
        let LeakKey::Sandbox { id } = &leak.key else { return false };
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.left_for(id.as_str()).is_some_and(|time| time + LATER >= THRESHOLD)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

async fn keep(
    pages: Arc<Mutex<Pages>>,
    mut changes: mpsc::UnboundedReceiver<Change>,
    mut cri: Cri,
) {
    let note = |what: &dyn Fn(&mut Pages)| {
        what(&mut pages.lock().unwrap_or_else(PoisonError::into_inner));
    };
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            change = changes.recv() => match change {
                Some(Change::Gone(pod)) => {
                    let uid = translate::mirrored(&pod).or(pod.metadata.uid.as_deref());
                    note(&|pages| pages.gone(uid.unwrap_or_default(), boot_now()));
                }
                Some(Change::Applied(_)) => {}
                None => return,
            },
            _ = look.tick() => {
                let asked = boot_now();
                let listed = cri.list_pod_sandbox(ListPodSandboxRequest::default()).await;
                let listed = listed.ok().map(|listed| {
                    let uid = |one: &coroner_cri_api::v1::PodSandbox| {
                        one.metadata.as_ref().map(|of| of.uid.clone()).unwrap_or_default()
                    };
                    listed.into_inner().items.iter().map(|one| (one.id.clone(), uid(one))).collect()
                });
                note(&|pages| pages.looked(asked, boot_now(), listed.as_ref()));
            }
        }
    }
}

/// What is known. Times are ns of CLOCK_BOOTTIME.
#[derive(Default)]
struct Pages {
    /// When each pod's object went, by UID.
    gone: HashMap<String, u64>,
    /// By id.
    sandboxes: HashMap<String, Sandbox>,
    /// When the runtime did not answer, from and to, the oldest first.
    away: Vec<(u64, u64)>,
    answers: bool,
}

struct Sandbox {
    pod: String,
    /// When it was first missing in the runtime's list.
    missed: Option<u64>,
}

impl Pages {
    fn gone(&mut self, uid: &str, at: u64) {
        self.gone.insert(uid.into(), at);
    }

    /// What the runtime listed, ids and the UIDs of the pods; `None`: it failed to.
    fn looked(&mut self, asked: u64, answered: u64, listed: Option<&HashMap<String, String>>) {
        match (listed, self.away.last_mut()) {
            (Some(_), Some(away)) if !self.answers => away.1 = answered,
            (None, Some(away)) if !self.answers => away.1 = answered,
            (None, _) => self.away.push((asked, answered)),
            _ => {}
        }
        self.answers = listed.is_some();
        let Some(listed) = listed else { return };
        for (id, pod) in listed {
            let known = || Sandbox { pod: pod.clone(), missed: None };
            self.sandboxes.entry(id.clone()).or_insert_with(known);
        }
        for (id, sandbox) in &mut self.sandboxes {
            if !listed.contains_key(id) {
                sandbox.missed.get_or_insert(answered);
            }
        }
    }

    /// How long a sandbox that has gone may have been there after its pod's object, without the
    /// time in which the runtime did not answer: nobody could tell then.
    fn left_for(&self, id: &str) -> Option<Duration> {
        let sandbox = self.sandboxes.get(id)?;
        let (from, to) = (*self.gone.get(&sandbox.pod)?, sandbox.missed?);
        let away: u64 =
            self.away.iter().map(|away| away.1.min(to).saturating_sub(away.0.max(from))).sum();
        Some(Duration::from_nanos(to.checked_sub(from)?.saturating_sub(away)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn listed(ids: &[&str]) -> Option<HashMap<String, String>> {
        Some(ids.iter().map(|id| ((*id).to_owned(), format!("pod of {id}"))).collect())
    }

    fn looked(pages: &mut Pages, at: u64, what: Option<HashMap<String, String>>) {
        pages.looked(at * S, at * S, what.as_ref());
    }

    #[test]
    fn it_was_left_from_its_pod_s_end_until_it_was_first_missed() {
        let mut pages = Pages::default();
        looked(&mut pages, 1, listed(&["a", "b"]));
        assert_eq!(pages.left_for("a"), None, "its pod is there");
        pages.gone("pod of a", 2 * S);
        looked(&mut pages, 9, listed(&["a", "b"]));
        assert_eq!(pages.left_for("a"), None, "it is still there");
        looked(&mut pages, 11, listed(&["b"]));
        looked(&mut pages, 12, listed(&["b"]));
        assert_eq!(pages.left_for("a"), Some(Duration::from_secs(9)));
        assert_eq!(pages.left_for("c"), None, "nobody has seen it");
        pages.gone("pod of b", 20 * S);
        looked(&mut pages, 19, listed(&[]));
        assert_eq!(pages.left_for("b"), None, "it went first");
    }

    #[test]
    fn time_without_the_runtime_does_not_count() {
        let mut pages = Pages::default();
        looked(&mut pages, 1, listed(&["a"]));
        looked(&mut pages, 2, None);
        pages.gone("pod of a", 3 * S);
        looked(&mut pages, 8, None);
        looked(&mut pages, 10, listed(&["a"]));
        looked(&mut pages, 12, None);
        looked(&mut pages, 13, listed(&["a"]));
        looked(&mut pages, 15, listed(&[]));
        assert_eq!(pages.left_for("a"), Some(Duration::from_secs(4)));
    }
}
