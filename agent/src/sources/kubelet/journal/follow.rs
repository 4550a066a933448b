//! One journal file, followed. Objects are only ever appended: what is new lies between the last object that was
//! read and the last one of the header, in order, each entry after the fields that are new in it.

use super::object::{
    FileHeader, HEADER, JournalEntry, JournalError, MAX_OBJECT, OBJECT_HEADER, ObjectHeader,
    ObjectKind, payload, u32_at, u64_at,
};
use std::{
    collections::HashMap,
    fs::File,
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
};

/// Bytes of a read.
const BLOCK: usize = 256 * 1024;
/// Bytes of a poll; the rest is read in the next one.
const MAX_POLL: u64 = 32 << 20;
/// Fields whose meaning is remembered.
const MAX_KNOWN: usize = 8_192;
/// Arrays of a file: each is twice as long as the one before.
const MAX_ARRAYS: usize = 64;

/// What journald's own messages have (server_driver_message).
const JOURNALD: &[u8] = b"_TRANSPORT=driver";

/// A line of one of the units, or of journald, as the journal has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct JournalLine {
    /// µs since the epoch, at the receipt.
    pub(crate) realtime: u64,
    /// µs of the monotonic clock.
    pub(crate) monotonic: u64,
    /// The boot, where it is known.
    pub(crate) boot: Option<[u8; 16]>,
    /// The text; `None`: it could not be read.
    pub(crate) message: Option<Vec<u8>>,
    /// journald itself wrote it, and no unit.
    pub(crate) is_journalds: bool,
}

/// What a field of an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FieldIs {
    Unit,
    /// Of journald's own messages. Fields that begin with `_` come from nobody else.
    Journald,
    Message,
    Other,
}

/// A journal file that is followed.
#[derive(Debug)]
pub(crate) struct Follower {
    file: File,
    header: FileHeader,
    units: Vec<Vec<u8>>,
    /// Where the next object begins.
    next: u64,
    /// Where reading began: fields after it were seen.
    began: u64,
    /// What fields are. Those after `began` that are neither unit nor message are left out.
    known: HashMap<u64, FieldIs, foldhash::fast::FixedState>,
    /// The number of the last entry.
    seqnum: Option<u64>,
    /// The last object, which was not read yet when it was seen first.
    waited: u64,
}

/// Why a file is not read on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl Follower {
    /// Opens a file for lines of these units (`kubelet.service`).
    pub(crate) fn open(file: File, units: &[&str]) -> Result<Self, FollowError> {
        let header = read_header(&file)?;
        let units = units.iter().map(|unit| format!("_SYSTEMD_UNIT={unit}").into_bytes()).collect();
        let next = header.header_size;
        let known = HashMap::default();
        Ok(Self { file, units, next, began: next, known, seqnum: None, waited: 0, header })
    }

    /// The file's id.
    pub(crate) fn id(&self) -> [u8; 16] {
        self.header.file_id
    }

    /// Whether it is the file with this device and inode.
    pub(crate) fn is(&self, identity: (u64, u64)) -> bool {
        self.file.metadata().is_ok_and(|found| (found.dev(), found.ino()) == identity)
    }

    /// The last entry, µs since the epoch.
    pub(crate) fn tail_realtime(&self) -> u64 {
        self.header.tail_realtime
    }

    /// Entries that lie between the last one of this file that was read, and the first of the next file. `None`: it
    /// cannot be told.
    pub(crate) fn missing_before(&self, next: &Self) -> Option<u64> {
        let last = self.seqnum?;
        (self.header.seqnum_id == next.header.seqnum_id)
            .then(|| next.header.head_seqnum.saturating_sub(last.saturating_add(1)))
    }

    /// Goes on after the last entry that another reader of this file has read, if it has read any.
    pub(crate) fn resume(&mut self, before: &Self, since: u64) -> Result<(), FollowError> {
        self.seqnum = before.seqnum;
        match before.seqnum {
            // Several entries may have the same time.
            Some(last) => self.leave_out(|entry| u64_at(entry, 16) <= last),
            None => self.seek(since),
        }
    }

    /// Leaves out entries before a moment, µs since the epoch.
    pub(crate) fn seek(&mut self, since: u64) -> Result<(), FollowError> {
        self.leave_out(|entry| u64_at(entry, 24) < since)
    }

    /// Leaves out the first entries, by bisection.
    fn leave_out(&mut self, is_before: impl Fn(&[u8]) -> bool) -> Result<(), FollowError> {
        let (mut arrays, mut before, mut at) = (Vec::new(), 0u64, self.header.entry_array);
        let width = if self.header.compact { 4 } else { 8 };
        while at != 0 && arrays.len() < MAX_ARRAYS && before < self.header.entries {
            let mut head = [0; 24];
            self.file.read_exact_at(&mut head, at)?;
            let object =
                ObjectHeader::parse(&head).filter(|object| object.kind == ObjectKind::EntryArray);
            let object = object.ok_or(JournalError::Damaged(at))?;
            let items = object.size.saturating_sub(24) / width;
            arrays.push((before, at));
            before = before.saturating_add(items);
            at = u64_at(&head, 16);
        }
        let count = self.header.entries.min(before);
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            let at = self.entry_at(&arrays, middle, width)?;
            let mut head = [0; 32];
            self.file.read_exact_at(&mut head, at)?;
            if ObjectHeader::parse(&head).is_none_or(|object| object.kind != ObjectKind::Entry) {
                return Err(JournalError::Damaged(at).into());
            }
            match is_before(&head) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        self.next = if low < count { self.entry_at(&arrays, low, width)? } else { self.end()? };
        self.began = self.next;
        Ok(())
    }

    fn entry_at(&self, arrays: &[(u64, u64)], index: u64, width: u64) -> Result<u64, FollowError> {
        let of = arrays.partition_point(|(first, _)| *first <= index);
        let (first, array) =
            of.checked_sub(1).and_then(|of| arrays.get(of)).copied().unwrap_or_default();
        let mut item = [0; 8];
        let at = array.saturating_add(24).saturating_add((index - first).saturating_mul(width));
        self.file.read_exact_at(&mut item[..usize::try_from(width).unwrap_or(8)], at)?;
        Ok(if width == 4 { u32_at(&item, 0).into() } else { u64_at(&item, 0) })
    }

    /// The end of the last object.
    fn end(&self) -> Result<u64, FollowError> {
        let at = self.header.tail_object;
        if at < self.header.header_size {
            return Ok(self.header.header_size);
        }
        let mut head = [0; 16];
        self.file.read_exact_at(&mut head, at)?;
        let object = ObjectHeader::parse(&head).ok_or(JournalError::Damaged(at))?;
        Ok(object.next(at))
    }

    /// Reads what is new, at most [`MAX_POLL`] bytes of it. Returns true if more is left.
    pub(crate) fn poll(&mut self, lines: &mut Vec<JournalLine>) -> Result<bool, FollowError> {
        self.header = read_header(&self.file)?;
        let tail = self.header.tail_object;
        let mut left = MAX_POLL;
        let (mut block, mut start) = (Vec::new(), 0u64);
        while self.next <= tail && self.next >= self.header.header_size {
            if left == 0 {
                return Ok(true);
            }
            let at = self.next;
            let inside = |block: &[u8], start: u64, size: u64| {
                at >= start && at.saturating_add(size) <= start.saturating_add(block.len() as u64)
            };
            if !inside(&block, start, OBJECT_HEADER) {
                (block, start) = (self.block(at)?, at);
            }
            let object = at_offset(&block, start, at).and_then(ObjectHeader::parse);
            let Some(object) = object else {
                // Reserved and not written yet, if it is the last one.
                return if at == tail { Ok(false) } else { Err(JournalError::Damaged(at).into()) };
            };
            // The header names an object when its space is reserved (journal_file_append_object): the last one may
            // still be written. A field is followed by its entry; an entry is whole at the next poll.
            let may_be_torn = at == tail && self.header.is_online;
            let is_new = self.waited != at;
            if may_be_torn
                && (object.kind == ObjectKind::Data || object.kind == ObjectKind::Entry && is_new)
            {
                self.waited = at;
                return Ok(false);
            }
            if matches!(object.kind, ObjectKind::Data | ObjectKind::Entry)
                && object.size <= MAX_OBJECT
            {
                if !inside(&block, start, object.size) {
                    (block, start) = (self.block(at)?, at);
                }
                let size = usize::try_from(object.size).unwrap_or(usize::MAX);
                let bytes = at_offset(&block, start, at).and_then(|bytes| bytes.get(..size));
                let Some(bytes) = bytes else { return Ok(false) };
                if object.kind == ObjectKind::Data {
                    self.note(at, bytes);
                } else {
                    let entry = JournalEntry::parse(bytes, self.header.compact);
                    let Some(entry) = entry else { return Ok(false) };
                    self.seqnum = Some(entry.seqnum);
                    lines.extend(self.line(entry, &block, start));
                }
            }
            let next = object.next(at);
            left = left.saturating_sub(next - at);
            self.next = next;
        }
        Ok(false)
    }

    fn block(&self, at: u64) -> io::Result<Vec<u8>> {
        let mut block = vec![0; BLOCK];
        let mut length = 0;
        while length < BLOCK {
            match self.file.read_at(&mut block[length..], at + length as u64) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        block.truncate(length);
        Ok(block)
    }

    /// Remembers a new field, if it is one of interest.
    fn note(&mut self, at: u64, object: &[u8]) {
        let is = self.field(object);
        if is != FieldIs::Other {
            self.remember(at, is);
        }
    }

    fn remember(&mut self, at: u64, is: FieldIs) {
        if self.known.len() >= MAX_KNOWN {
            // The units come with every entry and are found again.
            self.known.clear();
            // What is forgotten may be a field that was seen.
            self.began = self.next;
        }
        self.known.insert(at, is);
    }

    fn field(&self, object: &[u8]) -> FieldIs {
        // Only long messages are compressed: no unit's name is. What they begin with is seen when they are read.
        let compressed = object.get(1).is_some_and(|flags| flags & 7 != 0);
        let text = if compressed { payload(object, self.header.compact) } else { None };
        let start = if self.header.compact { 72 } else { 64 };
        let raw = text.as_deref().or(object.get(start..)).unwrap_or_default();
        if raw.starts_with(b"MESSAGE=") {
            FieldIs::Message
        } else if self.units.iter().any(|unit| unit == raw) {
            FieldIs::Unit
        } else if raw == JOURNALD {
            FieldIs::Journald
        } else {
            FieldIs::Other
        }
    }

    /// The line of an entry, if it is of one of the units or of journald.
    fn line(&mut self, entry: JournalEntry, block: &[u8], start: u64) -> Option<JournalLine> {
        let (mut of_a_unit, mut is_journalds, mut message) = (false, false, None);
        for &item in &entry.items {
            let is = match self.known.get(&item) {
                Some(is) => *is,
                None if item >= self.began && item < self.next => FieldIs::Other,
                None => {
                    let is =
                        self.object(item, block, start).map_or(FieldIs::Other, |o| self.field(&o));
                    // A message is of this entry alone.
                    if is != FieldIs::Message {
                        self.remember(item, is);
                    }
                    is
                }
            };
            match is {
                FieldIs::Unit => of_a_unit = true,
                FieldIs::Journald => is_journalds = true,
                FieldIs::Message => message = Some(item),
                FieldIs::Other => {}
            }
        }
        if let Some(item) = message {
            self.known.remove(&item);
        }
        if !of_a_unit && !is_journalds {
            return None;
        }
        // The same text again is the old object, which is not known any more.
        let items = message.map_or(entry.items.clone(), |item| vec![item]);
        let text = items.into_iter().find_map(|item| {
            let object = self.object(item, block, start)?;
            let text = payload(&object, self.header.compact)?;
            text.strip_prefix(b"MESSAGE=").map(<[u8]>::to_vec)
        });
        let JournalEntry { realtime, monotonic, boot, .. } = entry;
        Some(JournalLine { realtime, monotonic, boot: Some(boot), message: text, is_journalds })
    }

    /// A data object, from the block or from the file.
    fn object(&self, at: u64, block: &[u8], start: u64) -> Option<Vec<u8>> {
        let mut head = [0; OBJECT_HEADER as usize];
        let near = at_offset(block, start, at);
        match near.and_then(|bytes| bytes.get(..head.len())) {
            Some(bytes) => head.copy_from_slice(bytes),
            None => self.file.read_exact_at(&mut head, at).ok()?,
        }
        let object = ObjectHeader::parse(&head)?;
        if object.kind != ObjectKind::Data || object.size > MAX_OBJECT {
            return None;
        }
        let size = usize::try_from(object.size).ok()?;
        if let Some(bytes) = near.and_then(|bytes| bytes.get(..size)) {
            return Some(bytes.to_vec());
        }
        let mut bytes = vec![0; size];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }
}

fn at_offset(block: &[u8], start: u64, at: u64) -> Option<&[u8]> {
    block.get(usize::try_from(at.checked_sub(start)?).ok()?..)
}

fn read_header(file: &File) -> Result<FileHeader, FollowError> {
    let mut bytes = [0; HEADER];
    match file.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(JournalError::NoJournal.into())
        }
        Err(error) => Err(error.into()),
        Ok(()) => Ok(FileHeader::parse(&bytes)?),
    }
}
