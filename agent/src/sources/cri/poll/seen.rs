//! What the last lists held, so that of the next ones only what changed is decoded: a node's
//! sandboxes and containers are the same in nearly every list, and each has some forty strings of
//! labels and annotations, of which six are read.

use super::InvalidItem;
use prost::{
    DecodeError,
    bytes::{Buf as _, Bytes},
    encoding::{DecodeContext, decode_key, skip_field},
};
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
};

/// Items of one kind, by what they were made from.
#[derive(Debug)]
pub(super) struct SeenItems<T> {
    /// Its keys are secret: nobody can make two items that are taken for one.
    hasher: RandomState,
    items: HashMap<u64, T>,
    /// Of the list that is being read.
    next: Option<HashMap<u64, T>>,
}

impl<T> Default for SeenItems<T> {
    fn default() -> Self {
        Self { hasher: RandomState::new(), items: HashMap::new(), next: None }
    }
}

impl<T: Clone> SeenItems<T> {
    /// A list begins. What it does not hold is forgotten at its end.
    pub(super) fn begin(&mut self) {
        self.next = Some(HashMap::with_capacity(self.items.len()));
    }

    /// One item: as it was read before, or else as `read` reads it. What makes no sense is not
    /// remembered.
    pub(super) fn item(
        &mut self,
        item: Bytes,
        read: impl FnOnce(Bytes) -> Result<T, InvalidItem>,
    ) -> Result<T, InvalidItem> {
        let key = self.key(&item);
        let known = match (self.items.remove(&key), &self.next) {
            (Some(known), _) => known,
            // The same twice in one list.
            (None, Some(next)) if next.contains_key(&key) => next[&key].clone(),
            (None, _) => read(item)?,
        };
        self.next.as_mut().unwrap_or(&mut self.items).insert(key, known.clone());
        Ok(known)
    }

    /// The same for equal items in whatever order their fields come: Go's protobuf writes the entries
    /// of a map in another order each time.
    fn key(&self, item: &[u8]) -> u64 {
        fields(item, |field| self.hasher.hash_one(field))
            .unwrap_or_else(|_| self.hasher.hash_one(item))
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

/// The sum over a message's fields, each with its key.
fn fields(message: &[u8], each: impl Fn(&[u8]) -> u64) -> Result<u64, DecodeError> {
    let (mut rest, mut sum) = (message, 0u64);
    while rest.has_remaining() {
        let before = rest;
        let (tag, wire_type) = decode_key(&mut rest)?;
        skip_field(wire_type, tag, &mut rest, DecodeContext::default())?;
        sum = sum.wrapping_add(each(&before[..before.len() - rest.len()]));
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::Labelled;
    use prost::Message as _;

    mod message {
        use std::collections::HashMap;

        /// What an item of a list is like, for a test.
        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct Labelled {
            #[prost(string, tag = "1")]
            pub(super) id: String,
            #[prost(map = "string, string", tag = "6")]
            pub(super) labels: HashMap<String, String>,
        }
    }

    #[test]
    fn the_order_of_a_map_is_no_change_and_its_content_is() {
        let seen = SeenItems::<String>::default();
        let item = |id: &str, labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into()));
            Labelled { id: id.into(), labels: labels.collect() }.encode_to_vec()
        };
        let labels: Vec<(String, String)> =
            (0..20).map(|n| (format!("label-{n}"), n.to_string())).collect();
        let labels: Vec<(&str, &str)> =
            labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        // Each map has an order of its own.
        let orders: Vec<Vec<u8>> = (0..8).map(|_| item("a", &labels)).collect();
        assert!(orders.iter().any(|order| *order != orders[0]));
        assert!(orders.iter().all(|order| seen.key(order) == seen.key(&orders[0])));
        assert_ne!(seen.key(&item("b", &labels)), seen.key(&orders[0]));
        assert_ne!(seen.key(&item("a", &labels[1..])), seen.key(&orders[0]));
        // Values that have changed places.
        let [one, other] = [[("x", "1"), ("y", "2")], [("x", "2"), ("y", "1")]];
        assert_ne!(seen.key(&item("a", &one)), seen.key(&item("a", &other)));
        // What is no message has a key all the same.
        assert_ne!(seen.key(b"a"), seen.key(b"b"));
    }

    /// Plays lists of words; each that is read is noted.
    fn list(seen: &mut SeenItems<String>, most: usize, words: &[&'static str]) -> Vec<String> {
        let mut read = Vec::new();
        seen.begin();
        for word in words {
            let item = seen.item(Bytes::from_static(word.as_bytes()), |_| {
                read.push((*word).to_owned());
                if word.is_empty() { Err(InvalidItem::NoId) } else { Ok((*word).to_owned()) }
            });
            assert_eq!(item.ok().as_deref(), Some(*word).filter(|word| !word.is_empty()));
        }
        seen.end(most);
        read
    }

    #[test]
    fn only_what_changed_is_read() {
        let mut seen = SeenItems::default();
        assert_eq!(list(&mut seen, 9, &["a", "b", "b"]), ["a", "b"]);
        assert_eq!(list(&mut seen, 9, &["b", "a"]), [""; 0]);
        assert_eq!(list(&mut seen, 9, &["a", "c"]), ["c"], "b is gone");
        assert_eq!(list(&mut seen, 9, &["a", "b"]), ["b"]);
    }

    #[test]
    fn nonsense_is_read_each_time() {
        let mut seen = SeenItems::default();
        for _ in 0..2 {
            assert_eq!(list(&mut seen, 9, &[""]), [""]);
        }
    }

    #[test]
    fn a_list_that_broke_off_takes_nothing_away_that_cannot_be_read_again() {
        let mut seen = SeenItems::default();
        list(&mut seen, 9, &["a", "b"]);
        seen.begin();
        assert!(seen.item(Bytes::from_static(b"a"), |_| Err(InvalidItem::NoId)).is_ok());
        assert_eq!(list(&mut seen, 9, &["a", "b"]), ["a"]);
    }

    #[test]
    fn of_too_many_none_is_remembered() {
        let mut seen = SeenItems::default();
        list(&mut seen, 2, &["a", "b", "c"]);
        assert_eq!(list(&mut seen, 2, &["a", "b"]), ["a", "b"]);
        assert_eq!(list(&mut seen, 2, &["a", "b"]), [""; 0]);
    }
}
