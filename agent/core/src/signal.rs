//! Signals: Linux numbers, and the names in Kubernetes, the CRI and images.
//!
//!
//! The names follow `kill(1)` and the kubelet (`v1.Signal` in core/v1 `types.go`, `Signal` in the CRI's
//! `api.proto`): `SIGTERM`, `SIGRTMIN+3`, `SIGRTMAX-2`. The numbers are those of x86 and Arm.

/// First real-time signal in libc, which reserves the kernel's 32 and 33.
const RTMIN: u8 = 34;
/// Last real-time signal.
const RTMAX: u8 = 64;

/// The standard signals from 1 on, without `SIG`.
const STANDARD: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];
/// Other names of standard signals.
const ALIASES: [(&str, &str); 3] = [("IOT", "ABRT"), ("CLD", "CHLD"), ("POLL", "IO")];

/// The number of a signal by name (`SIGTERM`, `TERM`, `SIGRTMIN+3`, `RTMAX-2`, in any case), or of
/// a number in decimal digits (an image's STOPSIGNAL may be one). `None`: no such signal.
pub fn number(name: &str) -> Option<u8> {
    if !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit()) {
        return name.parse().ok().filter(|n| (1..=RTMAX).contains(n));
    }
    let upper = name.to_ascii_uppercase();
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
    let name = alias.map_or(short, |(_, name)| *name);
    STANDARD.iter().zip(1..).find(|(standard, _)| **standard == name).map(|(_, number)| number)
}

/// The name of a signal: `SIGTERM`; real-time signals count from the nearer end, as in `kill -l`:
/// `SIGRTMIN+3`, `SIGRTMAX-2`. Any other number: `signal 99`.
pub fn name(number: u8) -> String {
    match number {
        RTMIN => "SIGRTMIN".to_owned(),
        RTMAX => "SIGRTMAX".to_owned(),
        35..=49 => format!("SIGRTMIN+{}", number - RTMIN),
        50..=63 => format!("SIGRTMAX-{}", RTMAX - number),
        _ => match STANDARD.get(usize::from(number).wrapping_sub(1)) {
            Some(name) => format!("SIG{name}"),
            None => format!("signal {number}"),
        },
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_numbers() {
        for (text, expected) in [
            ("SIGTERM", Some(15)),
            ("TERM", Some(15)),
            ("sigterm", Some(15)),
            ("15", Some(15)),
            ("SIGABRT", Some(6)),
            ("SIGIOT", Some(6)),
            ("SIGPOLL", Some(29)),
            ("SIGCLD", Some(17)),
            ("SIGWINCH", Some(28)),
            ("SIGRTMIN", Some(34)),
            ("SIGRTMIN+3", Some(37)),
            ("RTMIN+15", Some(49)),
            ("SIGRTMIN+30", Some(64)),
            ("SIGRTMAX", Some(64)),
            ("SIGRTMAX-14", Some(50)),
            ("SIGRTMAX-30", Some(34)),
            ("SIGRTMIN+31", None),
            ("SIGRTMAX-31", None),
            ("SIGRTMIN-1", None),
            ("SIGRTMIN++3", None),
            ("SIGRTMIN+", None),
            ("SIGRTMIN+999", None),
            ("", None),
            ("SIG", None),
            ("0", None),
            ("65", None),
            ("300", None),
            ("-15", None),
            ("+15", None),
            ("SIGNOTHING", None),
            ("RUNTIME_DEFAULT", None),
            ("SIGÄ", None),
        ] {
            assert_eq!(number(text), expected, "{text:?}");
        }
    }

    #[test]
    fn numbers_become_names() {
        for (n, expected) in [
            (15, "SIGTERM"),
            (6, "SIGABRT"),
            (29, "SIGIO"),
            (17, "SIGCHLD"),
            (34, "SIGRTMIN"),
            (37, "SIGRTMIN+3"),
            (49, "SIGRTMIN+15"),
            (50, "SIGRTMAX-14"),
            (64, "SIGRTMAX"),
            (0, "signal 0"),
            (32, "signal 32"),
            (99, "signal 99"),
        ] {
            assert_eq!(name(n), expected);
        }
    }

    #[test]
    fn every_name_leads_back_to_its_number() {
        for n in (1..=31).chain(RTMIN..=RTMAX) {
            assert_eq!(number(&name(n)), Some(n));
        }
    }
}
