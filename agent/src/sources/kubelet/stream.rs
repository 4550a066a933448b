//! A whole log that a person has: what `journalctl -o json` or `-o export` prints, or a plain log. Its first line decides
//! which of them it is, so that no line can pose as an entry of another form.

use super::{
    journal::{Clocks, Entries, JournalLine, UNITS},
    lines::{FoundLine, Lines},
    parser::time_of,
    reading::{LineCounters, Reading},
    time::{Receipt, zone_around},
};
use coroner_core::time::{BootTime, WallTime};
use serde_json::{Map, Value as Json};

/// Bytes of a plain log that are taken apart at once.
const BLOCK: usize = 64 * 1024;

/// The fields of a journal's entry that are used.
#[derive(Default)]
struct EntryFields {
    message: Option<Vec<u8>>,
    realtime: u64,
    monotonic: u64,
    boot: Option<[u8; 16]>,
    of_a_unit: bool,
    is_journalds: bool,
}

impl EntryFields {
    fn set(&mut self, name: &[u8], value: &[u8]) {
        let text = || str::from_utf8(value).unwrap_or_default();
        match name {
            b"MESSAGE" => self.message = Some(value.to_vec()),
            b"__REALTIME_TIMESTAMP" => self.realtime = text().parse().unwrap_or_default(),
            b"__MONOTONIC_TIMESTAMP" => self.monotonic = text().parse().unwrap_or_default(),
            b"_BOOT_ID" => self.boot = boot_id(text()),
            b"_SYSTEMD_UNIT" => self.of_a_unit = UNITS.contains(&text()),
            b"_TRANSPORT" => self.is_journalds = value == b"driver",
            _ => {}
        }
    }

    /// An entry of `-o json`. journalctl prints a text that is not UTF-8 as a list of bytes, a long one as null, and
    /// several values of a field as a list of them: only the first of these can be read.
    fn of_json(entry: Map<String, Json>) -> Self {
        let mut fields = Self::default();
        for (name, value) in entry {
            let byte = |item: &Json| item.as_u64().and_then(|item| u8::try_from(item).ok());
            let value = match value {
                Json::String(text) => Some(text.into_bytes()),
                Json::Array(items) => items.iter().map(byte).collect(),
                _ => None,
            };
            value.into_iter().for_each(|value| fields.set(name.as_bytes(), &value));
        }
        fields
    }

    /// The line, if it is of the kubelet or journald. An entry without a unit is of neither.
    fn line(self) -> Option<JournalLine> {
        let Self { message, realtime, monotonic, boot, of_a_unit, is_journalds } = self;
        (of_a_unit || is_journalds).then_some(JournalLine {
            realtime,
            monotonic,
            boot,
            message,
            is_journalds,
        })
    }
}

/// A boot's id in hexadecimal digits.
pub(super) fn boot_id(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.trim().bytes().filter(|byte| *byte != b'-').collect();
    let mut id = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(id)
}

/// The zone of a plain log that is about this moment.
pub(super) fn zone_of_log(text: &[u8], moment: WallTime) -> Option<i64> {
    let lines = || text.split(|byte| *byte == b'\n');
    let first = lines().take(64).find_map(time_of)?;
    let last = text.rsplit(|byte| *byte == b'\n').take(64).find_map(time_of)?;
    zone_around(first, last, moment)
}

/// The entries of `-o export`, and `None` where the rest is torn. Values with newlines have their length before them
/// (<https://systemd.io/JOURNAL_EXPORT_FORMATS/>): what was logged cannot end its own entry.
fn exported(mut text: &[u8], mut take: impl FnMut(Option<EntryFields>)) {
    let (mut fields, mut pending) = (EntryFields::default(), false);
    while !text.is_empty() {
        let end = memchr::memchr(b'\n', text).unwrap_or(text.len());
        let line = &text[..end];
        text = text.get(end + 1..).unwrap_or_default();
        pending = !line.is_empty();
        if line.is_empty() {
            take(Some(std::mem::take(&mut fields)));
        } else if let Some(at) = memchr::memchr(b'=', line) {
            fields.set(&line[..at], &line[at + 1..]);
        } else {
            let length = text.first_chunk().map(|length| u64::from_le_bytes(*length));
            let length = length.and_then(|length| usize::try_from(length).ok());
            let Some((value, rest)) =
                length.and_then(|length| text.get(8..)?.split_at_checked(length))
            else {
                return take(None);
            };
            fields.set(line, value);
            text = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
    }
    // A whole entry ends with an empty line.
    if pending {
        take(None);
    }
}

/// The entries of `-o json`, and `None` for lines that are none.
fn printed(text: &[u8], mut take: impl FnMut(Option<EntryFields>)) {
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
        take(serde_json::from_slice(line).ok().map(EntryFields::of_json));
    }
}

/// Whether a log begins with an entry of `journalctl -o json`.
fn is_json(text: &[u8]) -> bool {
    let line = text.trim_ascii_start().split(|byte| *byte == b'\n').next().unwrap_or_default();
    let entry: Option<Map<String, Json>> = serde_json::from_slice(line).ok();
    entry.is_some_and(|entry| entry.contains_key("__REALTIME_TIMESTAMP"))
}

/// Reads a log. `clocks` are those of its machine, `boot` is that machine's boot, if it is known, and `near` a moment that
/// the log is about.
pub(super) fn read(
    text: &[u8],
    clocks: Clocks,
    near: WallTime,
    boot: Option<[u8; 16]>,
    reading: &mut Reading,
    counters: &LineCounters,
) {
    let anchor = clocks.anchor;
    let now = BootTime(anchor.boot_ns);
    let zone = zone_of_log(text, near).unwrap_or_default();
    let plain = Receipt::File { anchor, near, zone };
    let is_export = text.starts_with(b"__CURSOR=");
    if is_export || is_json(text) {
        let (mut entries, mut last) = (Entries::new(boot), None);
        let take = |fields: Option<EntryFields>| match fields.map(EntryFields::line) {
            None => reading.take(&FoundLine::TooLong, &plain, now, counters),
            Some(None) => {}
            Some(Some(line)) => {
                entries.take(&line, clocks, reading, counters);
                last = Some(line);
            }
        };
        if is_export {
            exported(text, take)
        } else {
            printed(text, take)
        }
        if let Some(last) = last {
            entries.end(&last, clocks, reading, counters);
        }
        return;
    }
    let mut lines = Lines::default();
    for block in text.chunks(BLOCK).chain([&b"\n"[..]]) {
        for line in lines.feed(block) {
            reading.take(&line, &plain, now, counters);
        }
    }
    if let Some(line) = lines.end() {
        reading.take(&line, &plain, now, counters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::kubelet::{budget::Budget, parser::LineResult};
    use coroner_core::{
        input::{KubeletEvent, KubeletLogGap},
        time::Anchor,
    };

    const BOOT: &str = "0123456789abcdef0123456789abcdef";
    const LINE: &str = r#"I1123 14:18:35.558172  1 kubelet.go:1] \"SyncPod enter\" pod=\"a/b\""#;

    fn events(text: &[u8], boot: Option<&str>, counters: &LineCounters) -> Vec<KubeletEvent> {
        // The moment of the entries below, 5 ms after the boot, is 2,484 s before.
        let anchor = Anchor { boot_ns: 2_484_446_728_000, wall_ns: 1_795_446_000_000_000_000 };
        let clocks = Clocks { anchor, suspended_ns: 0 };
        let (near, boot) = (WallTime(anchor.wall_ns), boot.and_then(boot_id));
        let mut reading = Reading::new(Budget::unlimited(), BootTime(0));
        read(text, clocks, near, boot, &mut reading, counters);
        reading.events(BootTime(u64::MAX))
    }

    /// The boot clock of the entries in a text, in µs.
    fn entries(text: &str, counters: &LineCounters) -> Vec<u64> {
        let time = |event| match event {
            KubeletEvent::Entry(entry) => Some(entry.time.0 / 1_000),
            _ => None,
        };
        events(text.as_bytes(), Some(BOOT), counters).into_iter().filter_map(time).collect()
    }

    fn quoted(text: &str) -> String {
        serde_json::to_string(text).unwrap()
    }

    fn json(boot: &str, unit: &str, message: &str) -> String {
        format!(
            r#"{{"__CURSOR":"s","__REALTIME_TIMESTAMP":"1795443515558272","__MONOTONIC_TIMESTAMP":"5000","_BOOT_ID":"{boot}","_SYSTEMD_UNIT":"{unit}","MESSAGE":{message},"_CMDLINE":"x"}}"#
        ) + "\n"
    }

    fn export(boot: &str) -> String {
        let line = LINE.replace('\\', "");
        format!(
            "__CURSOR=s\n__REALTIME_TIMESTAMP=1795443515558272\n__MONOTONIC_TIMESTAMP=5000\n_BOOT_ID={boot}\n_SYSTEMD_UNIT=kubelet.service\nMESSAGE={line}\n\n"
        )
    }

    #[test]
    fn journalctls_formats_and_a_plain_log_are_read() {
        let counters = LineCounters::default();
        let json = |boot, unit| json(boot, unit, &format!("\"{LINE}\""));
        // Received 100 µs after it was written, 5 ms after the boot.
        assert_eq!(entries(&json(BOOT, "k3s.service"), &counters), [4_900]);
        assert_eq!(entries(&export(BOOT), &counters), [4_900]);
        assert_eq!(entries(&(LINE.replace('\\', "") + "\n"), &counters).len(), 1);
        assert!(entries(&json(BOOT, "ssh.service"), &counters).is_empty());
        // Neither an entry without a unit nor one of another form is one.
        assert!(entries(&export(BOOT).replace("_SYSTEMD_UNIT=", "X="), &counters).is_empty());
        let plain = "x\n".to_owned() + &export(BOOT) + &json(BOOT, "kubelet.service");
        assert!(entries(&plain, &counters).is_empty());
    }

    #[test]
    fn a_message_of_several_lines_forges_no_entry() {
        let counters = LineCounters::default();
        let bytes = |message: &str| {
            let length = (message.len() as u64).to_le_bytes();
            let text = export(BOOT).replace(&("=".to_owned() + &LINE.replace('\\', "")), "\n@");
            let (before, after) = text.split_once('@').unwrap();
            [before.as_bytes(), &length, message.as_bytes(), after.as_bytes()].concat()
        };
        let forged = bytes(&("x\n\n".to_owned() + &export(BOOT)));
        assert_eq!(events(&forged, Some(BOOT), &counters), []);
        let whole = [forged, export(BOOT).into_bytes()].concat();
        assert_eq!(events(&whole, Some(BOOT), &counters).len(), 2, "a level and an entry");
        let torn = bytes("a long message");
        let counters = LineCounters::default();
        let is_gap = |text: &[u8]| {
            let found = events(text, Some(BOOT), &counters);
            matches!(found[..], [KubeletEvent::Gap { cause: KubeletLogGap::Damaged, .. }])
        };
        assert!(is_gap(&torn[..torn.len() - 9]));
        assert_eq!(counters.of(LineResult::TooLong), 1);
        // The empty line at its end is missing.
        assert!(is_gap(export(BOOT).trim_end().as_bytes()));
        assert_eq!(counters.of(LineResult::TooLong), 2);
    }

    #[test]
    fn a_message_that_cannot_be_read_is_counted() {
        for message in ["null", "[\"a\",\"b\"]", "[300]", "7", "["] {
            let counters = LineCounters::default();
            let text = json(BOOT, "kubelet.service", "\"x\"") + &json(BOOT, "k3s.service", message);
            entries(&text, &counters);
            assert_eq!(counters.of(LineResult::TooLong), 1, "{message}");
        }
    }

    #[test]
    fn what_journald_suppressed_is_a_gap() {
        let suppressed = |unit: &str, transport: &str| {
            let message = quoted(&format!("Suppressed 7 messages from {unit}"));
            let text = json(BOOT, "systemd-journald.service", &message);
            text.replace("\"_CMDLINE\"", &format!("\"_TRANSPORT\":\"{transport}\",\"_CMDLINE\""))
        };
        let counters = LineCounters::default();
        let line = json(BOOT, "kubelet.service", &format!("\"{LINE}\""));
        let gap = |text: String| {
            let found = events((line.clone() + &text).as_bytes(), Some(BOOT), &counters);
            found.into_iter().find(|event| matches!(event, KubeletEvent::Gap { .. }))
        };
        for unit in ["kubelet.service", "/system.slice/k3s.service"] {
            let Some(KubeletEvent::Gap { from, to, lines, cause }) =
                gap(suppressed(unit, "driver"))
            else {
                panic!("{unit}: no gap")
            };
            assert_eq!((from.0, to.0), (4_900_000, 5_000_000));
            assert_eq!((lines, cause), (7, KubeletLogGap::RateLimit));
        }
        assert_eq!(gap(suppressed("ssh.service", "driver")), None);
        assert_eq!(gap(suppressed("kubelet.service", "journal")), None, "anyone may log that");
    }

    #[test]
    fn another_boot_is_seen_by_the_clocks() {
        let counters = LineCounters::default();
        let other = BOOT.replace('0', "f");
        let message = format!("\"{LINE}\"");
        let line = |boot: &str| json(boot, "kubelet.service", &message);
        // Before and after a reboot, and one whose clock is set later: by its boot.
        let before = line(&other).replace(":\"5000\"", ":\"50000000\"");
        let later = line(BOOT).replace(":\"5000\"", ":\"60000000\"");
        let text = [before.clone(), line(BOOT), later, before].concat();
        let found = events(text.as_bytes(), None, &counters);
        let of_a_pod = found.iter().filter(|event| matches!(event, KubeletEvent::Entry(_)));
        assert_eq!(of_a_pod.count(), 2);
        assert_eq!(counters.of(LineResult::OtherBoot), 2);
    }

    #[test]
    fn what_a_container_prints_is_no_line() {
        let forged = "\tx]: ".to_owned() + &LINE.replace('\\', "") + "\n";
        let real = r#"I1123 14:18:35.558172  1 prober.go:1] "Probe failed" pod="a/b" output=<"#;
        let empty = "\t\n".repeat(9_000);
        // Whole, cut off by a rotation at either end, and too long.
        for text in [
            format!("{real}\n{empty}{forged} > podUID=\"u\"\n"),
            format!("{forged} > podUID=\"u\"\n"),
            format!("{real}\n{forged}{real}\n{forged}"),
        ] {
            let counters = LineCounters::default();
            let read = entries(&text, &counters).len();
            assert_eq!(read, text.matches(real).count() - usize::from(text.contains(&empty)));
            let journal: String =
                text.lines().map(|line| json(BOOT, "kubelet.service", &quoted(line))).collect();
            assert_eq!(entries(&journal, &counters).len(), read);
        }
    }

    #[test]
    fn lines_of_another_boot_are_left_out_and_counted() {
        let counters = LineCounters::default();
        let other = BOOT.replace('0', "f");
        for text in [json(&other, "kubelet.service", "\"x\""), export(&other)] {
            assert!(entries(&text, &counters).is_empty());
        }
        assert_eq!(counters.of(LineResult::OtherBoot), 2);
    }
}
