//! What is longer than the agent keeps, and is cut: counted by what it is.

use coroner_core::labels;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

labels! {
    /// What was cut: the label `field` of `coroner_source_truncated_total`.
    pub enum Cut {
        Text = "text",
        Finalizers = "finalizers",
        /// A pod's containers, of one kind, or their statuses.
        Containers = "containers",
        /// The conditions of a pod or node.
        Conditions = "conditions",
        Owners = "owners",
        /// Pods that have ended, of a node that has more than are kept.
        Pods = "pods",
    }
}

/// How much was cut, since a source began.
#[derive(Debug, Default)]
pub struct Cuts([AtomicU64; Cut::ALL.len()]);

impl Cuts {
    /// So many more of this kind.
    pub fn add(&self, cut: Cut, count: u64) {
        if count > 0 {
            self.0[cut as usize].fetch_add(count, Relaxed);
        }
    }

    /// How many of this kind.
    pub fn of(&self, cut: Cut) -> u64 {
        self.0[cut as usize].load(Relaxed)
    }

    /// Cuts a text to so many bytes, at the end of a character.
    pub(crate) fn text(&self, text: &mut String, most: usize) {
        if text.len() > most {
            text.truncate(text.floor_char_boundary(most));
            self.add(Cut::Text, 1);
        }
    }
}
