use crate::checks::recorded;
use coroner::sources::kubelet::{LineCounters, LineResult, fuzzing};
use coroner_core::{
    input::{Input, KubeletEvent},
    time::Anchor,
};
use std::fs::File;

/// The kubelet's log, in klog's text, in its JSON, and as journalctl prints it.
pub fn kubelet(bytes: &[u8]) {
    let anchor = Anchor { boot_ns: 90_000_000_000_000_000, wall_ns: 1_795_446_000_000_000_000 };
    let counters = LineCounters::default();
    let events = fuzzing::log(bytes, anchor, &counters);
    let lines = bytes.split(|byte| *byte == b'\n').count() as u64;
    let counted: u64 = LineResult::ALL.iter().map(|result| counters.of(*result)).sum();
    assert!(counted <= lines, "{counted} of {lines} lines");
    for event in events {
        if let KubeletEvent::Entry(entry) = &event {
            assert!(entry.time.0 > 0);
            let texts = [&entry.name, &entry.namespace, &entry.container, &entry.message];
            assert!(texts.into_iter().flatten().all(|text| text.len() <= 253), "{entry:?}");
            assert!(entry.error.as_ref().is_none_or(|error| error.len() <= 300), "{entry:?}");
        }
        recorded(Input::Kubelet(event));
    }
}

/// A file of the systemd journal.
pub fn journal(bytes: &[u8]) {
    let Some(file) = scratch() else { return };
    let since = bytes.get(184..192).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    for line in fuzzing::journal(file, bytes, since).into_iter().flatten().flatten() {
        assert!(line.len() <= 64 * 1024);
    }
}

/// An empty file without a name.
fn scratch() -> Option<File> {
    tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile()).ok()
}
