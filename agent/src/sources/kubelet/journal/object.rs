//! The objects of a journal file (<https://systemd.io/JOURNAL_FILE_FORMAT/>), as far as they are needed. The kept
//! crates were not used: `sdjournal` (MIT) reads the tail's whole entry array at every poll and every field of every
//! entry of all units, with a queue that has no bound; `systemd-journal-sdk` is under the GPL.

/// Bytes of the header that are read; older files have fewer, all have these.
pub(super) const HEADER: usize = 208;
/// Bytes of an object's header.
pub(super) const OBJECT_HEADER: u64 = 16;
/// The largest object that is read, bytes: entries have some dozens of fields, messages of interest are short.
pub(super) const MAX_OBJECT: u64 = 64 * 1024;
/// Fields of an entry that are looked at.
pub(super) const MAX_ITEMS: usize = 128;

const KEYED_HASH: u32 = 4;
const XZ: u32 = 1;
const LZ4: u32 = 2;
const ZSTD: u32 = 8;
const COMPACT: u32 = 16;

/// Why a file is not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum JournalError {
    #[error("it is no journal file")]
    NoJournal,
    #[error("it has features that this version does not know (flags {0:#x})")]
    UnknownFlags(u32),
    #[error("it is damaged at byte {0}")]
    Damaged(u64),
}

/// The header, as it was when it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FileHeader {
    pub(super) file_id: [u8; 16],
    pub(super) seqnum_id: [u8; 16],
    /// The journal still writes into it.
    pub(super) is_online: bool,
    /// Items of entries and arrays are of four bytes.
    pub(super) compact: bool,
    pub(super) header_size: u64,
    /// The last object.
    pub(super) tail_object: u64,
    pub(super) entries: u64,
    pub(super) head_seqnum: u64,
    pub(super) entry_array: u64,
    /// µs since the epoch.
    pub(super) tail_realtime: u64,
}

/// A number at this place; 0 beyond the end.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn id_at(bytes: &[u8], at: usize) -> [u8; 16] {
    bytes.get(at..at + 16).and_then(|b| b.try_into().ok()).unwrap_or_default()
}

impl FileHeader {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, JournalError> {
        if bytes.len() < HEADER || !bytes.starts_with(b"LPKSHHRH") {
            return Err(JournalError::NoJournal);
        }
        let flags = u32_at(bytes, 12);
        if flags & !(KEYED_HASH | XZ | LZ4 | ZSTD | COMPACT) != 0 {
            return Err(JournalError::UnknownFlags(flags));
        }
        let header_size = u64_at(bytes, 88);
        if header_size < HEADER as u64 || header_size > MAX_OBJECT || !header_size.is_multiple_of(8)
        {
            return Err(JournalError::Damaged(88));
        }
        Ok(Self {
            file_id: id_at(bytes, 24),
            seqnum_id: id_at(bytes, 72),
            is_online: bytes[16] == 1,
            compact: flags & COMPACT != 0,
            header_size,
            tail_object: u64_at(bytes, 136),
            entries: u64_at(bytes, 152),
            head_seqnum: u64_at(bytes, 168),
            entry_array: u64_at(bytes, 176),
            tail_realtime: u64_at(bytes, 192),
        })
    }
}

/// Kinds of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ObjectKind {
    Data,
    Entry,
    EntryArray,
    Other,
}

/// The header of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ObjectHeader {
    pub(super) kind: ObjectKind,
    pub(super) size: u64,
}

impl ObjectHeader {
    /// `None`: no object.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let kind = match bytes.first()? {
            1 => ObjectKind::Data,
            3 => ObjectKind::Entry,
            6 => ObjectKind::EntryArray,
            2 | 4 | 5 | 7 => ObjectKind::Other,
            _ => return None,
        };
        let size = u64_at(bytes, 8);
        (OBJECT_HEADER..1 << 40).contains(&size).then_some(Self { kind, size })
    }

    /// Where the next object begins, if this one is at `at`.
    pub(super) fn next(&self, at: u64) -> u64 {
        at.saturating_add(self.size).saturating_add(7) & !7
    }
}

/// The payload of a data object: `FIELD=value`, decompressed. `None`: damaged, too long or compressed with XZ, which
/// systemd has not used by default since version 246.
pub(super) fn payload(object: &[u8], compact: bool) -> Option<std::borrow::Cow<'_, [u8]>> {
    let raw = object.get(if compact { 72 } else { 64 }..)?;
    match object.get(1)? & 7 {
        0 => Some(raw.into()),
        2 => {
            let size =
                usize::try_from(u64_at(raw, 0)).ok().filter(|size| *size <= MAX_OBJECT as usize)?;
            lz4_flex::block::decompress(raw.get(8..)?, size).ok().map(Into::into)
        }
        4 => {
            use std::io::Read as _;
            let decoder = ruzstd::decoding::StreamingDecoder::new(raw).ok()?;
            let mut out = Vec::new();
            decoder.take(MAX_OBJECT).read_to_end(&mut out).ok()?;
            Some(out.into())
        }
        _ => None,
    }
}

/// An entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct JournalEntry {
    pub(super) seqnum: u64,
    /// µs since the epoch.
    pub(super) realtime: u64,
    /// µs since the boot, without suspensions.
    pub(super) monotonic: u64,
    pub(super) boot: [u8; 16],
    /// The entry's fields: where their data objects are.
    pub(super) items: Vec<u64>,
}

impl JournalEntry {
    pub(super) fn parse(object: &[u8], compact: bool) -> Option<Self> {
        let items = object.get(64..)?;
        let width = if compact { 4 } else { 16 };
        let offset = |item: &[u8]| if compact { u32_at(item, 0).into() } else { u64_at(item, 0) };
        Some(Self {
            seqnum: u64_at(object, 16),
            realtime: u64_at(object, 24),
            monotonic: u64_at(object, 32),
            boot: id_at(object, 40),
            items: items.chunks_exact(width).take(MAX_ITEMS).map(offset).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(flags: u8, raw: &[u8]) -> Vec<u8> {
        let mut object = vec![0; 64];
        (object[0], object[1]) = (1, flags);
        object.extend_from_slice(raw);
        object
    }

    #[test]
    fn a_payload_is_plain_or_compressed_and_bounded() {
        let text = b"MESSAGE=x".repeat(99);
        assert_eq!(payload(&data(0, &text), false).unwrap(), &text[..]);
        let size = |size: u64| size.to_le_bytes().to_vec();
        let packed = lz4_flex::block::compress(&text);
        let lz4 = data(2, &[size(text.len() as u64), packed.clone()].concat());
        assert_eq!(payload(&lz4, false).unwrap(), &text[..]);
        let too_long = data(2, &[size(MAX_OBJECT + 1), packed].concat());
        assert_eq!(payload(&too_long, false), None);
        assert_eq!(payload(&data(1, &text), false), None, "XZ");
        assert_eq!(payload(&data(4, b"no Zstandard"), false), None);
    }
}
