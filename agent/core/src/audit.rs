//! How a process will respond to its stop signal, from what /proc shows of it. Pure.

mod advice;
mod past;

pub use advice::{Advice, Spec, advise};
pub use past::{Past, PastStops};

use crate::{
    input::{OtherThreads, StopState},
    process::SIGKILL,
    report::{StopResponse, signal},
};
use StopResponse::{Blocked, EndsByDefault, HasHandler, Ignores, Waits};

/// Default action: ignore (CHLD, CONT, URG, WINCH) or stop (STOP, TSTP, TTIN, TTOU); `sig_kernel_ignore` and
/// `sig_kernel_stop` in include/linux/signal.h.
const DOES_NOT_END: [u8; 8] = [17, 18, 23, 28, 19, 20, 21, 22];

/// When a row is certain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Certain {
    Never,
    Always,
    /// If all that it depends on was read, at one moment.
    IfComplete,
}
use Certain::{Always, IfComplete, Never};

/// What the rows ask of.
struct Seen<'a> {
    of: &'a StopState,
    others: OtherThreads,
    signal: u8,
}

/// One reading. `why`: `{who}` is the process, `{signal}` the stop signal.
struct Row {
    fits: fn(&Seen<'_>) -> bool,
    response: StopResponse,
    certain: Certain,
    why: &'static str,
}

#[rustfmt::skip]
const fn row(fits: fn(&Seen<'_>) -> bool, response: StopResponse, certain: Certain, why: &'static str) -> Row {
    Row { fits, response, certain, why }
}

/// The first row that fits. A signal to a process is discarded where it is sent, by the mask of the leading thread alone
/// (`sig_ignored`, `sig_task_ignored`, kernel/signal.c): only what that thread blocks can wait for anyone.
#[rustfmt::skip]
const TABLE: [Row; 11] = [
    row(|s| s.signal == SIGKILL, EndsByDefault, Always,
        "{signal} ends any process at once."),
    row(|s| s.of.caught, HasHandler, Never,
        "{who} has a handler for {signal}; what the handler does is not known."),
    row(|s| s.of.waits == Some(true), Waits, Never,
        "{who} waits in rt_sigtimedwait; /proc does not show whether for {signal}."),
    row(|s| s.of.ignored && !s.of.blocked, Ignores, IfComplete,
        "{who} has set {signal} to SIG_IGN: the kernel discards it."),
    row(|s| s.of.blocked && s.of.signalfd == Some(true), Waits, Never,
        "{who} blocks {signal} and has a signalfd for it; /proc does not show whether it reads from it."),
    row(|s| s.of.blocked && s.others.waits, Waits, Never,
        "{who} blocks {signal}, and one of its threads waits in rt_sigtimedwait; /proc does not show whether for {signal}."),
    row(|s| s.of.blocked && s.others.all_block, Blocked, IfComplete,
        "{who} blocks {signal} in all its threads, and none waits for it: it stays pending."),
    row(|s| s.of.ignored, Ignores, IfComplete,
        "{who} has set {signal} to SIG_IGN, and one of its threads does not block it: the kernel discards it."),
    row(|s| DOES_NOT_END.contains(&s.signal), Ignores, IfComplete,
        "{who} has no handler for {signal}, whose default action ends no process."),
    row(|s| s.of.ns_pid == Some(1), Ignores, IfComplete,
        "{who} has no handler for {signal}: the kernel discards it."),
    row(|_| true, EndsByDefault, IfComplete,
        "{who} has no handler for {signal}: its default action ends the process without any cleanup."),
];

/// A response and its reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    pub response: StopResponse,
    pub certain: bool,
    pub why: String,
}

/// Reads the state of a process. `unread`: what of it could not be read.
pub fn read(state: &StopState, stop_signal: u8, unread: &[String]) -> Reading {
    // A process that blocks a signal usually does so in all its threads.
    let unknown = OtherThreads { all_block: true, ..OtherThreads::default() };
    let seen = Seen { of: state, others: state.others.unwrap_or(unknown), signal: stop_signal };
    let is_complete = state.settled
        && state.waits.is_some()
        && state.ns_pid.is_some()
        && (!state.blocked
            || state.signalfd.is_some() && state.others.is_some_and(|others| others.settled));
    // The last row fits anything.
    let row = TABLE.iter().find(|row| (row.fits)(&seen)).unwrap_or(&TABLE[TABLE.len() - 1]);
    let certain = row.certain == Always || row.certain == IfComplete && is_complete;
    let who = if state.ns_pid == Some(1) { "PID 1" } else { "The main process" };
    let who = format!("{who} ({})", state.comm);
    let name = signal::name(stop_signal);
    let mut why = row.why.replace("{signal}", &name).replace("{who}", &who);
    why += &named(state, row.response, &name);
    if row.certain == IfComplete && !is_complete {
        why += if unread.is_empty() { " It ran while it was read." } else { " Not read: " };
        why += &unread.join(", ");
        why += if unread.is_empty() { "" } else { "." };
    }
    Reading { response: row.response, certain, why }
}

/// What is known of programs of this name, and of the children of such a process.
fn named(state: &StopState, response: StopResponse, signal: &str) -> String {
    let is_pid_one = state.ns_pid == Some(1);
    let children = || match (state.children, &*state.child) {
        (1, child) => format!("child ({child})"),
        (n, child) => format!("{n} children ({child}, …)"),
    };
    match response {
        HasHandler if is_pid_one && state.exe == "node" => format!(
            " Node.js installs one that raises {signal} again with its default action, which the kernel discards for PID 1: \
             unless the program handles {signal} itself, it runs until SIGKILL."
        ),
        HasHandler if state.children > 0 && is_shell(state) => format!(
            " A shell runs its trap when its foreground child has exited (inferred), and does not pass {signal} on to its {}.",
            children()
        ),
        Ignores if is_pid_one && state.children > 0 => {
            format!(" Its {} will not be sent {signal}, either.", children())
        }
        _ => String::new(),
    }
}

/// By the name of its program; busybox is many programs.
pub fn is_shell(state: &StopState) -> bool {
    const SHELLS: [&str; 7] = ["sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"];
    let is = |name: &str| SHELLS.contains(&name);
    is(&state.comm) || is(&state.exe) || state.exe == "busybox" && state.comm.ends_with(".sh")
}
