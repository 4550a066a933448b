//! Hash tables whose order and whose cost are the same in every run: a replay says the same in the
//! same order, and a count of instructions can be repeated.
//!
//! A fixed hasher gives up the defence against chosen keys. Those here are ids that the kernel, the
//! runtime and the apiserver make; but for static pods' namespaces and names, and mirrors' UIDs, which
//! are in the hands of whoever writes to the node, nobody chooses one.

use foldhash::fast::FixedState;
use std::collections::{HashMap, HashSet};

/// A hash map.
pub type Table<K, V> = HashMap<K, V, FixedState>;
/// A hash set.
pub type TableSet<K> = HashSet<K, FixedState>;
