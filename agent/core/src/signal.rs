//! Signals: Linux numbers and the names that Kubernetes, the CRI and images use for them.
//!
//! The names follow `kill(1)` and the kubelet (`v1.Signal` in core/v1 `types.go`, `Signal` in the
//! CRI's `api.proto`): `SIGTERM`, `SIGRTMIN+3`, `SIGRTMAX-2`. The numbers are those of x86 and Arm.

/// First real-time signal, as libc counts: the kernel's 32 and 33 are libc's own.
const RTMIN: u8 = 34;
/// Last real-time signal.
const RTMAX: u8 = 64;

/// Every standard signal and its name without `SIG`; where two names share a number the first one
/// is the name that [`name`] gives.
const STANDARD: [(u8, &str); 34] = [
    (1, "HUP"),
    (2, "INT"),
    (3, "QUIT"),
    (4, "ILL"),
    (5, "TRAP"),
    (6, "ABRT"),
    (6, "IOT"),
    (7, "BUS"),
    (8, "FPE"),
    (9, "KILL"),
    (10, "USR1"),
    (11, "SEGV"),
    (12, "USR2"),
    (13, "PIPE"),
    (14, "ALRM"),
    (15, "TERM"),
    (16, "STKFLT"),
    (17, "CHLD"),
    (17, "CLD"),
    (18, "CONT"),
    (19, "STOP"),
    (20, "TSTP"),
    (21, "TTIN"),
    (22, "TTOU"),
    (23, "URG"),
    (24, "XCPU"),
    (25, "XFSZ"),
    (26, "VTALRM"),
    (27, "PROF"),
    (28, "WINCH"),
    (29, "IO"),
    (29, "POLL"),
    (30, "PWR"),
    (31, "SYS"),
];

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
    STANDARD.iter().find(|(_, standard)| *standard == short).map(|(number, _)| *number)
}

/// The name of a signal: `SIGTERM`; for real-time ones counted from the nearer end, as `kill -l`
/// does: `SIGRTMIN+3`, `SIGRTMAX-2`. Any other number as `signal 99`.
pub fn name(number: u8) -> String {
    match number {
        RTMIN => "SIGRTMIN".to_owned(),
        RTMAX => "SIGRTMAX".to_owned(),
        35..=49 => format!("SIGRTMIN+{}", number - RTMIN),
        50..=63 => format!("SIGRTMAX-{}", RTMAX - number),
        _ => match STANDARD.iter().find(|(standard, _)| *standard == number) {
            Some((_, name)) => format!("SIG{name}"),
            None => format!("signal {number}"),
        },
    }
}

/// What stands after `RTMIN` or `RTMAX`: nothing, or a sign and digits.
fn real_time_offset(text: &str, sign: char) -> Option<u8> {
    if text.is_empty() {
        return Some(0);
    }
    let digits = text.strip_prefix(sign)?;
    // `u8::from_str` takes a sign of its own, which would let `RTMIN++3` pass.
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
