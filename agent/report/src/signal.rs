//! Signals: Linux numbers, and the names in Kubernetes, the CRI and images.
//!
//! The names follow `kill(1)` and the kubelet (`v1.Signal` in core/v1 `types.go`, `Signal` in the CRI's
//! `api.proto`): `SIGTERM`, `SIGRTMIN+3`, `SIGRTMAX-2`. The numbers are those of x86 and Arm.

/// First real-time signal in libc, which reserves the kernel's 32 and 33.
pub const RTMIN: u8 = 34;
/// Last real-time signal.
pub const RTMAX: u8 = 64;

/// The standard signals from 1 on, without `SIG`.
const STANDARD: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

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
