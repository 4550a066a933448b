//! What is asked before [`maps::CONTAINERS`](crate::maps::CONTAINERS): whether a cgroup may be in it
//! at all. Nearly all that happens on a node happens outside of containers or in a few of them, and
//! a lookup in a hash map costs more than all else that a program does about the others.
//!
//! A table, indexed by a cgroup's [`slot`]. A slot is one word, so that who asks reads one line of the processor's
//! cache, and has two bytes, each with one writer:
//!
//! * a counter: how many cgroups of this slot `cgroup_mkdir` has put into the map. Raised before the entry is made,
//!   lowered after it is taken out;
//! * a mark: some cgroup of this slot was put into the map by the agent, which has a program set the mark
//!   ([`TELL`](crate::maps::TELL)) before it makes the entry. Never cleared.
//!
//! **A cgroup that is in the map is never said not to be.** Its slot's counter is not 0, or its mark
//! is set, for as long as the entry is there:
//!
//! * Raising and lowering are plain reads and writes, and none is lost: the tracepoints `cgroup_mkdir`
//!   and `cgroup_rmdir` are called with `cgroup_mutex` held (`cgroup_mkdir`, `cgroup_rmdir` in
//!   kernel/cgroup/cgroup.c, of all hierarchies of both versions), so there is one writer at a time,
//!   and each sees what the one before it wrote.
//! * Only what was raised is lowered: the entry says so
//!   ([`CONTAINER_COUNTED`](crate::CONTAINER_COUNTED)), and all who rewrite an entry keep its flags.
//!   An entry has one maker: a directory can be found by user space only after `cgroup_mkdir` has
//!   run for it (`kernfs_activate` comes later), and the agent inserts only what is not there. An
//!   insertion that the map refuses is lowered again, within the same lock. An entry of the kernel's
//!   that user space takes out leaves its count behind, which costs lookups.
//!   Even if an entry of the agent's were lowered (the flags that `cgroup_rmdir` reads are of a
//!   value that user space may replace meanwhile), its slot is marked for ever: there the counter no
//!   longer matters. In a slot that is not marked all entries ever were the kernel's.
//! * A counter that has reached its highest value stays there: it no longer knows how many there are.
//! * Who asks about a cgroup got its id from a task that is in it (or from a hook that was called for
//!   it). A task gets into a cgroup under `cgroup_mutex` as well, after that of `cgroup_mkdir` was
//!   released, and `task->cgroups` is published after that: who sees the task there sees the counter
//!   raised, as it sees the entry. Reading pointer → cgroup → id → counter is a chain of dependent
//!   loads, which no machine reorders.
//! * Ids of the hierarchies of cgroup v1 collide with those of cgroup2. What is counted is of cgroup2, and so is
//!   what is lowered: that is compared before an entry is taken out.
//! * User space takes out only what it has put in (the self-test's cgroup), and its mark stays. Whoever
//!   has an entry at hand looks up the container that it belongs to without asking here.
//! * User space' mark and entry are two calls of bpf(2). Who sees the entry only for a moment later
//!   misses no more than who came a moment earlier: these cgroups were there before the agent knew.
//!
//! That a cgroup may be in the map says nothing: others share its slot. Then the map is asked.

/// How many slots there are: with the cgroups of a full node (500) six in a hundred others are
/// looked up for nothing. No more, so that the table lies in one piece of memory (a map of more
/// than 32 KiB is put together from pages, each of which the processor has to translate by itself).
pub const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 13;

/// A cgroup's slot. Ids are counted up, by as much as a cgroup has files: equal steps, which a
/// product alone would keep.
#[inline(always)]
pub const fn slot(cgroup: u64) -> usize {
    ((cgroup ^ (cgroup >> 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOT_BITS))
        as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroups_of_a_full_node_are_spread_over_the_slots() {
        // A pod and its containers, on a node with 250 pods; a cgroup has that many files, or more.
        for files in 20..80 {
            for generation in [0u64, 1 << 32] {
                let mut taken = [false; SLOTS];
                for number in 0..1000 {
                    taken[slot(generation + 5000 + number * files)] = true;
                }
                let taken = taken.iter().filter(|taken| **taken).count();
                assert!(taken > 880, "{taken} slots for 1000 cgroups with {files} files each");
            }
        }
    }
}
