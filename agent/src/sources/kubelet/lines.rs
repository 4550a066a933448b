//! Bytes to lines, bounded: a torn last line waits for its end, a line that is too long is left out up to its end,
//! and klog's values of several lines are put together.

/// The longest line that is read, bytes. Longer are patches and statuses, which are not used.
pub(super) const MAX_LINE: usize = 16 * 1024;

/// What was found in the bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// A line, with the lines that continue it.
    Line(Vec<u8>),
    /// A line that is longer than [`MAX_LINE`]: its beginning, which has its message.
    TooLong,
}

/// Puts lines together from blocks of bytes.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The last line, without its end so far.
    torn: Vec<u8>,
    /// The torn line is too long already.
    overlong: bool,
    /// A line whose last value goes on in the next lines.
    open: Option<Vec<u8>>,
}

impl Lines {
    /// Takes the next block and returns the lines that it completes.
    pub(super) fn feed(&mut self, mut block: &[u8]) -> Vec<Found> {
        let mut found = Vec::new();
        while let Some(end) = memchr::memchr(b'\n', block) {
            let (line, rest) = (&block[..end], &block[end + 1..]);
            block = rest;
            if self.overlong || self.torn.len() + line.len() > MAX_LINE {
                self.torn.clear();
                self.overlong = false;
                found.extend(self.open.take().map(Found::Line));
                found.push(Found::TooLong);
            } else if self.torn.is_empty() {
                self.line(line, &mut found);
            } else {
                let mut whole = std::mem::take(&mut self.torn);
                whole.extend_from_slice(line);
                self.line(&whole, &mut found);
            }
        }
        if self.overlong || self.torn.len() + block.len() > MAX_LINE {
            self.torn = Vec::new();
            self.overlong = true;
        } else {
            self.torn.extend_from_slice(block);
        }
        found
    }

    /// Takes a whole line, as the journal has them.
    pub(super) fn line(&mut self, line: &[u8], found: &mut Vec<Found>) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(mut open) = self.open.take() {
            let ends = line.starts_with(b" >");
            if (ends || line.first() == Some(&b'\t')) && open.len() + line.len() < MAX_LINE {
                open.push(b'\n');
                open.extend_from_slice(line);
                self.keep(open, !ends || line.ends_with(b"=<"), found);
                return;
            }
            found.push(Found::Line(open));
        }
        self.keep(line.to_vec(), line.ends_with(b"=<"), found);
    }

    fn keep(&mut self, line: Vec<u8>, is_open: bool, found: &mut Vec<Found>) {
        match is_open {
            true => self.open = Some(line),
            false => found.push(Found::Line(line)),
        }
    }

    /// The line that waits for the next ones, if there is one: nothing comes any more.
    pub(super) fn end(&mut self) -> Option<Found> {
        self.open.take().map(Found::Line)
    }

    /// Leaves out what was begun: what follows is another file, or another part of the file. Returns true if
    /// something was.
    pub(super) fn restart(&mut self) -> bool {
        let begun = !self.torn.is_empty() || self.overlong || self.open.is_some();
        *self = Self::default();
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Found {
        Found::Line(text.into())
    }

    #[test]
    fn a_torn_line_waits_for_its_end() {
        let mut lines = Lines::default();
        assert_eq!(lines.feed(b"one\ntw"), [line("one")]);
        assert_eq!(lines.feed(b""), []);
        assert_eq!(lines.feed(b"o\r\nthree"), [line("two")]);
        assert!(lines.restart() && !lines.restart());
    }

    #[test]
    fn values_of_several_lines_are_put_together() {
        let mut lines = Lines::default();
        let found = lines.feed(b"a err=<\n\tone\n > pod=\"x\"\nb out=<\nc\nd out=<\n\ttwo\n");
        assert_eq!(found, [line("a err=<\n\tone\n > pod=\"x\""), line("b out=<"), line("c")]);
        assert_eq!(lines.end(), Some(line("d out=<\n\ttwo")));
        assert_eq!(lines.end(), None);
    }

    #[test]
    fn a_line_that_is_too_long_costs_nothing_and_ends_at_its_end() {
        let mut lines = Lines::default();
        let block = vec![b'x'; MAX_LINE];
        for _ in 0..9 {
            assert_eq!(lines.feed(&block), []);
            assert!(lines.torn.len() <= MAX_LINE);
        }
        assert_eq!(lines.feed(b"x\nshort\n"), [Found::TooLong, line("short")]);
    }
}
