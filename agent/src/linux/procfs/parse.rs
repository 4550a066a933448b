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
}
