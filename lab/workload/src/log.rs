//! Lines about this life, written so that a signal handler may write them: no allocation, no lock,
//! one write(2) each.

use coroner_workload::page::boot_now;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_line_fits() {
        let mut line = LogLine::new();
        line.format(Event::Called, u64::MAX, u64::from(u32::MAX));
        assert_eq!(
            std::str::from_utf8(line.bytes()),
            Ok("{\"event\":\"called\",\"boot_ns\":18446744073709551615,\"pid\":4294967295}\n")
        );
    }

    #[test]
    fn zero_has_one_digit() {
        let mut line = LogLine::new();
        line.format(Event::Exit, 0, 1);
        assert_eq!(line.bytes(), b"{\"event\":\"exit\",\"boot_ns\":0,\"pid\":1}\n");
    }
}
