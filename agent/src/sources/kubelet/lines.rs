//! Bytes to lines, bounded: a torn last line waits for its end, a line that is too long is left out up to its end,
//! and klog's values of several lines are put together.

/// The longest line that is read, bytes. Longer are patches and statuses, which are not used.
pub(super) const MAX_LINE: usize = 16 * 1024;

/// What was found in the bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FoundLine {
    /// A line, with the lines that continue it.
    Line(Vec<u8>),
    /// A line that is longer than [`MAX_LINE`]: its beginning, which has its message.
    TooLong,
}

/// Puts lines together from blocks of bytes. What a container prints reaches the log as a value of several lines, so
/// no part of such a value may ever be taken for a line of the kubelet.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The last line, without its end so far; of one that is too long the first two bytes.
    torn: Vec<u8>,
    /// The torn line is too long already.
    overlong: bool,
    /// A line whose last value goes on in the next lines.
    open: Option<FoundLine>,
    /// The journal may have cut the last line: what comes next is its rest.
    cut: bool,
}

impl Lines {
    /// Takes the next block and returns the lines that it completes.
    pub(super) fn feed(&mut self, mut block: &[u8]) -> Vec<FoundLine> {
        let mut found = Vec::new();
        while let Some(end) = memchr::memchr(b'\n', block) {
            self.grow(&block[..end]);
            block = &block[end + 1..];
            let line = std::mem::take(&mut self.torn);
            let overlong = std::mem::take(&mut self.overlong);
            self.add(line, overlong, &mut found);
        }
        self.grow(block);
        found
    }

    fn grow(&mut self, bytes: &[u8]) {
        if self.overlong || self.torn.len() + bytes.len() > MAX_LINE {
            self.overlong = true;
            self.torn.extend_from_slice(&bytes[..bytes.len().min(2)]);
            self.torn.truncate(2);
        } else {
            self.torn.extend_from_slice(bytes);
        }
    }

    /// Takes a whole line, as the journal has them; `None`: it is too long to be read. journald cuts a line at its
    /// LineMax (48 KiB unless configured), and the rest is a line of its own: it is left out.
    pub(super) fn line(&mut self, line: Option<&[u8]>, found: &mut Vec<FoundLine>) {
        let overlong = line.is_none_or(|line| line.len() > MAX_LINE);
        if !std::mem::replace(&mut self.cut, overlong) {
            let kept = line.unwrap_or_default();
            self.add(kept[..kept.len().min(MAX_LINE)].to_vec(), overlong, found);
        }
    }

    fn add(&mut self, mut line: Vec<u8>, overlong: bool, found: &mut Vec<FoundLine>) {
        if !overlong && line.last() == Some(&b'\r') {
            line.pop();
        }
        let opens = !overlong && line.ends_with(b"=<");
        let ends = line.starts_with(b" >");
        let continues = ends || line.first() == Some(&b'\t');
        let (line, goes_on) = match self.open.take() {
            Some(open) if continues => match open {
                FoundLine::Line(mut text) if !overlong && text.len() + line.len() < MAX_LINE => {
                    text.push(b'\n');
                    text.extend_from_slice(&line);
                    (FoundLine::Line(text), !ends || opens)
                }
                _ => (FoundLine::TooLong, !ends || opens),
            },
            open => {
                found.extend(open);
                (if overlong { FoundLine::TooLong } else { FoundLine::Line(line) }, opens)
            }
        };
        match goes_on {
            true => self.open = Some(line),
            false => found.push(line),
        }
    }

    /// The line that waits for the next ones, if there is one: nothing comes any more.
    pub(super) fn end(&mut self) -> Option<FoundLine> {
        self.open.take()
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

    fn line(text: &str) -> FoundLine {
        FoundLine::Line(text.into())
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
        assert_eq!(lines.feed(b"x\nshort\n"), [FoundLine::TooLong, line("short")]);
    }

    #[test]
    fn a_value_that_is_too_long_is_left_out_to_its_end() {
        let long = "\tx".repeat(MAX_LINE);
        let many = "\tx\n".repeat(MAX_LINE);
        for value in [format!("{long}\n"), many] {
            let mut lines = Lines::default();
            let text = format!("a out=<\n{value}\ty]: b\n > pod=\"p\"\nc\n");
            let found: Vec<_> = text.as_bytes().chunks(999).flat_map(|b| lines.feed(b)).collect();
            assert_eq!(found, [FoundLine::TooLong, line("c")]);
        }
    }

    #[test]
    fn the_rest_of_a_line_that_the_journal_cut_is_no_line() {
        let long = vec![b'\t'; 3 * MAX_LINE];
        for (first, cut) in [(None, Some(&*long)), (Some("a out=<"), Some(&*long)), (None, None)] {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            first.into_iter().for_each(|first| lines.line(Some(first.as_bytes()), &mut found));
            for text in [cut, Some(b"forged"), Some(b"b")] {
                lines.line(text, &mut found);
            }
            assert_eq!(found, [FoundLine::TooLong, line("b")]);
        }
    }
}
