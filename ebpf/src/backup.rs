//! Hooks with a second program, which runs for the events for which the kernel skipped the first.

/// Per-CPU array of counters, by [`Hook`]: events that certainly only the second program has seen.
pub const RUNS: &str = "BACKUP_RUNS";
/// Events of each hook, by a hash of their key. If two that happen at the same time have the same place, one of them
/// may be reported twice.
const SHARE: u32 = 4_096;
/// Capacity of `BACKUP_SEEN`, the programs' own array.
pub const SLOTS: u32 = Hook::COUNT * SHARE;

/// A hook with a second program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Hook {
    /// `sched_process_exit`.
    Exit,
    /// `sched_process_exec`.
    Exec,
    /// `inet_sock_set_state`.
    Transition,
    /// `tcp_send_reset`.
    Reset,
}

impl Hook {
    /// How many there are.
    pub const COUNT: u32 = 4;

    /// The place of an event in it.
    #[inline(always)]
    pub const fn slot(self, event: u64) -> u32 {
        // 2^64 / φ: the upper bits depend on all of the key's.
        let hash = event.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        self as u32 * SHARE + hash as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_happen_together_have_different_places() {
        let base = 0xffff_8881_0a00_0000_u64;
        for hook in [Hook::Exit, Hook::Exec, Hook::Transition, Hook::Reset] {
            let mut used = [0_u32; SLOTS as usize];
            // Sockets, which are 2 KiB and more apart, and threads, which have successive numbers.
            (0..64).for_each(|n| used[hook.slot(base + n * 2048) as usize] += 1);
            (0..64).for_each(|n| used[hook.slot((77 << 32) + n) as usize] += 1);
            let own = hook as usize * SHARE as usize..(hook as usize + 1) * SHARE as usize;
            assert_eq!(used[own.clone()].iter().sum::<u32>(), 128);
            assert!(used[own].iter().all(|used| *used <= 2));
        }
    }
}
