//! Hash tables with the same order and cost in every run, so that a replay emits the same outputs in the same
//! order and instruction counts are repeatable.
//!
//! A fixed hasher has no defence against chosen keys. The keys are ids made by the kernel, the runtime and the
//! apiserver. Only the namespaces, names and mirror UIDs of static pods can be chosen, by writing to the node.

use foldhash::fast::FixedState;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::Hash,
};

pub type Table<K, V> = HashMap<K, V, FixedState>;
pub type TableSet<K> = HashSet<K, FixedState>;

/// Removes one value of a key, and the key with its last value.
pub fn remove_from<K: Eq + Hash, V: PartialEq>(table: &mut Table<K, Vec<V>>, key: &K, value: &V) {
    if let Some(values) = table.get_mut(key) {
        values.retain(|other| other != value);
        if values.is_empty() {
            table.remove(key);
        }
    }
}

/// Appends to a bounded list, and returns the oldest entry if the list has no room for it any more.
pub fn push_latest<T>(list: &mut VecDeque<T>, item: T, max: usize) -> Option<T> {
    list.push_back(item);
    if list.len() > max { list.pop_front() } else { None }
}
