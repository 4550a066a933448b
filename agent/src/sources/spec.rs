//! What the CRI and the apiserver both have of a container's spec: the names of signals, and commands.

use coroner_core::{
    input::Hook,
    signal::{RTMAX, RTMIN, name},
};

/// Other names of standard signals.
const ALIASES: [(&str, &str); 3] = [("IOT", "ABRT"), ("CLD", "CHLD"), ("POLL", "IO")];

/// The number of a signal by name (`SIGTERM`, `TERM`, `SIGRTMIN+3`, `RTMAX-2`, in any case), or of
/// a number in decimal digits (an image's STOPSIGNAL may be one). `None`: no such signal.
pub(crate) fn signal_number(text: &str) -> Option<u8> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().ok().filter(|n| (1..=RTMAX).contains(n));
    }
    let upper = text.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some(offset) = short.strip_prefix("RTMIN") {
        let number = RTMIN.checked_add(real_time_offset(offset, '+')?)?;
        return (number <= RTMAX).then_some(number);
    }
    if let Some(offset) = short.strip_prefix("RTMAX") {
        let number = RTMAX.checked_sub(real_time_offset(offset, '-')?)?;
        return (number >= RTMIN).then_some(number);
    }
    let alias = ALIASES.iter().find(|(alias, _)| *alias == short);
    let wanted = format!("SIG{}", alias.map_or(short, |(_, name)| *name));
    (1..RTMIN).find(|number| name(*number) == wanted)
}

/// The offset after `RTMIN` or `RTMAX`: nothing, or a sign and digits.
fn real_time_offset(text: &str, sign: char) -> Option<u8> {
    if text.is_empty() {
        return Some(0);
    }
    let digits = text.strip_prefix(sign)?;
    // `u8::from_str` accepts a sign, so that `RTMIN++3` would pass.
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// An exec hook, reduced to the binary's file name.
pub(crate) fn exec_hook(command: &str) -> Hook {
    Hook::Exec(binary_name(command))
}

/// The file name of the binary in a command's first word. Arguments may contain secrets, also those in the
/// same word as the binary.
pub(crate) fn binary_name(command: &str) -> String {
    let binary = command.split_whitespace().next().unwrap_or_default();
    binary.rsplit('/').next().unwrap_or(binary).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_numbers() {
        for (text, expected) in [
            ("TERM", Some(15)),
            ("sigterm", Some(15)),
            ("15", Some(15)),
            ("SIGIOT", Some(6)),
            ("SIGPOLL", Some(29)),
            ("SIGCLD", Some(17)),
            ("RTMIN+15", Some(49)),
            ("SIGRTMIN+30", Some(64)),
            ("SIGRTMAX-30", Some(34)),
            ("SIGRTMIN+31", None),
            ("SIGRTMAX-31", None),
            ("SIGRTMIN-1", None),
            ("SIGRTMIN++3", None),
            ("SIG", None),
            ("0", None),
            ("300", None),
            ("+15", None),
            ("SIGÄ", None),
        ] {
            assert_eq!(signal_number(text), expected, "{text:?}");
        }
    }

    #[test]
    fn every_name_leads_back_to_its_signal_number() {
        for n in (1..=31).chain(RTMIN..=RTMAX) {
            assert_eq!(signal_number(&name(n)), Some(n));
        }
    }
}
