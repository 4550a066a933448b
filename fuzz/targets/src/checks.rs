//! What the fuzz targets share: what must be true of all that is kept or shown.

use coroner_core::{
    input::{Input, Received},
    time::BootTime,
};
use coroner_report::printable::is_hidden;

/// A recording gives back an input that was made of bytes as it was.
pub(crate) fn recorded(input: Input) {
    let received = Received { at: BootTime(1), input };
    let line = serde_json::to_vec(&received).expect("an input can be written");
    let read: Received = serde_json::from_slice(&line).expect("an input can be read");
    assert_eq!(read, received, "{}", String::from_utf8_lossy(&line));
}

/// Nothing in it moves the cursor, or changes how text reads.
pub(crate) fn plain(text: &str) {
    let hidden = text.chars().find(|char| is_hidden(*char) && *char != '\n');
    assert_eq!(hidden, None, "{text:?}");
}

/// Neither a path nor an argument: of a command only the binary's name may be kept.
pub(crate) fn binary(name: &str) {
    assert!(!name.contains(['/', ' ', '\t', '\n']), "more than a binary's name: {name:?}");
}

/// The bytes in pieces, each with its length in `WIDTH` bytes before it; the last may be cut off.
pub(crate) fn pieces<const WIDTH: usize>(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = bytes.split_first_chunk::<WIDTH>()?;
        let len = len.iter().rev().fold(0, |len, byte| len << 8 | usize::from(*byte));
        let (piece, rest) = rest.split_at(rest.len().min(len));
        bytes = rest;
        Some(piece)
    })
}
