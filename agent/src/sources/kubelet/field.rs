//! The values of fields, from klog's text and from its JSON.

use super::klog::FieldValue;
use serde_json::Value as Json;
use std::borrow::Cow;

/// Members of an object or items of a list that are looked at.
const MAX_ITEMS: usize = 256;

/// A value that was taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Field<'a> {
    /// A text, a number or a word.
    Text(Cow<'a, str>),
    /// A struct: names and texts. What is nested in it is left out.
    Object(Vec<(String, String)>),
    /// A list: texts, and structs as `namespace/name`.
    List(Vec<String>),
}

impl<'a> Field<'a> {
    /// Of a value as it stands in a line of text.
    pub(super) fn of_text(value: FieldValue<'a>) -> Self {
        match value {
            FieldValue::Quoted(raw) => Self::Text(unquoted(raw)),
            FieldValue::Bare(raw) => Self::Text(String::from_utf8_lossy(raw)),
            FieldValue::Lines(raw) => {
                let text = String::from_utf8_lossy(raw);
                let lines = text.lines().map(|line| line.strip_prefix('\t').unwrap_or(line));
                Self::Text(lines.collect::<Vec<_>>().join(" ").into())
            }
            FieldValue::Group(raw) => match serde_json::from_slice(raw) {
                Ok(json) => Self::of_json(json),
                Err(_) => of_go(&String::from_utf8_lossy(raw)),
            },
        }
    }

    /// Of a value in JSON.
    pub(super) fn of_json(json: Json) -> Self {
        match json {
            Json::Object(members) => Self::Object(
                members
                    .into_iter()
                    .take(MAX_ITEMS)
                    .filter_map(|(name, value)| Some((name, scalar(value)?)))
                    .collect(),
            ),
            Json::Array(items) => {
                Self::List(items.into_iter().take(MAX_ITEMS).filter_map(item).collect())
            }
            other => Self::Text(scalar(other).unwrap_or_default().into()),
        }
    }

    /// The text, if it is one.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A member's text.
    pub(super) fn member(&self, name: &str) -> Option<&str> {
        match self {
            Self::Object(members) => {
                members.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
            }
            _ => None,
        }
    }

    /// A pod's namespace and name.
    pub(super) fn pod(&self) -> Option<(&str, &str)> {
        match self {
            Self::Text(text) => text.split_once('/'),
            Self::Object(_) => Some((self.member("namespace")?, self.member("name")?)),
            Self::List(_) => None,
        }
    }
}

fn scalar(json: Json) -> Option<String> {
    match json {
        Json::String(text) => Some(text),
        Json::Number(number) => Some(number.to_string()),
        Json::Bool(is) => Some(is.to_string()),
        Json::Null | Json::Array(_) | Json::Object(_) => None,
    }
}

fn item(json: Json) -> Option<String> {
    match json {
        Json::Object(mut members) => {
            let mut member = |name| members.remove(name).and_then(scalar);
            Some(format!("{}/{}", member("namespace")?, member("name")?))
        }
        other => scalar(other),
    }
}

/// What Go's `%+v` prints: `&{ID:u Type:ContainerDied Data:c}`, `[default/a default/b]`.
fn of_go(text: &str) -> Field<'static> {
    let text = text.strip_prefix('&').unwrap_or(text);
    if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        return Field::List(
            inner.split_ascii_whitespace().take(MAX_ITEMS).map(str::to_owned).collect(),
        );
    }
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or_default();
    let member = |word: &str| word.split_once(':').map(|(name, text)| (name.into(), text.into()));
    Field::Object(inner.split_ascii_whitespace().take(MAX_ITEMS).filter_map(member).collect())
}

/// Takes the escapes of Go's `strconv.Quote` out of a text.
pub(super) fn unquoted(raw: &[u8]) -> Cow<'_, str> {
    if memchr::memchr(b'\\', raw).is_none() {
        return String::from_utf8_lossy(raw);
    }
    let mut out = Vec::with_capacity(raw.len());
    let mut at = 0;
    while at < raw.len() {
        let (byte, next) = (raw[at], raw.get(at + 1).copied());
        at += 1;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let Some(next) = next else { break };
        at += 1;
        let digits = match next {
            b'n' | b't' | b'r' | b'a' | b'b' | b'f' | b'v' => {
                out.push(b' ');
                continue;
            }
            b'x' => 2,
            b'u' => 4,
            b'U' => 8,
            other => {
                out.push(other);
                continue;
            }
        };
        let code = raw.get(at..at + digits).and_then(|hex| str::from_utf8(hex).ok());
        let code = code.and_then(|hex| u32::from_str_radix(hex, 16).ok());
        match (code, digits) {
            (Some(code), 2) => out.push(code as u8), // two hexadecimal digits
            (Some(code), _) => {
                let letter = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                out.extend(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
            (None, _) => continue,
        }
        at += digits;
    }
    String::from_utf8_lossy(&out).into_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_and_lists_are_read_as_go_and_as_json() {
        for text in
            ["&{ID:u Type:ContainerDied Data:c}", r#"{"ID":"u","Type":"ContainerDied","Data":"c"}"#]
        {
            let event = Field::of_text(FieldValue::Group(text.as_bytes()));
            assert_eq!(event.member("ID").zip(event.member("Data")), Some(("u", "c")), "{text}");
        }
        for text in [
            "[a/b c/d]",
            r#"["a/b","c/d"]"#,
            r#"[{"name":"b","namespace":"a"},{"name":"d","namespace":"c"}]"#,
        ] {
            let list = Field::of_text(FieldValue::Group(text.as_bytes()));
            assert_eq!(list, Field::List(vec!["a/b".into(), "c/d".into()]), "{text}");
        }
    }

    #[test]
    fn escapes_are_taken_out() {
        assert_eq!(unquoted(br#"a \"b\"\n\u003e\xe4\U0001f600 \"#), "a \"b\" >\u{fffd}\u{1f600} ");
        assert_eq!(unquoted(br"\x4"), "4");
    }
}
