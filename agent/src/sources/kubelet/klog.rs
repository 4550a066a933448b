//! klog's text format: a header, a quoted message and fields (`k8s.io/klog/v2/internal/serialize`,
//! `k8s.io/klog/v2/internal/buffer`). Nothing is copied, and no step looks at a byte more than twice.

use super::time::LineTime;

/// Fields of a line that are looked at.
const MAX_FIELDS: usize = 48;

/// A line taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KlogLine<'a> {
    /// When it was written.
    pub(super) time: LineTime,
    /// The text after the header.
    pub(super) text: &'a [u8],
}

/// What other programs put before a line: a downstream build's mark, the header of syslog or of a container's log.
/// Only their exact forms count, for what follows may be what a container printed.
pub(super) fn without_prefix(line: &[u8]) -> &[u8] {
    /// A prefix longer than this is none.
    const LONGEST: usize = 160;
    if starts_a_line(line) {
        return line;
    }
    if let Some(rest) = line.strip_prefix(MARK) {
        return rest;
    }
    let head = &line[..line.len().min(LONGEST)];
    // The time begins with a letter or a digit; the line of a value begins with a tab.
    if !head.first().is_some_and(u8::is_ascii_alphanumeric) {
        return line;
    }
    for (sign, fits) in
        [(&b"]: "[..], is_of_syslog as fn(&[u8]) -> bool), (b" F ", is_of_a_runtime)]
    {
        if let Some(at) = memchr::memmem::find(head, sign)
            && fits(&head[..at])
        {
            let rest = &line[at + sign.len()..];
            if starts_a_line(rest) || rest.first() == Some(&b'{') {
                return rest;
            }
        }
    }
    line
}

/// The mark of a downstream build.
const MARK: &[u8] = b"??? ";

/// A text without the mark.
pub(super) fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(MARK).unwrap_or(text)
}

/// `Nov 23 14:18:35 node kubelet[315900`, with journalctl's forms of the time.
fn is_of_syslog(head: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b" :.,+-_[".contains(byte);
    let words = head.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let Some(open) = memchr::memrchr(b'[', head) else { return false };
    let has_pid = head.len() > open + 1 && head[open + 1..].iter().all(u8::is_ascii_digit);
    has_pid && head.iter().all(plain) && (3..=6).contains(&words.count())
}

/// `2026-11-23T14:18:35.5Z stderr`.
fn is_of_a_runtime(head: &[u8]) -> bool {
    let mut words = head.split(|byte| *byte == b' ');
    let first = words.next().is_some_and(|time| time.contains(&b'T'));
    first && matches!(words.next(), Some(b"stdout" | b"stderr")) && words.next().is_none()
}

/// Whether this may be the beginning of klog's header.
fn starts_a_line(line: &[u8]) -> bool {
    line.len() > 21
        && matches!(line[0], b'I' | b'W' | b'E' | b'F')
        && line[5] == b' '
        && line[1..5].iter().all(u8::is_ascii_digit)
}

/// Takes the header off: `I1123 14:18:35.558172  315900 kubelet.go:2124] `.
pub(super) fn line(line: &[u8]) -> Option<KlogLine<'_>> {
    if !starts_a_line(line) {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<u32> {
        let digits = line.get(from..to)?;
        let digit = |sum: Option<u32>, digit: &u8| {
            digit.is_ascii_digit().then(|| sum.map(|sum| sum * 10 + u32::from(digit - b'0')))?
        };
        digits.iter().fold(Some(0), digit)
    };
    if line[8] != b':' || line[11] != b':' || line[14] != b'.' {
        return None;
    }
    let time = LineTime::Klog {
        month: number(1, 3)?.try_into().ok()?,
        day: number(3, 5)?.try_into().ok()?,
        hour: number(6, 8)?.try_into().ok()?,
        minute: number(9, 11)?.try_into().ok()?,
        second: number(12, 14)?.try_into().ok()?,
        micros: number(15, 21)?,
    };
    // Thread and caller are short; a `] ` further on is part of the message.
    let head = &line[21..line.len().min(21 + 120)];
    let end = memchr::memmem::find(head, b"] ")?;
    Some(KlogLine { time, text: &line[21 + end + 2..] })
}

/// The quoted message at the beginning of a text, as it stands there, and what follows it.
pub(super) fn message(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = text.strip_prefix(b"\"")?;
    let end = quote_end(inner)?;
    Some((&inner[..end], &inner[end + 1..]))
}

/// Where the quote ends that began before `text`.
fn quote_end(text: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', &text[from..])?;
        if text[at] == b'"' {
            return Some(at);
        }
        from = at + 2;
        if from > text.len() {
            return None;
        }
    }
}

/// A value, as it stands in the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FieldValue<'a> {
    /// Between quotes, with Go's escapes.
    Quoted(&'a [u8]),
    /// A word.
    Bare(&'a [u8]),
    /// A struct, map or list with its brackets, in JSON or as Go prints it.
    Group(&'a [u8]),
    /// Several lines, each after a tab.
    Lines(&'a [u8]),
}

/// The fields of a text after its message. What cannot be taken apart ends them.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    left: usize,
}

/// The fields in the text after the message.
pub(super) fn fields(rest: &[u8]) -> Fields<'_> {
    Fields { rest, left: MAX_FIELDS }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], FieldValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let start = self.rest.iter().position(|byte| !matches!(byte, b' ' | b'\n'))?;
        let text = &self.rest[start..];
        let equals = memchr::memchr2(b'=', b' ', text).filter(|at| text[*at] == b'=')?;
        let (key, value) = (&text[..equals], &text[equals + 1..]);
        let (value, length) = value_of(value)?;
        self.rest = &text[equals + 1 + length..];
        Some((key, value))
    }
}

/// The value at the beginning of a text, and its length.
fn value_of(text: &[u8]) -> Option<(FieldValue<'_>, usize)> {
    match text.first() {
        Some(b'"') => {
            let end = quote_end(&text[1..])?;
            Some((FieldValue::Quoted(&text[1..=end]), end + 2))
        }
        Some(b'<') if text.starts_with(b"<\n") => {
            let end = memchr::memmem::find(text, b"\n >")?;
            Some((FieldValue::Lines(&text[2..end.max(2)]), end + 3))
        }
        Some(b'{' | b'[' | b'&') => {
            let end = group_end(text)?;
            Some((FieldValue::Group(&text[..end]), end))
        }
        _ => {
            let end = memchr::memchr(b' ', text).unwrap_or(text.len());
            Some((FieldValue::Bare(&text[..end]), end))
        }
    }
}

/// The length of the struct, map or list at the beginning of a text. Quotes count in JSON only: what Go prints has
/// texts without quotes.
fn group_end(text: &[u8]) -> Option<usize> {
    let start = usize::from(text[0] == b'&');
    let json =
        matches!(text.get(start..start + 2)?, b"{\"" | b"[\"" | b"[{" | b"[[" | b"{}" | b"[]");
    let mut depth = 0usize;
    let mut at = start;
    while at < text.len() {
        match text[at] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            b'"' if json => at += 1 + quote_end(&text[at + 1..])?,
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLEG: &[u8] = br#"I1121 02:56:30.687396   315900 kubelet.go:2152] "SyncLoop (PLEG): event for pod" pod="default/leak1" event=&{ID:cfdbc5a3 Type:ContainerStarted Data:ddd85f} err="a \"b\" c" x=<
	one
	two
 > last=7"#;

    #[test]
    fn a_line_is_taken_apart() {
        let line = line(PLEG).unwrap();
        let time =
            LineTime::Klog { month: 11, day: 21, hour: 2, minute: 56, second: 30, micros: 687_396 };
        assert_eq!(line.time, time);
        let (message, rest) = message(line.text).unwrap();
        assert_eq!(message, b"SyncLoop (PLEG): event for pod");
        let found: Vec<_> = fields(rest).collect();
        let wanted: [(&[u8], FieldValue); 5] = [
            (b"pod", FieldValue::Quoted(b"default/leak1")),
            (b"event", FieldValue::Group(b"&{ID:cfdbc5a3 Type:ContainerStarted Data:ddd85f}")),
            (b"err", FieldValue::Quoted(br#"a \"b\" c"#)),
            (b"x", FieldValue::Lines(b"\tone\n\ttwo")),
            (b"last", FieldValue::Bare(b"7")),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn what_is_no_line_of_klog_is_none() {
        for text in [
            "",
            "I1121",
            "\tI1121 02:56:30.687396 1 a.go:1] x",
            "I1121 02-56-30.687396 1 a.go:1] x",
        ] {
            assert_eq!(line(text.as_bytes()), None, "{text}");
        }
        let unended = br#" pod="default/leak1 event={"#;
        assert_eq!(fields(unended).count(), 0);
        assert_eq!(message(br#""\"#), None);
    }

    #[test]
    fn prefixes_of_others_are_taken_off() {
        let bare = br#"I1121 02:56:30.687396 1 a.go:1] "x""#;
        for prefix in [
            "",
            "??? ",
            "Nov 23 14:18:35 node kubelet[315900]: ",
            "2026-11-23T14:18:35+0000 node-1.example kubelet[3]: ",
            "Mon 2026-11-23 14:18:35 UTC node kubelet[3]: ",
            "2026-11-23T14:18:35.5Z stderr F ",
        ] {
            let line = [prefix.as_bytes(), bare].concat();
            assert_eq!(without_prefix(&line), bare, "{prefix}");
        }
        for forged in
            ["\t", "\tx]: ", "\tx F ", "x]: ", "a b[1]: ", " a b c[1]: ", "a \"b\" c[1]: ", "x F "]
        {
            let line = [forged.as_bytes(), bare].concat();
            assert_eq!(without_prefix(&line), line, "{forged}");
        }
    }
}
