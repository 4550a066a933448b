//! The engine: what happens on a node → what is reported.

mod audits;
mod bounds;
mod causes;
mod events;
mod hangs;
mod late_lists;
mod late_watch;
mod leak_causes;
mod leak_histories;
mod leak_remedies;
mod leaks;
mod lives;
mod losses;
mod orphans;
mod outages;
mod phases;
mod processes;
mod static_pods;
mod traffic;

use crate::random;
use coroner_core::{testkit as node, testkit as world};
