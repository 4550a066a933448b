//! What the last lists held, so that of the next ones only what changed is decoded: a node's
//! sandboxes and containers are the same in nearly every list, and each has some forty strings of
//! labels and annotations, of which six are read.

use super::Nonsense;
use prost::bytes::Bytes;
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
};

/// Items of one kind, by what they were made from.
#[derive(Debug)]
pub(super) struct Seen<T> {
    /// Its keys are secret: nobody can make two items that are taken for one.
    hasher: RandomState,
    items: HashMap<u64, T>,
    /// Of the list that is being read, if it is to replace all.
    next: Option<HashMap<u64, T>>,
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self { hasher: RandomState::new(), items: HashMap::new(), next: None }
    }
}

impl<T: Clone> Seen<T> {
    /// A list begins. After a full one, what it did not hold is forgotten.
    pub(super) fn begin(&mut self, full: bool) {
        self.next = full.then(|| HashMap::with_capacity(self.items.len()));
    }

    /// One item: as it was read before, or else as `read` reads it. What makes no sense is not
    /// remembered.
    pub(super) fn item(
        &mut self,
        item: Bytes,
        read: impl FnOnce(Bytes) -> Result<T, Nonsense>,
    ) -> Result<T, Nonsense> {
        let key = self.hasher.hash_one(&*item);
        let known = match (self.items.remove(&key), &self.next) {
            (Some(known), _) => known,
            // The same twice in one list.
            (None, Some(next)) if next.contains_key(&key) => next[&key].clone(),
            (None, _) => read(item)?,
        };
        self.next.as_mut().unwrap_or(&mut self.items).insert(key, known.clone());
        Ok(known)
    }

    /// The list is complete. Of more than `most` items none is remembered.
    pub(super) fn end(&mut self, most: usize) {
        if let Some(next) = self.next.take() {
            self.items = next;
        }
        if self.items.len() > most {
            self.items = HashMap::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays lists of words; each that is read is noted.
    fn list(
        seen: &mut Seen<String>,
        full: bool,
        most: usize,
        words: &[&'static str],
    ) -> Vec<String> {
        let mut read = Vec::new();
        seen.begin(full);
        for word in words {
            let item = seen.item(Bytes::from_static(word.as_bytes()), |_| {
                read.push((*word).to_owned());
                if word.is_empty() { Err(Nonsense::NoId) } else { Ok((*word).to_owned()) }
            });
            assert_eq!(item.ok().as_deref(), Some(*word).filter(|word| !word.is_empty()));
        }
        seen.end(most);
        read
    }

    #[test]
    fn only_what_changed_is_read() {
        let mut seen = Seen::default();
        assert_eq!(list(&mut seen, true, 9, &["a", "b", "b"]), ["a", "b"]);
        assert_eq!(list(&mut seen, true, 9, &["b", "a"]), [""; 0]);
        assert_eq!(list(&mut seen, false, 9, &["c"]), ["c"], "of one sandbox");
        assert_eq!(list(&mut seen, false, 9, &["c", "a"]), [""; 0]);
        assert_eq!(list(&mut seen, true, 9, &["a", "c"]), [""; 0], "b is gone");
        assert_eq!(list(&mut seen, true, 9, &["a", "b"]), ["b"]);
    }

    #[test]
    fn nonsense_is_read_each_time() {
        let mut seen = Seen::default();
        for _ in 0..2 {
            assert_eq!(list(&mut seen, true, 9, &[""]), [""]);
        }
    }

    #[test]
    fn a_list_that_broke_off_takes_nothing_away_that_cannot_be_read_again() {
        let mut seen = Seen::default();
        list(&mut seen, true, 9, &["a", "b"]);
        seen.begin(true);
        assert!(seen.item(Bytes::from_static(b"a"), |_| Err(Nonsense::NoId)).is_ok());
        assert_eq!(list(&mut seen, true, 9, &["a", "b"]), ["a"]);
    }

    #[test]
    fn of_too_many_none_is_remembered() {
        let mut seen = Seen::default();
        list(&mut seen, true, 2, &["a", "b", "c"]);
        assert_eq!(list(&mut seen, true, 2, &["a", "b"]), ["a", "b"]);
        assert_eq!(list(&mut seen, true, 2, &["a", "b"]), [""; 0]);
    }
}
