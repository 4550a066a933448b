//! What is left of JSON.

use super::*;
use Keep::{Bool, Each, First, Head, List, Number, Object, Presence, Text};

const SHAPE: Keep = Object(&[
    ("text", Text(8)),
    ("head", Head(4)),
    ("number", Number),
    ("bool", Bool),
    ("there", Presence),
    ("inner", Object(&[("text", Text(8))])),
    ("list", List(2, Cut::Finalizers, &Text(8))),
    ("first", First(&Number)),
]);
const LIST: Keep = Object(&[("items", Each(&SHAPE)), ("version", Text(8))]);

/// What is left of a whole document, whether it is sound, and what was cut of texts and lists. In
/// whichever pieces it comes, that is the same.
fn left(text: &str) -> Option<(String, bool, u64, u64)> {
    let whole = in_pieces(text.as_bytes(), text.len().max(1));
    for piece in 1..text.len().min(40) {
        assert_eq!(in_pieces(text.as_bytes(), piece), whole, "in pieces of {piece}: {text}");
    }
    whole
}

fn in_pieces(text: &[u8], piece: usize) -> Option<(String, bool, u64, u64)> {
    let (mut reader, cuts) = (DocumentReader::new(&SHAPE), Cuts::default());
    let mut found = None;
    for mut piece in text.chunks(piece) {
        while let Some(event) = reader.next(&mut piece).ok()? {
            let JsonEvent::End(Reduced { json, is_sound }) = event else { panic!("no list") };
            assert!(json.len() <= SHAPE.longest());
            assert!(found.replace((String::from_utf8(json).unwrap(), is_sound)).is_none());
        }
    }
    reader.count_cuts(&cuts);
    assert!(!reader.is_within() || found.is_none());
    found.map(|(json, is_sound)| (json, is_sound, cuts.of(Cut::Text), cuts.of(Cut::Finalizers)))
}

#[test]
fn what_is_wanted_is_copied_and_the_rest_passed_over() {
    for (text, expected) in [
        ("{}", "{}"),
        (" { } ", "{}"),
        (r#"{"text":"a","other":{"text":"b"},"number":-1.5e3}"#, r#"{"text":"a","number":-1.5e3}"#),
        (r#"{"other":[1,"]",{"x":"\"}"}],"bool":true}"#, r#"{"bool":true}"#),
        (
            r#"{"there":{"a":[{}]},"inner":{"x":1,"text":"t","y":2}}"#,
            r#"{"there":{},"inner":{"text":"t"}}"#,
        ),
        (r#"{"list":[],"first":[]}"#, r#"{"list":[],"first":[]}"#),
        (r#"{"first":[1,2,3]}"#, r#"{"first":[1]}"#),
        (
            r#"{"text":null,"list":[null,"a"],"inner":null,"there":null}"#,
            r#"{"text":null,"list":[null,"a"],"inner":null,"there":null}"#,
        ),
        // A name that is written with escapes, and the same one twice.
        (r#"{"\u0074ext":"a","text":"b","text":"c"}"#, r#"{"text":"b"}"#),
        (r#"{"head":"abcdefgh"}"#, r#"{"head":"abcd"}"#),
        (r#"{"a":1,"b":2,"c":null,"d":false}"#, "{}"),
    ] {
        assert_eq!(left(text), Some((expected.into(), true, 0, 0)), "{text}");
    }
}

#[test]
fn what_is_too_long_is_cut_and_counted() {
    for (text, expected, texts, lists) in [
        (r#"{"text":"12345678"}"#, r#"{"text":"12345678"}"#, 0, 0),
        (r#"{"text":"123456789"}"#, r#"{"text":"12345678"}"#, 1, 0),
        // Not within a character, an escape, or a pair of them.
        (r#"{"text":"1234567é"}"#, r#"{"text":"1234567"}"#, 1, 0),
        (r#"{"text":"12345👍"}"#, r#"{"text":"12345"}"#, 1, 0),
        (r#"{"text":"1234567\n"}"#, r#"{"text":"1234567"}"#, 1, 0),
        (r#"{"text":"1234\u0041x"}"#, r#"{"text":"1234"}"#, 1, 0),
        (r#"{"text":"12\ud83d\udc4d"}"#, r#"{"text":"12"}"#, 1, 0),
        (r#"{"text":"1\\ud83d"}"#, r#"{"text":"1\\ud83d"}"#, 0, 0),
        (r#"{"text":"12\\ud83d"}"#, r#"{"text":"12\\ud83"}"#, 1, 0),
        (r#"{"list":["a","b","c","d"]}"#, r#"{"list":["a","b"]}"#, 0, 2),
    ] {
        assert_eq!(left(text), Some((expected.into(), true, texts, lists)), "{text}");
        serde_json::from_str::<serde_json::Value>(expected).unwrap();
    }
}

#[test]
fn what_is_of_another_kind_is_null_and_not_sound() {
    for (text, expected) in [
        (r#"{"text":7}"#, r#"{"text":null}"#),
        (r#"{"text":{"a":1}}"#, r#"{"text":null}"#),
        (r#"{"number":"7"}"#, r#"{"number":null}"#),
        (r#"{"number":true}"#, r#"{"number":null}"#),
        (r#"{"bool":0}"#, r#"{"bool":null}"#),
        (r#"{"inner":[]}"#, r#"{"inner":null}"#),
        (r#"{"list":{"0":"a"}}"#, r#"{"list":null}"#),
        (r#"{"there":"yes"}"#, r#"{"there":null}"#),
        ("[1]", "null"),
    ] {
        assert_eq!(left(text), Some((expected.into(), false, 0, 0)), "{text}");
    }
    let long = format!(r#"{{"number":{}}}"#, "1".repeat(100));
    assert_eq!(left(&long), Some((r#"{"number":null}"#.into(), false, 0, 0)));
}

#[test]
fn what_is_no_json_is_no_document() {
    for text in [
        "",
        "{",
        "}",
        "[1,",
        "{\"text\"",
        "{\"text\":",
        "{\"text\":\"",
        "{\"text\" 1}",
        "{,}",
        "{\"text\":\"a\",}",
        "{\"list\":[,]}",
        "{\"list\":[\"a\",]}",
        "{\"list\":[\"a\"}",
        "{\"inner\":{]}",
        "{\"text\":\"\\x\"}",
        "{\"text\":\"\\u12g4\"}",
        "{\"text\":yes}",
        "{\"x\":yes}",
        "<html>",
    ] {
        assert_eq!(left(text), None, "{text}");
    }
}

#[test]
fn neither_depth_nor_length_costs_memory() {
    const DEEP: usize = 2_000_000;
    let mut reader = DocumentReader::new(&SHAPE);
    let deep = "[{\"a\":".repeat(DEEP);
    let ends = "}]".repeat(DEEP);
    let long = "\\u0041b".repeat(DEEP);
    let mut held = 0;
    let mut found = None;
    for mut text in [
        "{\"other\":",
        &deep,
        "1",
        &ends,
        ",\"more\":\"",
        &long,
        "\",\"text\":\"",
        &long,
        "\",\"head\":\"",
        &long,
        "\",\"number\":1}",
    ]
    .map(str::as_bytes)
    {
        found = found.or(reader.next(&mut text).unwrap());
        held =
            held.max(reader.out.capacity() + reader.open.capacity() + reader.name.text.capacity());
    }
    let expected = br#"{"text":"\u0041b","head":"","number":1}"#.to_vec();
    assert_eq!(found, Some(JsonEvent::End(Reduced { json: expected, is_sound: true })));
    assert!(held < 4096, "{held}");
}

#[test]
fn items_come_one_by_one_and_none_spoils_another() {
    let text = r#"{"kind":"L","items":[{"text":"a"},{"text":7},{"x":[[[]]]},{"text":"b"}],
        "version":"5"} {"items":[{"text":"c"}]}{"items":null}"#;
    let item = |json: &str, is_sound| JsonEvent::Item(Reduced { json: json.into(), is_sound });
    let end = |json: &str| JsonEvent::End(Reduced { json: json.into(), is_sound: true });
    let expected = [
        item(r#"{"text":"a"}"#, true),
        item(r#"{"text":null}"#, false),
        item("{}", true),
        item(r#"{"text":"b"}"#, true),
        end(r#"{"items":[],"version":"5"}"#),
        item(r#"{"text":"c"}"#, true),
        end(r#"{"items":[]}"#),
        end(r#"{"items":null}"#),
    ];
    for piece in 1..text.len() {
        let (mut reader, mut events) = (DocumentReader::new(&LIST), Vec::new());
        for mut piece in text.as_bytes().chunks(piece) {
            while let Some(event) = reader.next(&mut piece).unwrap() {
                events.push(event);
            }
        }
        assert_eq!(events, expected, "in pieces of {piece}");
        assert!(!reader.is_within());
    }
}

#[test]
fn the_longest_is_reached_and_not_exceeded() {
    let text = format!(
        r#"{{"text":"{t}","head":"{t}","number":{n},"bool":false,"there":null,
        "inner":{{"text":"{t}"}},"list":["{t}","{t}","{t}"],"first":[{n},1]}}"#,
        t = "x".repeat(100),
        n = "1".repeat(32)
    );
    let (json, ..) = left(&text).unwrap();
    // A bool may be as long as a number for all that is computed; names are separated, not ended.
    let spare = Token::LONGEST - "false".len() + 3;
    assert!(json.len() <= SHAPE.longest() && json.len() + spare >= SHAPE.longest(), "{json}");
}
