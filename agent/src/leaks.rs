//! The leaks that are certain at this moment: for the HTTP API, the series with an identity, and
//! the state directory.

use crate::domain::{
    leak::{Judgement, Leak, LeakKey, Recollection},
    time::{Anchor, WallTime},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// The certain leaks, by what they are.
#[derive(Debug, Default)]
pub struct Standing {
    leaks: BTreeMap<LeakKey, Arc<Leak>>,
    judgement: Judgement,
    /// Changed since [`Standing::take_news`] was last called.
    news: bool,
}

/// The answer of /api/v1/leaks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LeakList {
    /// Whether leaks can be judged at this moment, and if not why. What was certain before an
    /// outage stays in the list.
    pub judgement: Judgement,
    /// The leaks: the oldest first.
    pub leaks: Vec<Arc<Leak>>,
}

impl Standing {
    /// A leak is certain, or what is known of it has changed.
    pub fn put(&mut self, leak: Arc<Leak>) {
        self.leaks.insert(leak.key.clone(), leak);
        self.news = true;
    }

    /// A leak is gone.
    pub fn gone(&mut self, key: &LeakKey) {
        self.leaks.remove(key);
        self.news = true;
    }

    /// How the judge is; true if that is another than before.
    pub fn judge(&mut self, judgement: Judgement) -> bool {
        std::mem::replace(&mut self.judgement, judgement) != judgement
    }

    /// Whether the leaks have changed since the last call.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// All of them, the oldest first.
    pub fn list(&self) -> LeakList {
        let mut leaks: Vec<_> = self.leaks.values().cloned().collect();
        leaks.sort_by_key(|leak| since(leak));
        LeakList { judgement: self.judgement, leaks }
    }

    /// What a later run should know of them.
    pub fn recollections(&self, anchor: &Anchor) -> Vec<Recollection> {
        let recollect = |leak: &Arc<Leak>| Recollection {
            key: leak.key.clone(),
            observed: anchor.boot(leak.observed),
            since_start: leak.since_start,
        };
        self.leaks.values().map(recollect).collect()
    }
}

/// Since when at most.
pub fn since(leak: &Leak) -> WallTime {
    leak.created.unwrap_or(leak.observed).min(leak.observed)
}
