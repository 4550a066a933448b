//! JSON from outside, reduced while it is read: what is wanted of a document is copied, as far as its
//! limits allow, and the rest is passed over, byte by byte as it arrives. So neither the length of a
//! document nor the depth of what nobody wants costs memory, and what is left has a size that can be
//! computed ([`Keep::longest`]).
//!
//! serde alone does not do that: serde_json collects a string before anybody can refuse it, has no limit
//! for lists, needs the whole text in one piece, and one field of a wrong type ends the list that it is in.

mod text;

#[cfg(test)]
mod tests;

use crate::sources::cut::{Cut, Cuts};
use text::{Text, Token, WordKind};

/// The most nesting that a [`Keep`] has.
const MAX_DEPTH: usize = 16;
/// The longest name that a [`Keep`] has.
const MAX_NAME: usize = 48;

/// What is kept of a value. `null` is kept in place of anything.
#[derive(Debug)]
pub(crate) enum Keep {
    /// A string, as far as so many bytes of its JSON go. Beyond them it is cut, and counted.
    Text(usize),
    /// The same of a string of which only the beginning matters: not counted.
    Head(usize),
    /// A number.
    Number,
    /// `true` or `false`.
    Bool,
    /// That there is an object: `{}`.
    Presence,
    /// Of an object these members, each once.
    Object(&'static [(&'static str, Keep)]),
    /// Of a list the first so many items. What is beyond them is counted.
    List(usize, Cut, &'static Keep),
    /// Of a list the first item; nobody wants the others.
    First(&'static Keep),
    /// All items of a list, handed out one by one ([`JsonEvent::Item`]).
    Each(&'static Keep),
}

impl Keep {
    /// The most bytes of JSON that are left of a value.
    pub(crate) const fn longest(&self) -> usize {
        match self {
            Self::Text(most) | Self::Head(most) => *most + 2,
            Self::Number | Self::Bool => Token::LONGEST,
            Self::Presence => "null".len(),
            Self::Object(fields) => {
                let (mut sum, mut at) = (2, 0);
                while at < fields.len() {
                    sum += fields[at].0.len() + "\"\":,".len() + fields[at].1.longest();
                    at += 1;
                }
                sum
            }
            Self::List(most, _, of) => 2 + *most * (of.longest() + 1),
            Self::First(of) => 2 + of.longest(),
            Self::Each(_) => 2,
        }
    }
}

/// The text is no JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid JSON at byte {at}")]
pub(crate) struct Malformed {
    /// Where it ceases to be. Nothing of the text itself is told.
    pub(crate) at: u64,
}

/// What was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum JsonEvent {
    /// An item of the list of which each item is wanted.
    Item(Reduced),
    /// The document, without those items. What follows is another one.
    End(Reduced),
}

/// What is left of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reduced {
    /// JSON.
    pub(crate) json: Vec<u8>,
    /// Everything wanted was of its kind. What was not is `null`.
    pub(crate) is_sound: bool,
}

impl Reduced {
    /// As a type that understands JSON; `None`: it makes no sense as that.
    pub(crate) fn decode<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.json).ok()
    }
}

/// Reads documents of one kind, one after the other.
#[derive(Debug)]
pub(crate) struct DocumentReader {
    shape: &'static Keep,
    state: ReaderState,
    /// The objects and lists that are open and wanted.
    open: Vec<Frame>,
    /// What is left so far.
    out: Vec<u8>,
    /// Where the item begins that is being read, and whether all before it was sound.
    item: Option<(usize, bool)>,
    is_sound: bool,
    name: Name,
    read: u64,
    cuts: [u64; Cut::ALL.len()],
}

#[derive(Clone, Copy, Debug)]
enum Frame {
    Object { fields: &'static [(&'static str, Keep)], seen: u64 },
    List { of: &'static Keep, most: usize, cut: Option<Cut>, len: usize },
    Each { of: &'static Keep },
}

#[derive(Debug)]
enum ReaderState {
    /// A value comes. `None`: nobody wants it.
    Value(Option<&'static Keep>),
    /// An item or the end of a list comes.
    FirstItem,
    /// A name or the end of an object comes.
    FirstName,
    /// A name comes.
    Name,
    /// Within a name.
    InName { escaped: bool },
    /// A colon comes.
    Colon,
    /// A comma or an end comes.
    After,
    /// Within a string that is kept.
    Text(Text),
    /// Within a number or word.
    Token(Token, Option<&'static Keep>),
    /// Within what nobody wants: how many objects and lists are open, and whether this is a string.
    Skip { depth: u64, string: Option<Escape> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Escape {
    No,
    Next,
}

/// A name as it was read; one that is longer than any that is wanted, or written with escapes (Go
/// writes none that is wanted so), is nobody's.
#[derive(Debug, Default)]
struct Name {
    text: Vec<u8>,
    is_known: bool,
}

impl DocumentReader {
    /// Of documents of this shape.
    pub(crate) fn new(shape: &'static Keep) -> Self {
        Self {
            shape,
            state: ReaderState::Value(Some(shape)),
            open: Vec::with_capacity(MAX_DEPTH),
            out: Vec::new(),
            item: None,
            is_sound: true,
            name: Name::default(),
            read: 0,
            cuts: [0; Cut::ALL.len()],
        }
    }

    /// Counts what was cut since the last call.
    pub(crate) fn count_cuts(&mut self, into: &Cuts) {
        for (cut, count) in Cut::ALL.iter().copied().zip(std::mem::take(&mut self.cuts)) {
            into.add(cut, count);
        }
    }

    /// Whether a document has begun and not ended.
    pub(crate) fn is_within(&self) -> bool {
        !self.open.is_empty() || !matches!(self.state, ReaderState::Value(_))
    }

    /// Takes what it can of `bytes`, up to the next event. `None`: all is taken, and more must come.
    ///
    /// # Errors
    ///
    /// This is no JSON. There is no going on after that.
    pub(crate) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<JsonEvent>, Malformed> {
        while let Some(byte) = bytes.first().copied() {
            let (taken, event) = match self.in_bulk(bytes) {
                0 => self.step(byte).map_err(|()| Malformed { at: self.read })?,
                taken => (taken, None),
            };
            *bytes = &bytes[taken..];
            self.read += taken as u64;
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// Takes what nobody needs to look at one by one, which is most of all bytes: the inside of
    /// strings. The number of bytes taken.
    fn in_bulk(&mut self, bytes: &[u8]) -> usize {
        let plain = |bytes: &[u8]| {
            bytes.iter().position(|b| matches!(b, b'"' | b'\\')).unwrap_or(bytes.len())
        };
        match &mut self.state {
            ReaderState::Skip { string: Some(Escape::No), .. } => plain(bytes),
            ReaderState::Text(text) if text.takes_plain() => {
                let taken = plain(bytes);
                text.plain(&bytes[..taken], &mut self.out);
                taken
            }
            _ => 0,
        }
    }

    /// Takes one byte, or none where that one belongs to what follows.
    fn step(&mut self, byte: u8) -> Result<(usize, Option<JsonEvent>), ()> {
        match &mut self.state {
            ReaderState::Skip { depth, string } => {
                let is_over = match (&string, byte) {
                    (Some(Escape::Next), _) => {
                        *string = Some(Escape::No);
                        false
                    }
                    (Some(Escape::No), b'\\') => {
                        *string = Some(Escape::Next);
                        false
                    }
                    (Some(Escape::No), b'"') => {
                        *string = None;
                        *depth == 0
                    }
                    (Some(Escape::No), _) => false,
                    (None, b'"') => {
                        *string = Some(Escape::No);
                        false
                    }
                    (None, b'{' | b'[') => {
                        *depth += 1;
                        false
                    }
                    (None, b'}' | b']') => {
                        *depth -= 1;
                        *depth == 0
                    }
                    (None, _) => false,
                };
                return Ok((1, is_over.then(|| self.value_ends()).flatten()));
            }
            ReaderState::Text(text) => {
                if text.step(byte, &mut self.out)? {
                    self.cuts[Cut::Text as usize] += u64::from(text.was_cut());
                    return Ok((1, self.value_ends()));
                }
                return Ok((1, None));
            }
            ReaderState::Token(token, keep) => {
                if token.takes(byte) {
                    return Ok((1, None));
                }
                let (token, keep) = (*token, *keep);
                self.word(token, keep)?;
                return Ok((0, self.value_ends()));
            }
            ReaderState::InName { escaped: escaped @ true } => {
                *escaped = false;
                return Ok((1, None));
            }
            ReaderState::InName { escaped } => {
                match byte {
                    b'"' => self.state = ReaderState::Colon,
                    b'\\' => (*escaped, self.name.is_known) = (true, false),
                    _ if self.name.text.len() < MAX_NAME => self.name.text.push(byte),
                    _ => self.name.is_known = false,
                }
                return Ok((1, None));
            }
            _ => {}
        }
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            return Ok((1, None));
        }
        match (&self.state, byte) {
            (ReaderState::FirstName | ReaderState::After, b'}')
            | (ReaderState::FirstItem | ReaderState::After, b']') => {
                return Ok((1, self.close(byte)?));
            }
            (ReaderState::FirstName | ReaderState::Name, b'"') => {
                self.name.text.clear();
                self.name.is_known = true;
                self.state = ReaderState::InName { escaped: false };
            }
            (ReaderState::FirstItem, _) => {
                self.item_begins();
                return Ok((0, None));
            }
            (ReaderState::Colon, b':') => self.member(),
            (ReaderState::After, b',') => match self.open.last() {
                Some(Frame::Object { .. }) => self.state = ReaderState::Name,
                Some(_) => self.item_begins(),
                None => return Err(()),
            },
            (ReaderState::Value(keep), _) => {
                let keep = *keep;
                self.value(byte, keep)?;
            }
            _ => return Err(()),
        }
        Ok((1, None))
    }

    /// A value begins.
    fn value(&mut self, byte: u8, keep: Option<&'static Keep>) -> Result<(), ()> {
        let frame = match (byte, keep) {
            (b'"', Some(Keep::Text(most))) => {
                self.state = ReaderState::Text(Text::begin(*most, true, &mut self.out));
                return Ok(());
            }
            (b'"', Some(Keep::Head(most))) => {
                self.state = ReaderState::Text(Text::begin(*most, false, &mut self.out));
                return Ok(());
            }
            (b'{', Some(Keep::Presence)) => {
                self.out.extend_from_slice(b"{}");
                self.skip(byte);
                return Ok(());
            }
            (b'{', Some(Keep::Object(fields))) => Frame::Object { fields, seen: 0 },
            (b'[', Some(Keep::List(most, cut, of))) => {
                Frame::List { of, most: *most, cut: Some(*cut), len: 0 }
            }
            (b'[', Some(Keep::First(of))) => Frame::List { of, most: 1, cut: None, len: 0 },
            (b'[', Some(Keep::Each(of))) => Frame::Each { of },
            (b'"' | b'{' | b'[', Some(_)) => {
                self.is_sound = false;
                self.out.extend_from_slice(b"null");
                self.skip(byte);
                return Ok(());
            }
            (b'"' | b'{' | b'[', None) => {
                self.skip(byte);
                return Ok(());
            }
            (_, keep) => {
                let token = Token::begin(byte).ok_or(())?;
                self.state = ReaderState::Token(token, keep);
                return Ok(());
            }
        };
        let is_object = matches!(frame, Frame::Object { .. });
        self.out.push(if is_object { b'{' } else { b'[' });
        self.state = if is_object { ReaderState::FirstName } else { ReaderState::FirstItem };
        self.open.push(frame);
        Ok(())
    }

    fn skip(&mut self, byte: u8) {
        self.state = match byte {
            b'"' => ReaderState::Skip { depth: 0, string: Some(Escape::No) },
            _ => ReaderState::Skip { depth: 1, string: None },
        };
    }

    /// A number or word is complete.
    fn word(&mut self, token: Token, keep: Option<&'static Keep>) -> Result<(), ()> {
        let is_wanted = match (token.kind().ok_or(())?, keep) {
            (_, None) => return Ok(()),
            (WordKind::Null, _) => true,
            (WordKind::Bool, Some(Keep::Bool)) => true,
            (WordKind::Number, Some(Keep::Number)) => token.is_whole(),
            _ => false,
        };
        self.is_sound &= is_wanted;
        self.out.extend_from_slice(if is_wanted { token.text() } else { b"null" });
        Ok(())
    }

    /// The colon after a name.
    fn member(&mut self) {
        let mut keep = None;
        if let Some(Frame::Object { fields, seen }) = self.open.last_mut()
            && self.name.is_known
            && let Some(at) = fields.iter().position(|(name, _)| name.as_bytes() == self.name.text)
            && *seen & (1 << at) == 0
        {
            if *seen != 0 {
                self.out.push(b',');
            }
            *seen |= 1 << at;
            let (name, wanted) = &fields[at];
            self.out.push(b'"');
            self.out.extend_from_slice(name.as_bytes());
            self.out.extend_from_slice(b"\":");
            keep = Some(wanted);
        }
        self.state = ReaderState::Value(keep);
    }

    /// An item of a list comes.
    fn item_begins(&mut self) {
        let keep = match self.open.last_mut() {
            Some(Frame::Each { of }) => {
                self.item = Some((self.out.len(), std::mem::replace(&mut self.is_sound, true)));
                Some(*of)
            }
            Some(Frame::List { of, most, len, .. }) if *len < *most => {
                if *len > 0 {
                    self.out.push(b',');
                }
                *len += 1;
                Some(*of)
            }
            Some(Frame::List { cut, .. }) => {
                if let Some(cut) = cut {
                    self.cuts[*cut as usize] += 1;
                }
                None
            }
            Some(Frame::Object { .. }) | None => None,
        };
        self.state = ReaderState::Value(keep);
    }

    fn close(&mut self, byte: u8) -> Result<Option<JsonEvent>, ()> {
        let is_object = matches!(self.open.pop(), Some(Frame::Object { .. }));
        if is_object != (byte == b'}') {
            return Err(());
        }
        self.out.push(byte);
        Ok(self.value_ends())
    }

    /// A value is complete, wanted or not.
    fn value_ends(&mut self) -> Option<JsonEvent> {
        self.state = ReaderState::After;
        match self.open.last() {
            Some(Frame::Each { .. }) => {
                let (from, before) = self.item.take()?;
                let json = self.out.split_off(from);
                let is_sound = std::mem::replace(&mut self.is_sound, before);
                Some(JsonEvent::Item(Reduced { json, is_sound }))
            }
            Some(_) => None,
            None => {
                self.state = ReaderState::Value(Some(self.shape));
                let json = std::mem::take(&mut self.out);
                let is_sound = std::mem::replace(&mut self.is_sound, true);
                Some(JsonEvent::End(Reduced { json, is_sound }))
            }
        }
    }
}

/// Reads a document that is there as a whole.
///
/// # Errors
///
/// It is no JSON, or more than one document.
pub(crate) fn reduce(shape: &'static Keep, text: &[u8], cuts: &Cuts) -> Result<Reduced, Malformed> {
    let (mut reader, mut rest) = (DocumentReader::new(shape), text);
    let malformed = Malformed { at: text.len() as u64 };
    let Some(JsonEvent::End(reduced)) = reader.next(&mut rest)? else { return Err(malformed) };
    reader.count_cuts(cuts);
    match rest.iter().all(u8::is_ascii_whitespace) {
        true => Ok(reduced),
        false => Err(malformed),
    }
}
