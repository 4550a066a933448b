//! The two kinds of values that have bytes of their own: strings and words.

/// A string that is being copied, as JSON: what is escaped stays so.
#[derive(Debug)]
pub(super) struct Text {
    /// So many more bytes are taken.
    left: usize,
    counts: bool,
    is_cut: bool,
    /// The escape sequence that is being read.
    escape: Vec<u8>,
    /// Where the string begins.
    from: usize,
    /// The last thing taken is the first half of a character beyond U+FFFF.
    ends_in_half: bool,
}

impl Text {
    pub(super) fn begin(most: usize, counts: bool, out: &mut Vec<u8>) -> Self {
        out.push(b'"');
        let escape = Vec::new();
        Self { left: most, counts, is_cut: false, escape, from: out.len(), ends_in_half: false }
    }

    /// Whether bytes that are neither a quote nor a backslash stand for themselves here.
    pub(super) fn takes_plain(&self) -> bool {
        self.escape.is_empty()
    }

    /// Bytes that stand for themselves.
    pub(super) fn plain(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if bytes.is_empty() || self.is_cut {
            return;
        }
        let taken = bytes.len().min(self.left);
        out.extend_from_slice(&bytes[..taken]);
        self.left -= taken;
        self.is_cut = taken < bytes.len();
        self.ends_in_half &= taken == 0;
    }

    /// One byte. `true`: the string is complete.
    pub(super) fn step(&mut self, byte: u8, out: &mut Vec<u8>) -> Result<bool, ()> {
        match (self.escape.len(), byte) {
            (0, b'"') => {
                self.finish(out);
                return Ok(true);
            }
            (0, b'\\') => self.escape.push(byte),
            (0, _) => self.plain(&[byte], out),
            (1, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.escape.push(byte);
                self.escaped(out);
            }
            (1, b'u') => self.escape.push(byte),
            (2..=5, _) if byte.is_ascii_hexdigit() => {
                self.escape.push(byte);
                if self.escape.len() == 6 {
                    self.escaped(out);
                }
            }
            _ => return Err(()),
        }
        Ok(false)
    }

    /// It was longer than is kept, and that counts.
    pub(super) fn was_cut(&self) -> bool {
        self.is_cut && self.counts
    }

    fn escaped(&mut self, out: &mut Vec<u8>) {
        if self.is_cut || self.escape.len() > self.left {
            self.is_cut = true;
        } else {
            out.extend_from_slice(&self.escape);
            self.left -= self.escape.len();
            let high = [b'8', b'9', b'a', b'b', b'A', b'B'];
            self.ends_in_half = self.escape.len() == 6
                && matches!(self.escape[2], b'd' | b'D')
                && high.contains(&self.escape[3]);
        }
        self.escape.clear();
    }

    /// What was cut within a character ends before it.
    fn finish(&mut self, out: &mut Vec<u8>) {
        if self.is_cut {
            if self.ends_in_half {
                out.truncate(out.len() - 6);
            }
            if let Err(error) = std::str::from_utf8(&out[self.from..])
                && error.error_len().is_none()
            {
                out.truncate(self.from + error.valid_up_to());
            }
        }
        out.push(b'"');
    }
}

/// A number, `true`, `false` or `null`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    bytes: [u8; Self::LONGEST],
    len: usize,
}

/// What a word is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WordKind {
    Null,
    Bool,
    Number,
}

impl Token {
    /// The longest number that is taken: those that are wanted have 20 digits.
    pub(super) const LONGEST: usize = 32;

    pub(super) fn begin(byte: u8) -> Option<Self> {
        let mut token = Self { bytes: [0; Self::LONGEST], len: 0 };
        token.takes(byte).then_some(token)
    }

    /// Whether the byte belongs to it; then it has it now.
    pub(super) fn takes(&mut self, byte: u8) -> bool {
        let belongs = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
        if belongs {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
            }
            self.len = (self.len + 1).min(Self::LONGEST + 1);
        }
        belongs
    }

    /// `None`: no word of JSON.
    pub(super) fn kind(&self) -> Option<WordKind> {
        match self.text() {
            b"null" => Some(WordKind::Null),
            b"true" | b"false" => Some(WordKind::Bool),
            [b'-' | b'0'..=b'9', ..] => Some(WordKind::Number),
            _ => None,
        }
    }

    /// None of it is missing.
    pub(super) fn is_whole(&self) -> bool {
        self.len <= Self::LONGEST
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.bytes[..self.len.min(Self::LONGEST)]
    }
}
