//! Lines about this life, written so that a signal handler may write them: no allocation, no lock,
//! one write(2) each.

use std::mem::MaybeUninit;

/// What a line tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// Ready to be signalled.
    Start,
    /// The stop signal was taken.
    Term,
    /// The apiserver has answered a call.
    Called,
    /// About to leave by itself.
    Exit,
}

impl Event {
    fn name(self) -> &'static [u8] {
        match self {
            Event::Start => b"start",
            Event::Term => b"term",
            Event::Called => b"called",
            Event::Exit => b"exit",
        }
    }
}

/// Writes one line to stdout. Async-signal-safe; a failed write is ignored, as nobody is left to
/// tell.
pub(crate) fn line(event: Event) {
    // SAFETY: getpid and write are async-signal-safe; the buffer lives on the stack.
    unsafe {
        let mut text = LogLine::new();
        text.format(event, boot_now(), libc::getpid() as u64);
        libc::write(libc::STDOUT_FILENO, text.bytes().as_ptr().cast(), text.bytes().len());
    }
}

/// A line under construction, on the stack. The longest possible one is 74 bytes.
struct LogLine {
    text: [u8; 96],
    length: usize,
}

impl LogLine {
    fn new() -> LogLine {
        LogLine { text: [0; 96], length: 0 }
    }

    fn format(&mut self, event: Event, boot_ns: u64, pid: u64) {
        self.push(b"{\"event\":\"");
        self.push(event.name());
        self.push(b"\",\"boot_ns\":");
        self.push_number(boot_ns);
        self.push(b",\"pid\":");
        self.push_number(pid);
        self.push(b"}\n");
    }

    fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if let Some(place) = self.text.get_mut(self.length) {
                *place = byte;
                self.length += 1;
            }
        }
    }

    fn push_number(&mut self, mut number: u64) {
        let mut digits = [0u8; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.push(&digits[first..]);
    }

    fn bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }
}

/// CLOCK_BOOTTIME now, ns. Async-signal-safe.
pub(crate) fn boot_now() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: room for the one timespec, which all zeros make valid.
    let now = unsafe {
        libc::clock_gettime(libc::CLOCK_BOOTTIME, now.as_mut_ptr());
        now.assume_init()
    };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
