//! The formats of proc(5). Pure.

use coroner_core::input::TaskState;

/// What is needed of /proc/PID/stat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    pub comm: String,
    pub state: TaskState,
    pub parent: u32,
    /// Since boot, in clock ticks.
    pub started: u64,
}

impl Stat {
    /// It has not ended: a zombie holds nothing but its number.
    pub fn lives(&self) -> bool {
        self.state != TaskState::Zombie
    }

    /// Since boot, ns: whole clock ticks.
    pub fn started_ns(&self) -> u64 {
        self.started.saturating_mul(1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
    }
}

/// What /proc/PID/status and /proc/PID/task/TID/status show of signals. Two that are equal show that the thread did not run
/// in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SignalState {
    pub state: TaskState,
    /// The number in the innermost PID namespace.
    pub ns_pid: Option<u32>,
    pub blocked: u64,
    pub ignored: u64,
    pub caught: u64,
    /// How often it was switched to another thread.
    switches: u64,
}

/// `None`: a line is missing. A name cannot forge one: control characters in it are escaped (`proc_task_name`).
pub fn signals(status: &str) -> Option<SignalState> {
    let line =
        |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let mask = |key| u64::from_str_radix(line(key)?.trim(), 16).ok();
    let count = |key| line(key)?.trim().parse::<u64>().ok();
    Some(SignalState {
        state: task_state(line("State")?.trim().chars().next()?),
        ns_pid: line("NSpid").and_then(|all| all.split_ascii_whitespace().last()?.parse().ok()),
        blocked: mask("SigBlk")?,
        ignored: mask("SigIgn")?,
        caught: mask("SigCgt")?,
        switches: count("voluntary_ctxt_switches")? + count("nonvoluntary_ctxt_switches")?,
    })
}

/// /proc/PID/fdinfo/FD of a signalfd: the signals that it takes.
pub fn sigmask(fdinfo: &str) -> Option<u64> {
    let mask = fdinfo.lines().find_map(|line| line.strip_prefix("sigmask:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

/// /proc/PID/stat and /proc/PID/task/TID/stat. The name may hold blanks, parentheses and bytes that are no
/// UTF-8: any name is cut at 15 bytes.
pub fn stat(text: &[u8]) -> Option<Stat> {
    let text = String::from_utf8_lossy(text);
    let (left, right) = text.rsplit_once(')')?;
    let (_, comm) = left.split_once('(')?;
    let mut fields = right.split_ascii_whitespace();
    let state = task_state(fields.next()?.chars().next()?);
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?; // field 22; the parent was the fourth
    Some(Stat { comm: comm.to_owned(), state, parent, started })
}

/// The state behind its letter (`fs/proc/array.c`, `task_state_array`).
fn task_state(letter: char) -> TaskState {
    match letter {
        'D' => TaskState::Uninterruptible,
        'R' => TaskState::Running,
        'S' | 'I' => TaskState::Sleeping,
        'T' | 't' => TaskState::Stopped,
        'Z' | 'X' => TaskState::Zombie,
        _ => TaskState::Other,
    }
}

/// /proc/PID/wchan: a function, or 0 if the process runs or must not be looked at.
pub fn wchan(text: &str) -> Option<String> {
    let name = text.trim();
    (!matches!(name, "" | "0")).then(|| name.to_owned())
}

/// /proc/PID/stack: `[<0>] function+0x10/0x20 [module]` a line, innermost first.
pub fn stack(text: &str) -> Vec<String> {
    let function = |line: &str| {
        let name = line.split_ascii_whitespace().nth(1)?.split('+').next()?;
        (!name.is_empty()).then(|| name.to_owned())
    };
    text.lines().filter_map(function).collect()
}

/// `cgroup.events`: whether all of the cgroup is frozen.
pub fn events_frozen(text: &str) -> Option<bool> {
    text.lines().find_map(|line| match line.strip_prefix("frozen ")? {
        "1" => Some(true),
        "0" => Some(false),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats() {
        let tail = "S 1 10 10 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 12 0 86400 99 1";
        for comm in ["app", "a b", "((", ") ) D 2 3", ""] {
            let state = TaskState::Sleeping;
            let expected = Stat { comm: comm.into(), state, parent: 1, started: 86_400 };
            assert_eq!(
                stat(format!("10 ({comm}) {tail}\n").as_bytes()),
                Some(expected),
                "{comm:?}"
            );
        }
        for bad in ["", "10 (x", "10 x) S", "10 (x)", "10 (x) S 1 2 3"] {
            assert_eq!(stat(bad.as_bytes()), None, "{bad:?}");
        }
    }

    /// Eight letters of two bytes each: the kernel keeps seven and a half.
    #[test]
    fn a_name_that_is_cut_within_a_letter() {
        let comm = &"кассовый".as_bytes()[..15];
        let text = [b"10 (", comm, b") D 1 10 10 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 12 0 86400 99"];
        let found = stat(&text.concat()).expect("a process");
        assert_eq!((found.comm.as_str(), found.started), ("кассовы\u{fffd}", 86_400));
    }

    #[test]
    fn where_in_the_kernel() {
        assert_eq!(wchan("nfs_wait_bit_killable").as_deref(), Some("nfs_wait_bit_killable"));
        assert_eq!(wchan("0"), None);
        assert_eq!(wchan(""), None);
        let text = "[<0>] rpc_wait_bit_killable+0x1e/0xa0 [sunrpc]\n[<0>] nfs4_run+0x0/0x10\n\
                    garbage\n\n[<0>] 0xffffffffffffffff\n";
        assert_eq!(stack(text), ["rpc_wait_bit_killable", "nfs4_run", "0xffffffffffffffff"]);
    }

    #[test]
    fn frozen_cgroups() {
        assert_eq!(events_frozen("populated 1\nfrozen 1\n"), Some(true));
        assert_eq!(events_frozen("populated 1\nfrozen 0\n"), Some(false));
        assert_eq!(events_frozen("populated 1\n"), None);
    }

    /// In a container of a nested node: the numbers are those of each PID namespace, the innermost last.
    #[test]
    fn signals_of_a_status() {
        let text = "Name:\tSigCgt\\n\nState:\tS (sleeping)\nNSpid:\t4711\t88\t1\nSigQ:\t0/96365\n\
            SigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\nSigBlk:\t0000000000004000\n\
            SigIgn:\t0000000001001000\nSigCgt:\tffffffff00000002\n\
            voluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        let found = signals(text).unwrap();
        assert_eq!(
            (found.state, found.ns_pid, found.switches),
            (TaskState::Sleeping, Some(1), 695)
        );
        assert_eq!((found.blocked, found.ignored), (0x4000, 0x100_1000));
        assert_eq!(found.caught, 0xffff_ffff_0000_0002);
        assert_eq!(signals(&text.replace("NSpid", "Other")).unwrap().ns_pid, None);
        for line in ["State", "SigBlk", "SigIgn", "SigCgt", "\nvoluntary"] {
            assert_eq!(signals(&text.replace(line, "\nOther")), None, "{line}");
        }
        assert_eq!(sigmask("pos:\t0\nflags:\t02\nsigmask:\t0000000000004002\n"), Some(0x4002));
        assert_eq!(sigmask("pos:\t0\ntfd: 5 events: 1\n"), None);
    }
}
