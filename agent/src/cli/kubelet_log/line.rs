//! One line: where klog's header stands in it, and the fields of a message of the table.
//!
//! **Invariant.** A tenant decides some of what the kubelet logs: names, paths, what a probe prints, errors of the
//! runtime. None of it makes a statement: a header counts only behind a plain prefix or at the beginning of a quoted
//! string, and a message only if its line is whole, to its last field.

use super::table::{self, Message, Topic};
use coroner_core::time::WallTime;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use serde_json::Value as Json;
use std::borrow::Cow;

/// The longest text of a line that is kept, bytes.
const MAX_TEXT: usize = 2_000;
const MAX_PREFIX: usize = 400;
/// Before a message in `journalctl -o export`.
const EXPORTED: &str = "MESSAGE=";
/// The downstream builds of the kubelet mark their lines with it, before the header or in it.
const MARK: &str = "??? ";

/// The time of a line. klog's header has neither year nor zone: its time is that of the year 2000 and in UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LineTime {
    time: WallTime,
    pub(super) is_exact: bool,
}

impl LineTime {
    /// The time in this zone (ns ahead of UTC), in the year that is nearest to a moment.
    pub(super) fn near(self, moment: WallTime, zone: i64) -> Option<WallTime> {
        if self.is_exact {
            return Some(self.time);
        }
        let civil = |time: WallTime| {
            let time = Timestamp::from_nanosecond(time.0.into()).ok()?;
            Some(time.to_zoned(TimeZone::UTC).datetime())
        };
        let (own, year) = (civil(self.time)?, civil(moment)?.year());
        let of = |year: i16| wall(own.with().year(year).build().ok()?)?.0.checked_sub(zone);
        // 29 February exists in some of them only.
        let years = [year.checked_sub(1)?, year, year.checked_add(1)?];
        years.into_iter().filter_map(of).min_by_key(|time| time.abs_diff(moment.0)).map(WallTime)
    }

    /// How much later this is than another line of the log, µs; negative: earlier. New year is later than December.
    pub(super) fn since(self, other: Self) -> i64 {
        let year = 366 * 86_400 * 1_000_000;
        let since = self.time.0 / 1_000 - other.time.0 / 1_000;
        match (self.is_exact, other.is_exact) {
            (false, false) if since < -year / 2 => since + year,
            (own, others) if own == others => since,
            _ => 0,
        }
    }
}

fn wall(utc: DateTime) -> Option<WallTime> {
    let time = utc.to_zoned(TimeZone::UTC).ok()?.timestamp();
    i64::try_from(time.as_nanosecond()).ok().map(WallTime)
}

/// Where the text of the kubelet stands in the lines of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum TextPlace {
    /// Behind a prefix, of which only the form counts: each digit is a 9, and a row of digits one.
    Plain(String),
    /// In a quoted string, behind this key (`"MESSAGE":`, `msg=`).
    Quoted(String),
}

/// A line with klog's header, or in klog's JSON.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct KlogLine<'a> {
    pub(super) time: LineTime,
    /// The time in the prefix, s of the day: who writes the text does not write it.
    pub(super) clock: Option<i64>,
    pub(super) place: TextPlace,
    /// The text that follows the header.
    pub(super) text: Cow<'a, str>,
    /// The members of a line of JSON, instead of the text.
    members: Option<serde_json::Map<String, Json>>,
}

impl KlogLine<'_> {
    /// It is a message and fields. Anything else may go on in the next lines, with any text.
    pub(super) fn is_structured(&self) -> bool {
        self.members.is_some() || self.text.starts_with('"')
    }

    /// A value of several lines follows.
    pub(super) fn opens_value(&self) -> bool {
        self.members.is_none() && self.text.ends_with("=<")
    }
}

/// Takes a line apart. `None`: it has no header of a kubelet.
pub(super) fn parse(line: &str) -> Option<KlogLine<'_>> {
    let Some((at, header)) = header(line) else { return json(line) };
    let (prefix, rest) = (&line[..at], &line[at + header.length..]);
    let (place, text) = match prefix.strip_suffix('"') {
        None => (plain(prefix)?, Cow::Borrowed(rest.strip_prefix(MARK).unwrap_or(rest))),
        Some(before) => {
            let (text, after) = unquoted(rest)?;
            // k0s names the component behind the text.
            let of_another = |rest: &str| !rest.starts_with("kubelet");
            if after.split_once("component=").is_some_and(|(_, name)| of_another(name)) {
                return None;
            }
            (TextPlace::Quoted(key(before)?.to_owned()), Cow::Owned(text.trim_end().to_owned()))
        }
    };
    let (time, clock) = (header.time, clock(prefix));
    Some(KlogLine { time, clock, place, text, members: None })
}

/// The time with which a line begins, s of the day.
pub(super) fn clock(line: &str) -> Option<i64> {
    let clock = line.get(line.find(':')?.checked_sub(2)?..)?;
    let number = |at: usize| clock.get(at..at + 2)?.parse::<i64>().ok();
    Some((number(0)? * 60 + number(3)?) * 60 + number(6)?)
}

/// The text of a line without a header, at the place where the kubelet's stands.
pub(super) fn text_at<'a>(line: &'a str, place: &TextPlace) -> Option<Cow<'a, str>> {
    match place {
        TextPlace::Plain(form) => {
            let ends = line.char_indices().map(|(at, _)| at).chain([line.len()]);
            let in_a_number = |end: usize| {
                form.ends_with('9') && line[end..].starts_with(|next: char| next.is_ascii_digit())
            };
            let end = ends
                .take_while(|end| *end <= MAX_PREFIX)
                .find(|end| !in_a_number(*end) && form_of(&line[..*end]) == *form)?;
            Some(Cow::Borrowed(&line[end..]))
        }
        TextPlace::Quoted(key) => {
            let (_, rest) = line.split_once(&format!("{key}\""))?;
            Some(Cow::Owned(unquoted(rest)?.0))
        }
    }
}

struct KlogHeader {
    time: LineTime,
    length: usize,
}

/// The first header of a line: `I1123 14:18:35.558172  315900 kubelet.go:2124] `.
fn header(line: &str) -> Option<(usize, KlogHeader)> {
    let bytes = line.as_bytes();
    let begins = |at: &usize| {
        matches!(bytes[*at], b'I' | b'W' | b'E' | b'F')
            && bytes.get(at + 5) == Some(&b' ')
            && bytes[at + 1..at + 5].iter().all(u8::is_ascii_digit)
    };
    (0..bytes.len()).filter(begins).find_map(|at| Some((at, header_at(&line[at..])?)))
}

fn header_at(text: &str) -> Option<KlogHeader> {
    let digits = |from: usize, to: usize| -> Option<&str> {
        text.get(from..to).filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let number = |from| digits(from, from + 2)?.parse::<i8>().ok();
    let signs = [(8, ":"), (11, ":"), (14, "."), (21, " ")];
    if !signs.iter().all(|(at, sign)| text.get(*at..at + 1) == Some(*sign)) {
        return None;
    }
    let micros: i32 = digits(15, 21)?.parse().ok()?;
    let (hour, minute, second) = (number(6)?, number(9)?, number(12)?);
    let time = DateTime::new(2000, number(1)?, number(3)?, hour, minute, second, micros * 1_000);
    let time = LineTime { time: wall(time.ok()?)?, is_exact: false };
    let rest = text[21..].trim_start_matches(' ');
    let (process, rest) = rest.split_once(' ')?;
    let rest = rest.strip_prefix(MARK).unwrap_or(rest);
    let (file, line) = rest[..rest.find("] ")?].split_once(':')?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let is_file = file.len() <= 80 && file.ends_with(".go") && file.bytes().all(plain);
    let is_number = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
    let length = text.len() - rest.len() + rest.find("] ")? + 2;
    (is_file && is_number && process.parse::<u64>().is_ok()).then_some(KlogHeader { time, length })
}

/// The form of a prefix after which the kubelet's text may stand: a time, or the header of syslog with the name of the
/// unit, and perhaps the component's name. `None`: what stands there may be the text of anyone.
fn plain(prefix: &str) -> Option<TextPlace> {
    if prefix == EXPORTED {
        return Some(TextPlace::Plain(EXPORTED.to_owned()));
    }
    let fits = prefix.len() <= MAX_PREFIX && !prefix.contains(['"', '=', '\t', '\\']);
    let own = ["kubelet ", "??? "].iter().find_map(|own| prefix.strip_suffix(own));
    let own = own.unwrap_or(prefix);
    // The lines of a value are indented.
    let is_indented = own.ends_with("  ") || own.starts_with(' ');
    let ends = prefix.is_empty() || prefix.ends_with(' ');
    if !fits || is_indented || !ends {
        return None;
    }
    let words: Vec<&str> = own.split_ascii_whitespace().collect();
    let is_tag = |word: &&str| word.ends_with(':') && word.contains(char::is_alphabetic);
    let is_plain = match words.iter().position(is_tag) {
        Some(tag) => tag + 1 == words.len(),
        None => {
            let streams = ["stdout", "stderr", "F", "|"];
            let is_time = |word: &&str| {
                word.contains(|one: char| one.is_ascii_digit()) || streams.contains(word)
            };
            words.len() <= 6 && words.iter().all(is_time)
        }
    };
    is_plain.then(|| TextPlace::Plain(form_of(prefix)))
}

fn form_of(prefix: &str) -> String {
    let mut form = String::with_capacity(prefix.len());
    for one in prefix.chars() {
        let one = if one.is_ascii_digit() { '9' } else { one };
        if one != '9' || !form.ends_with('9') {
            form.push(one);
        }
    }
    form
}

/// The key of the quoted string that begins after this, if it is that of a log's message.
fn key(before: &str) -> Option<&str> {
    let key = before.trim_end().strip_suffix([':', '='])?.trim_end();
    let at = key.rfind([' ', ',', '{']).map_or(0, |at| at + 1);
    let names = ["MESSAGE", "message", "msg", "log", "textPayload"];
    names.contains(&key[at..].trim_matches('"')).then_some(&before[at..])
}

/// Takes the escapes of Go and of JSON out of a string up to its closing quote; what follows it.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut rest = text.chars();
    loop {
        match rest.next()? {
            '"' => return Some((out, rest.as_str())),
            '\\' => {
                let (digits, one) = match rest.next()? {
                    'n' => (0, '\n'),
                    't' => (0, '\t'),
                    'r' | 'a' | 'b' | 'f' | 'v' => (0, ' '),
                    'x' => (2, ' '),
                    'u' => (4, ' '),
                    'U' => (8, ' '),
                    other => (0, other),
                };
                let code = rest.as_str().get(..digits)?;
                let code = u32::from_str_radix(code, 16).ok().and_then(char::from_u32);
                let unknown = if digits == 0 { one } else { char::REPLACEMENT_CHARACTER };
                out.push(code.unwrap_or(unknown));
                rest = rest.as_str()[digits..].chars();
            }
            other => out.push(other),
        }
    }
}

/// A line of `--logging-format=json` (`k8s.io/component-base/logs/json`).
fn json(line: &str) -> Option<KlogLine<'_>> {
    let start = line.find('{')?;
    let place = plain(&line[..start])?;
    let members: serde_json::Map<String, Json> = serde_json::from_str(&line[start..]).ok()?;
    let time = match members.get("ts")? {
        Json::Number(millis) => {
            let nanos = millis.as_f64()? * 1e6;
            (nanos.abs() < 9e18).then_some(WallTime(nanos as i64))?
        }
        Json::String(text) => {
            let time: Timestamp = text.parse().ok()?;
            WallTime(i64::try_from(time.as_nanosecond()).ok()?)
        }
        _ => return None,
    };
    let caller = members.get("caller")?.as_str()?;
    let (file, number) = caller.rsplit_once(':')?;
    let fits = file.ends_with(".go") && number.parse::<u32>().is_ok();
    members.get("msg")?.as_str()?;
    let (time, text) = (LineTime { time, is_exact: true }, Cow::Borrowed(&line[start..]));
    let clock = clock(&line[..start]);
    fits.then_some(KlogLine { time, clock, place, text, members: Some(members) })
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Subject {
    pub(super) uid: Option<String>,
    /// `namespace/name` of the pods.
    pub(super) pods: Vec<String>,
    pub(super) container: Option<String>,
    pub(super) id: Option<String>,
    pub(super) volume: Option<String>,
    /// The source is a manifest, not the apiserver.
    pub(super) from_manifest: bool,
    /// A container or sandbox started or was removed; it did not end.
    pub(super) goes_on: bool,
}

/// A line of the table.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Statement {
    pub(super) message: &'static Message,
    pub(super) subject: Subject,
    /// What is not removed, and the line's text; `None`: it states nothing of that kind.
    pub(super) why: Option<(Topic, String)>,
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// What the line states, if its message is of the table and all of it can be taken apart.
pub(super) fn statement(line: &KlogLine<'_>) -> Option<Statement> {
    if let Some(members) = &line.members {
        let text = members.get("msg")?.as_str()?;
        let fields = members.iter().map(|(key, value)| (key.as_str(), value.clone()));
        return of(text, fields.collect(), &line.text);
    }
    if let Some(rest) = line.text.strip_prefix(table::OPERATION) {
        return operation(rest, &line.text);
    }
    let Some(quoted) = line.text.strip_prefix('"') else {
        return of(&line.text, Vec::new(), &line.text);
    };
    let (text, rest) = unquoted(quoted)?;
    of(&text, fields(rest)?, &line.text)
}

/// `Operation for "{volumeName:… podName:UID nodeName:}" failed. No retries permitted until … Error: …`.
fn operation(rest: &str, line: &str) -> Option<Statement> {
    let message = table::MESSAGES.iter().find(|message| message.text == table::OPERATION)?;
    let (of, rest) = unquoted(rest)?;
    let (volume, pod) = of.rsplit_once(" podName:")?;
    let (uid, _) = pod.split_once(" nodeName:")?;
    let (_, error) = rest.split_once(" Error: ")?;
    // The same message has all failures to mount and to attach.
    let unmounts = ["UnmountVolume.", "UnmountDevice ", "UnmapVolume.", "UnmapDevice "];
    if !unmounts.iter().any(|sign| error.starts_with(sign)) {
        return None;
    }
    let (uid, volume) = (word(uid), Some(volume.to_owned()));
    let subject = Subject { uid, volume, ..Subject::default() };
    Some(Statement { message, subject, why: Some((Topic::Volume, shortened(line))) })
}

fn of(text: &str, fields: Vec<(&str, Json)>, line: &str) -> Option<Statement> {
    let is_it = |message: &&Message| {
        message.text == text
            || message.text.ends_with(" for volume") && text.starts_with(message.text)
    };
    let message = table::MESSAGES.iter().find(is_it)?;
    let mut subject = Subject::default();
    let mut error = "";
    for (key, field) in &fields {
        subject.set(key, field);
        if *key == "err" {
            error = field.as_str().unwrap_or_default();
        }
    }
    if message.text != text {
        // `… for volume "x" (OuterVolumeSpecName: "y") pod "UID" (UID: "UID")…`.
        let uid = text.rsplit_once("(UID: \"").and_then(|(_, rest)| rest.split_once('"'));
        subject.uid = uid.and_then(|(uid, _)| word(uid));
        let volume = text[message.text.len()..].split('"').nth(1);
        subject.volume = volume.map(str::to_owned);
    }
    let topic = match message.text {
        table::SIMILAR => {
            let uid = error.strip_prefix("orphaned pod \"").and_then(|rest| rest.split_once('"'));
            subject.uid = uid.and_then(|(uid, _)| word(uid));
            message.why
        }
        "Error syncing pod, skipping" => {
            let error = error.trim_start_matches('[');
            let action = error.strip_prefix("failed to \"").and_then(|rest| rest.split_once('"'));
            match action {
                Some(("KillContainer", rest)) => {
                    subject.container = rest.split('"').nth(1).and_then(word);
                    Some(Topic::Container)
                }
                Some(("KillPodSandbox", _)) => Some(Topic::Sandbox),
                // A container that does not start.
                _ => return None,
            }
        }
        _ => message.why,
    };
    Some(Statement { message, subject, why: topic.map(|topic| (topic, shortened(line))) })
}

fn shortened(text: &str) -> String {
    match text.len() <= MAX_TEXT {
        true => text.to_owned(),
        false => format!("{}…", &text[..text.floor_char_boundary(MAX_TEXT)]),
    }
}

impl Subject {
    fn set(&mut self, key: &str, field: &Json) {
        let text = field.as_str();
        let own = || text.and_then(word);
        let member = |name| field.get(name).and_then(Json::as_str);
        let id = || word(member("ID").or(text)?.rsplit("://").next()?);
        match key {
            "podUID" | "podID" => self.uid = own(),
            "pod" | "pods" => self.pods = items(field),
            // `name_namespace`.
            "podName" => {
                let name = text.and_then(|text| text.rsplit_once('_'));
                let name = name.map(|(name, namespace)| format!("{namespace}/{name}"));
                self.pods = name.into_iter().collect();
            }
            "containerName" | "container" => self.container = own(),
            "containerID" | "containerStatusID" | "podSandboxID" | "sandboxID" => self.id = id(),
            "source" => self.from_manifest = text.is_some_and(|source| source != "api"),
            "event" => {
                self.uid = member("ID").and_then(word);
                self.id = member("Data").and_then(word);
                self.goes_on = member("Type") != Some("ContainerDied");
            }
            "cgroupName" => {
                let parts = items(field);
                let uid = parts.iter().rev().find_map(|part| part.strip_prefix("pod"));
                self.uid = uid.and_then(word);
            }
            _ => {}
        }
    }
}

/// The texts and pods of a list, or the only one.
fn items(field: &Json) -> Vec<String> {
    let item = |item: &Json| match item {
        Json::String(text) => Some(text.clone()),
        pod => Some(format!("{}/{}", pod.get("namespace")?.as_str()?, pod.get("name")?.as_str()?)),
    };
    match field {
        Json::Array(items) => items.iter().filter_map(item).collect(),
        one => item(one).into_iter().collect(),
    }
}

/// A name or an id, if it looks like one.
fn word(text: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (!text.is_empty() && text.len() <= 253 && text.bytes().all(plain)).then(|| text.to_owned())
}

/// All fields of a structured line; `None`: something else stands among them.
fn fields(mut rest: &str) -> Option<Vec<(&str, Json)>> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (key, value) = rest.strip_prefix(' ')?.split_once('=')?;
        word(key)?;
        let (field, after) = value_of(value)?;
        if !found.iter().any(|(known, _)| *known == key) {
            found.push((key, field));
        }
        rest = after;
    }
    Some(found)
}

/// The value at the beginning of a text, and what follows it.
fn value_of(text: &str) -> Option<(Json, &str)> {
    match text.as_bytes().first() {
        Some(b'"') => {
            let (value, rest) = unquoted(&text[1..])?;
            Some((value.into(), rest))
        }
        // Its lines come next; in a quoted string they are here.
        Some(b'<') if text == "<" => Some(("".into(), "")),
        Some(b'<') if text.starts_with("<\n") => {
            let (value, rest) = text[2..].split_once("\n >")?;
            let lines = value.lines().map(|line| line.strip_prefix('\t').unwrap_or(line));
            Some((lines.collect::<Vec<_>>().join(" ").into(), rest))
        }
        Some(b'{' | b'[' | b'&') => group(text),
        _ => {
            let end = text.find(' ').unwrap_or(text.len());
            Some((text[..end].into(), &text[end..]))
        }
    }
}

/// A struct, a map or a list: in JSON, or as Go prints it.
fn group(text: &str) -> Option<(Json, &str)> {
    let mut json = serde_json::Deserializer::from_str(text).into_iter::<Json>();
    if let Some(Ok(value)) = json.next() {
        return Some((value, &text[json.byte_offset()..]));
    }
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some((go(&text[..=at]), &text[at + 1..]));
                }
            }
            _ => {}
        }
    }
    None
}

/// As Go prints it: `&{ID:u Type:ContainerDied Data:c}`, `[default/a default/b]`.
fn go(text: &str) -> Json {
    if let Some(items) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        return items.split_ascii_whitespace().collect();
    }
    let inner =
        text.trim_start_matches('&').strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    inner.unwrap_or_default().split(' ').filter_map(|member| member.split_once(':')).collect()
}
