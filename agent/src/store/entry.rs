//! An item of a list as readers of the list see it: its place, and when it changed.

use std::sync::Arc;

/// An item of a list. Each change of the list has the next number, so that a reader can go on where it was.
#[derive(Clone, Debug)]
pub struct Entry<T> {
    /// The change that added the item: the order of the list.
    pub number: u64,
    /// The change that made it what it is.
    pub version: u64,
    pub item: Arc<T>,
}

impl<T> Entry<T> {
    /// An item that was added by this change.
    pub fn new(number: u64, item: impl Into<Arc<T>>) -> Self {
        Self { number, version: number, item: item.into() }
    }
}
