//! Text from outside, as a person may see it.

use std::borrow::Cow;

/// The text with control characters, and with those that are not seen but change how others are
/// (Unicode's category Cf: of bidirectional text, of zero width, tags), as escapes: no terminal obeys
/// it, and it does not read as something that it is not. Everything untrusted passes here before it is
/// shown to people: in the log, in reports, on the command line.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_hidden(c) {
            true => shown.extend(c.escape_unicode()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// JSON with the same as escapes within its strings: it reads as it did, to a parser.
pub fn json(text: &str) -> Cow<'_, str> {
    let is_shown = |c: char| is_hidden(c) && c != '\n';
    if !text.contains(is_shown) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_shown(c) {
            true => {
                let units = c.encode_utf16(&mut [0; 2]).to_vec();
                shown.extend(units.into_iter().map(|unit| format!("\\u{unit:04x}")));
            }
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Categories Cc, Cf, Zl and Zp of Unicode 16 (`DerivedGeneralCategory.txt`).
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_or_hide_is_escaped() {
        for (text, expected) in [
            ("nginx: worker", "nginx: worker"),
            ("кассовый 収納 é 👍", "кассовый 収納 é 👍"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("\u{9b}2J\u{7f}\r\n\t", "\\u{9b}2J\\u{7f}\\u{d}\\u{a}\\u{9}"),
            ("a\u{202e}b\u{2066}c\u{2069}", "a\\u{202e}b\\u{2066}c\\u{2069}"),
            ("a\u{200b}b\u{feff}\u{e0041}", "a\\u{200b}b\\u{feff}\\u{e0041}"),
            ("a\u{2028}b", "a\\u{2028}b"),
        ] {
            assert_eq!(shown(text), expected);
        }
    }
}
