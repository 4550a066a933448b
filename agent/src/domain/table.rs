//! Hash tables whose order and whose cost are the same in every run: a replay says the same in the
//! same order, and a count of instructions can be repeated.
//!
//! A fixed hasher gives up the defence against chosen keys. Those here are ids that the kernel, the
//! runtime and the apiserver make; no workload chooses its own.

use foldhash::fast::FixedState;
use std::collections::{HashMap, HashSet};

/// A hash map.
pub type Table<K, V> = HashMap<K, V, FixedState>;
/// A hash set.
pub type TableSet<K> = HashSet<K, FixedState>;
