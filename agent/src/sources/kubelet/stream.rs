//! Standard input, and what `journalctl -o json`, `-o export` or a plain log writes into it.

use super::{
    journal::{JournalLine, Suspended, UNITS, receipt},
    lines::{Found, Lines},
    parser::time_of,
    reading::{LineCounters, Reading},
    time::{Receipt, zone_around},
};
use coroner_core::time::{Anchor, BootTime, WallTime};
use serde::Deserialize;
use std::io::{self, Read};

/// A line of `journalctl -o json`. Other fields are not kept.
#[derive(Deserialize)]
struct JsonEntry {
    #[serde(rename = "MESSAGE")]
    message: Option<Text>,
    #[serde(rename = "__REALTIME_TIMESTAMP")]
    realtime: String,
    #[serde(rename = "__MONOTONIC_TIMESTAMP")]
    monotonic: String,
    #[serde(rename = "_BOOT_ID")]
    boot: Option<String>,
    #[serde(rename = "_SYSTEMD_UNIT")]
    unit: Option<String>,
}

/// journalctl prints texts that are not UTF-8 as a list of bytes.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Plain(String),
    Bytes(Vec<u8>),
}

/// An entry of `journalctl -o export` on its way.
#[derive(Default)]
struct ExportEntry {
    message: Option<Vec<u8>>,
    realtime: u64,
    monotonic: u64,
    boot: Option<[u8; 16]>,
    unit: Option<String>,
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

/// What is known of the machine that the log is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    /// The two clocks, of one moment.
    pub(super) anchor: Anchor,
    /// How far the boot clock is ahead of the monotonic one.
    pub(super) suspended: Suspended,
    /// The boot; lines of another one are left out.
    pub(super) boot: Option<[u8; 16]>,
    /// The last line is not much older than this.
    pub(super) near: WallTime,
    /// The zone, ns ahead of UTC, where it is known.
    pub(super) zone: Option<i64>,
}

/// A stream of lines: which format they have is seen line by line.
pub(super) struct Stream {
    machine: Machine,
    /// The lines of the stream.
    lines: Lines,
    /// The lines in the messages of a journal.
    messages: Lines,
    export: Option<ExportEntry>,
}

impl Stream {
    pub(super) fn new(machine: Machine) -> Self {
        Self { machine, lines: Lines::default(), messages: Lines::default(), export: None }
    }

    /// Takes a block of the stream.
    pub(super) fn feed(&mut self, block: &[u8], reading: &mut Reading, counters: &LineCounters) {
        let found = self.lines.feed(block);
        self.take_all(&found, reading, counters);
    }

    /// The stream ended.
    pub(super) fn end(&mut self, reading: &mut Reading, counters: &LineCounters) {
        let mut found = self.lines.feed(b"\n");
        found.extend(self.lines.end());
        self.take_all(&found, reading, counters);
        self.finish_export(reading, counters);
        if let Some(line) = self.messages.end() {
            reading.take(&line, &self.plain(), self.now(), counters);
        }
    }

    fn now(&self) -> BootTime {
        BootTime(self.machine.anchor.boot_ns)
    }

    fn plain(&self) -> Receipt {
        let Machine { anchor, near, zone, .. } = self.machine;
        Receipt::File { anchor, near, zone: zone.unwrap_or_default() }
    }

    fn take_all(&mut self, found: &[Found], reading: &mut Reading, counters: &LineCounters) {
        for one in found {
            let Found::Line(line) = one else {
                reading.take(one, &self.plain(), self.now(), counters);
                continue;
            };
            if self.export.is_some() || line.starts_with(b"__CURSOR=") {
                self.export_line(line, reading, counters);
            } else if line.starts_with(b"{\"")
                && memchr::memmem::find(line, b"\"__REALTIME").is_some()
            {
                let entry = serde_json::from_slice::<JsonEntry>(line).ok();
                let export = entry.map(|entry| ExportEntry {
                    message: entry.message.map(|text| match text {
                        Text::Plain(text) => text.into_bytes(),
                        Text::Bytes(bytes) => bytes,
                    }),
                    realtime: entry.realtime.parse().unwrap_or_default(),
                    monotonic: entry.monotonic.parse().unwrap_or_default(),
                    boot: entry.boot.as_deref().and_then(boot_id),
                    unit: entry.unit,
                });
                self.export = export;
                self.finish_export(reading, counters);
            } else {
                reading.take(one, &self.plain(), self.now(), counters);
            }
        }
    }

    /// A line of an entry of `-o export`. Values that are not text are left out: their field has no `=`, and their
    /// lines look like none of those below.
    fn export_line(&mut self, line: &[u8], reading: &mut Reading, counters: &LineCounters) {
        if line.is_empty() {
            self.finish_export(reading, counters);
            return;
        }
        let entry = self.export.get_or_insert_default();
        let text = |name: &[u8]| line.strip_prefix(name).and_then(|text| str::from_utf8(text).ok());
        if let Some(message) = line.strip_prefix(b"MESSAGE=") {
            entry.message = Some(message.to_vec());
        } else if let Some(time) = text(b"__REALTIME_TIMESTAMP=") {
            entry.realtime = time.parse().unwrap_or_default();
        } else if let Some(time) = text(b"__MONOTONIC_TIMESTAMP=") {
            entry.monotonic = time.parse().unwrap_or_default();
        } else if let Some(id) = text(b"_BOOT_ID=") {
            entry.boot = boot_id(id);
        } else if let Some(unit) = text(b"_SYSTEMD_UNIT=") {
            entry.unit = Some(unit.to_owned());
        }
    }

    fn finish_export(&mut self, reading: &mut Reading, counters: &LineCounters) {
        let Some(entry) = self.export.take() else { return };
        let of_a_unit = entry.unit.as_deref().is_none_or(|unit| UNITS.contains(&unit));
        let Some(message) = entry.message.filter(|_| of_a_unit) else { return };
        if entry.boot.zip(self.machine.boot).is_some_and(|(one, other)| one != other) {
            reading.of_another_boot(counters);
            return;
        }
        let boot = entry.boot.unwrap_or_default();
        let (realtime, monotonic) = (entry.realtime, entry.monotonic);
        let line = JournalLine { realtime, monotonic, boot, message: None };
        let receipt = receipt(&line, self.machine.suspended);
        let (mut found, now) = (Vec::new(), self.now());
        self.messages.line(Some(&message), &mut found);
        for one in &found {
            reading.take(one, &receipt, now, counters);
        }
    }
}

/// The zone of a plain log that is about this moment.
pub(super) fn zone_of_log(text: &[u8], moment: WallTime) -> Option<i64> {
    let lines = || text.split(|byte| *byte == b'\n');
    let first = lines().take(64).find_map(time_of)?;
    let last = text.rsplit(|byte| *byte == b'\n').take(64).find_map(time_of)?;
    zone_around(first, last, moment)
}

/// Reads a stream to its end.
pub(super) fn read(
    from: &mut impl Read,
    stream: &mut Stream,
    reading: &mut Reading,
    counters: &LineCounters,
) -> io::Result<()> {
    let mut block = vec![0; 64 * 1024];
    loop {
        match from.read(&mut block) {
            Ok(0) => break,
            Ok(length) => stream.feed(&block[..length], reading, counters),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    stream.end(reading, counters);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::kubelet::{budget::Budget, parser::LineResult};
    use coroner_core::input::KubeletEvent;

    const BOOT: &str = "0123456789abcdef0123456789abcdef";
    const LINE: &str = r#"I1123 14:18:35.558172  1 kubelet.go:1] \"SyncPod enter\" pod=\"a/b\""#;

    /// The boot clock of the entries in a text, in µs.
    fn entries(text: &str, counters: &LineCounters) -> Vec<u64> {
        let anchor = Anchor { boot_ns: 90_000_000_000_000, wall_ns: 1_795_446_000_000_000_000 };
        let (boot, near) = (boot_id(BOOT), WallTime(anchor.wall_ns));
        let suspended = Suspended { ns: 0 };
        let mut stream = Stream::new(Machine { anchor, suspended, boot, near, zone: None });
        let mut reading = Reading::new(Budget::unlimited(), BootTime(0));
        read(&mut text.as_bytes(), &mut stream, &mut reading, counters).unwrap();
        let time = |event| match event {
            KubeletEvent::Entry(entry) => Some(entry.time.0 / 1_000),
            _ => None,
        };
        reading.events(None).into_iter().filter_map(time).collect()
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
    fn journalctls_formats_and_a_plain_log_are_read_together() {
        let counters = LineCounters::default();
        let plain = LINE.replace('\\', "") + "\n";
        let json = |boot, unit| json(boot, unit, &format!("\"{LINE}\""));
        // Received 100 µs after it was written, 5 ms after the boot.
        assert_eq!(entries(&json(BOOT, "k3s.service"), &counters), [4_900]);
        assert_eq!(entries(&export(BOOT), &counters), [4_900]);
        let all = [json(BOOT, "kubelet.service"), plain, export(BOOT)].concat();
        assert_eq!(entries(&all, &counters).len(), 3);
        assert!(entries(&json(BOOT, "ssh.service"), &counters).is_empty());
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
        let text = json(&other, "kubelet.service", "\"x\"") + &export(&other);
        assert!(entries(&text, &counters).is_empty());
        assert_eq!(counters.of(LineResult::OtherBoot), 2);
    }
}
