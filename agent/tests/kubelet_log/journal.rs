//! Files that systemd-journal-remote 252 wrote: 81 lines of a kubelet between those of a runtime, one so long that it
//! is compressed. `fixtures/journal/messages.txt` has the kubelet's.

use coroner::sources::kubelet::fuzzing;
use flate2::read::GzDecoder;
use std::io::Read as _;

const MESSAGES: &str = include_str!("../fixtures/journal/messages.txt");

/// With four bytes per item, and with sixteen.
const FILES: [(&str, &[u8]); 2] = [
    ("compact-zstd", include_bytes!("../fixtures/journal/compact-zstd.journal.gz")),
    ("plain-zstd", include_bytes!("../fixtures/journal/plain-zstd.journal.gz")),
];

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    bytes
}

fn read(bytes: &[u8], since: u64) -> Option<Vec<String>> {
    let lines = fuzzing::journal(tempfile::tempfile().unwrap(), bytes, since)?;
    let text = |line: Option<Vec<u8>>| String::from_utf8(line.expect("it is readable")).unwrap();
    Some(lines.into_iter().map(text).collect())
}

#[test]
fn the_lines_of_the_kubelet_are_read_and_no_other() {
    for (name, packed) in FILES {
        let wanted: Vec<&str> = MESSAGES.lines().collect();
        assert_eq!(read(&unpacked(packed), 0).unwrap(), wanted, "{name}");
    }
}

#[test]
fn reading_begins_at_any_moment() {
    for (name, packed) in FILES {
        let bytes = unpacked(packed);
        let time = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (head, tail) = (time(184), time(192));
        let all: Vec<&str> = MESSAGES.lines().collect();
        let mut last = all.len();
        for part in 0..=20 {
            let some = read(&bytes, head + (tail - head) / 20 * part).unwrap();
            assert!(
                some.len() <= last && all.ends_with(&some.iter().map(|s| &**s).collect::<Vec<_>>()),
                "{name}"
            );
            last = some.len();
        }
        assert!(last < 40, "{name}: {last} of {}", all.len());
        assert!(read(&bytes, tail + 1).unwrap().is_empty(), "{name}");
    }
}

#[test]
fn a_journal_that_grows_gives_each_line_once() {
    for (name, packed) in FILES {
        let whole = unpacked(packed);
        let found = fuzzing::growing_journal(tempfile::tempfile().unwrap(), &whole).unwrap();
        let found: Vec<_> = found.iter().map(|line| str::from_utf8(line).unwrap()).collect();
        assert_eq!(found, MESSAGES.lines().collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn damaged_files_are_refused_or_read_in_part() {
    for (_, packed) in FILES {
        let bytes = unpacked(packed);
        assert!(read(&bytes[..100], 0).is_none());
        let mut seed = 7u32;
        for _ in 0..200 {
            let mut broken = bytes[..300_000].to_vec();
            for _ in 0..8 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (seed >> 8) as usize % broken.len();
                broken[at] = seed as u8;
            }
            fuzzing::journal(tempfile::tempfile().unwrap(), &broken, u64::from(seed));
        }
    }
}
