//! Values of flags and variables. Each error says what to use instead.

use crate::sources::kube::lookup::is_name;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use coroner_report::WallTime;
use std::{
    fmt::Display,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// A shorter threshold would report the kubelet's normal cleanup as a leak.
const MIN_THRESHOLD: Duration = Duration::from_secs(1);
/// A longer threshold would report practically no leak.
const MAX_THRESHOLD: Duration = Duration::from_secs(7 * 24 * 3600);
/// The kernel refuses bigger rings than this on some versions, and no node needs them.
const MAX_RING: u32 = 1 << 30;
/// Maximum length of a process name in /proc (`TASK_COMM_LEN` − 1).
const MAX_COMM: usize = 15;

type Parsed<T> = Result<T, String>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrOff<T>(pub Option<T>);

pub(super) fn or_off<T, E: Display>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Parsed<OrOff<T>> {
    match text {
        "off" => Ok(OrOff(None)),
        text => {
            parse(text).map(|value| OrOff(Some(value))).map_err(|error| format!("{error}, or off"))
        }
    }
}

/// `5s`, `250ms`, `1m 30s`: never negative.
pub(super) fn duration(text: &str) -> Parsed<Duration> {
    let duration = coroner_report::parse_duration(text);
    duration.ok_or_else(|| "use a number with a unit, for example 250ms, 5s, 1m or 1d".to_owned())
}

pub(super) fn duration_from(text: &str, least: Duration) -> Parsed<Duration> {
    let is_long_enough = |given: &Duration| *given >= least;
    Some(duration(text)?).filter(is_long_enough).ok_or_else(|| format!("use at least {least:?}"))
}

pub(super) fn threshold(text: &str) -> Parsed<Duration> {
    let is_useful = |given: &Duration| *given <= MAX_THRESHOLD;
    let given = duration_from(text, MIN_THRESHOLD)?;
    Some(given).filter(is_useful).ok_or_else(|| "use at most 7d".to_owned())
}

/// A duration before now, or a time, as it is passed on.
pub(super) fn time(text: &str) -> Parsed<String> {
    let time = coroner_report::parse_time(text, WallTime::default()).map(|_| text.to_owned());
    time.ok_or_else(|| {
        "use a number with a unit, for example 30m or 2d, or a time as 2026-11-28T02:00:00Z"
            .to_owned()
    })
}

/// A label of a closed set.
pub(super) fn labels<T: Copy + Send + Sync>(
    all: &'static [T],
    label: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let labels = PossibleValuesParser::new(all.iter().map(|one| label(*one)));
    labels
        .try_map(move |text| all.iter().find(|one| label(**one) == text).copied().ok_or("unknown"))
}

/// `7d`; `0` for none.
pub(super) fn age(text: &str) -> Parsed<Duration> {
    if text == "0" { Ok(Duration::ZERO) } else { duration(text) }
}

pub(super) fn history_size(text: &str) -> Parsed<u32> {
    let is_enough = |given: &u32| *given >= 1 << 20;
    Some(size(text)?).filter(is_enough).ok_or_else(|| "use at least 1MiB".to_owned())
}

/// `4096`, `64KiB`, `1MiB`.
pub(super) fn size(text: &str) -> Parsed<u32> {
    let (digits, unit) = [("KiB", 1 << 10), ("MiB", 1 << 20)]
        .into_iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))
        .unwrap_or((text, 1));
    let bytes = digits.trim().parse::<u32>().ok().and_then(|n| n.checked_mul(unit));
    bytes.ok_or_else(|| "use bytes, KiB or MiB, for example 65536, 64KiB or 1MiB".to_owned())
}

/// A size that the kernel takes as that of a ring.
pub(super) fn ring_bytes(text: &str) -> Parsed<u32> {
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    let bytes = size(text)?;
    if bytes.is_power_of_two() && (page..=MAX_RING).contains(&bytes) {
        return Ok(bytes);
    }
    let nearest = bytes.clamp(page, MAX_RING).next_power_of_two();
    Err(format!("use a power of two from {page} (one page) to {MAX_RING}; try {nearest}"))
}

/// `0.0.0.0:9470`, `[::]:9470`; `:9470` means all addresses.
pub(super) fn address(text: &str) -> Parsed<SocketAddr> {
    let full = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    full.parse().map_err(|_| "use ADDRESS:PORT, for example 127.0.0.1:9470 or [::]:9470".to_owned())
}

pub(super) fn absolute(text: &str) -> Parsed<PathBuf> {
    let path = Path::new(text);
    path.is_absolute().then(|| path.to_owned()).ok_or_else(|| "use an absolute path".to_owned())
}

pub(super) fn comm(text: &str) -> Parsed<String> {
    match (1..=MAX_COMM).contains(&text.len()) {
        true => Ok(text.to_owned()),
        false => Err(format!("use the name from /proc/PID/comm, at most {MAX_COMM} bytes")),
    }
}

pub(super) fn node_name(name: &str) -> Parsed<String> {
    match is_name(name) {
        true => Ok(name.to_owned()),
        false => {
            Err("use at most 253 lower-case letters, digits, '-' and '.'; see `kubectl get nodes`"
                .into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_given() {
        let ms = Duration::from_millis;
        for (text, millis) in
            [("5s", 5000), ("250ms", 250), ("1d", 86_400_000), ("1w1m", 604_860_000)]
        {
            assert_eq!(duration(text), Ok(ms(millis)), "{text}");
        }
        for (text, bytes) in [("4096", 4096), ("64KiB", 65536), ("1024MiB", 1 << 30)] {
            assert_eq!(ring_bytes(text), Ok(bytes), "{text}");
        }
        for (text, given) in [(":80", "[::]:80"), ("[::1]:0", "[::1]:0")] {
            assert_eq!(address(text), Ok(given.parse().unwrap()), "{text}");
        }
        assert_eq!(or_off("off", address), Ok(OrOff(None)));
        assert_eq!(or_off("/a", absolute), Ok(OrOff(Some("/a".into()))));
        assert_eq!(node_name("n-1.a"), Ok("n-1.a".to_owned()));
    }

    #[test]
    fn what_cannot_work_is_refused_with_what_can() {
        type Refuses = fn(&str) -> Option<String>;
        let refusals: [(Refuses, &[&str], &str); 8] = [
            (|text| duration(text).err(), &["", "5", "-1s", "soon", "1y"], "for example 250ms"),
            (|text| threshold(text).err(), &["999ms"], "at least 1s"),
            (|text| threshold(text).err(), &["8d"], "at most 7d"),
            (|text| ring_bytes(text).err(), &["", "MiB", "-1", "4096MiB", "1GiB"], "64KiB or 1MiB"),
            (|text| ring_bytes(text).err(), &["5000"], "try 8192"),
            (
                |text| or_off(text, address).err(),
                &["", "80", "localhost:80", "1.2.3.4"],
                "[::]:9470, or off",
            ),
            (|text| comm(text).err(), &["", "a-name-of-16-chars"], "at most 15 bytes"),
            (|text| node_name(text).err(), &["Node_1", "a..b", ""], "kubectl get nodes"),
        ];
        for (parse, texts, wanted) in refusals {
            for text in texts {
                assert!(
                    parse(text).is_some_and(|error| error.contains(wanted)),
                    "{text}: {wanted}"
                );
            }
        }
    }
}
