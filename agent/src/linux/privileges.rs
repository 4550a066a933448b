//! Capabilities of this process: needed, missing, and dropped once the kernel programs run.

use rustix::{
    io,
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs},
};

/// Capabilities that the agent keeps while the kernel programs run, if it holds them.
///
/// * `SYS_PTRACE`: `/proc/PID/ns/*`, `/proc/PID/wchan` and `/proc/PID/root`
///   (`ptrace_may_access`, kernel `kernel/ptrace.c`).
/// * `SYS_ADMIN`: `/proc/PID/stack` (`proc_pid_stack`, `fs/proc/base.c`). The DaemonSet never has it.
/// * The two of `DAC`: files of other users, where the agent's own user is not root's.
const KEPT: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MissingCapability {
    /// Name, for example `CAP_BPF`.
    pub capability: &'static str,
    pub purpose: &'static str,
    /// The agent cannot work without the capability; otherwise it only reports less.
    pub essential: bool,
}

/// The effective capabilities of the calling thread; none if capget(2) fails.
pub fn held() -> CapabilitySet {
    capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

/// What is missing. `memlock`: RLIMIT_MEMLOCK would have to be lifted for the maps (before Linux 5.11).
pub fn lacking(held: CapabilitySet, memlock: bool) -> Vec<MissingCapability> {
    // CAP_SYS_ADMIN stands for the two that load (`bpf_capable`, `perfmon_capable`:
    // kernel `include/linux/capability.h`).
    let loads = !held.contains(CapabilitySet::SYS_ADMIN);
    let needs = [
        (CapabilitySet::BPF, loads, "CAP_BPF", "kernel programs cannot be loaded"),
        (CapabilitySet::PERFMON, loads, "CAP_PERFMON", "kernel programs cannot read kernel memory"),
        (
            CapabilitySet::SYS_RESOURCE,
            memlock,
            "CAP_SYS_RESOURCE",
            "before Linux 5.11, RLIMIT_MEMLOCK must be raised for the BPF maps",
        ),
        (
            CapabilitySet::SYS_PTRACE,
            true,
            "CAP_SYS_PTRACE",
            "where --host-root is /proc/1/root the container runtime cannot be reached; \
                 leaks of class orphan_shim and orphan_netns are not reported, nor where in \
                 the kernel a process hangs",
        ),
    ];
    let essential = CapabilitySet::BPF | CapabilitySet::PERFMON;
    let missing = needs.into_iter().filter(|(set, needed, ..)| *needed && !held.contains(*set));
    missing
        .map(|(set, _, capability, purpose)| MissingCapability {
            capability,
            purpose,
            essential: essential.contains(set),
        })
        .collect()
}

/// Raises RLIMIT_MEMLOCK, because kernels before 5.11 count BPF maps as locked memory. Without CAP_SYS_RESOURCE
/// only up to the hard limit; whether that suffices shows when the maps are created.
pub fn raise_memlock_limit() {
    let endless = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Memlock, endless).is_err() {
        let maximum = getrlimit(Resource::Memlock).maximum;
        // The lower limit stays: as above.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
    }
}

/// Drops for good what is not needed once the programs run, and returns what is kept.
///
/// `works` says whether the programs' maps can still be used: before Linux 5.19 a kernel with
/// `kernel.unprivileged_bpf_disabled` refuses every bpf(2) call, also on a map that is open, without
/// CAP_BPF (`__sys_bpf`, `kernel/bpf/syscall.c`). There it is kept.
///
/// A thread's capabilities are its own, and those it starts inherit them: threads that run already keep theirs
/// ([`keep_none`]).
pub fn drop_privileges(works: impl FnOnce() -> bool) -> io::Result<CapabilitySet> {
    set_no_new_privs(true)?;
    let before = capabilities(None)?;
    let kept = before.permitted & before.effective & KEPT;
    let without = before.effective - CapabilitySet::BPF;
    // With CAP_SYS_ADMIN everything works; it is no proof.
    let trial = without - CapabilitySet::SYS_ADMIN;
    set_capabilities(None, CapabilitySets { effective: trial, ..before })?;
    let kept = if works() { kept } else { kept | (before.effective & CapabilitySet::BPF) };
    let after =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    if let Err(error) = set_capabilities(None, after) {
        set_capabilities(None, before)?;
        return Err(error);
    }
    Ok(kept)
}

/// Takes all capabilities from the calling thread for good, but those that open files of other users where
/// `opens_files`.
pub fn keep_none(opens_files: bool) -> io::Result<()> {
    set_no_new_privs(true)?;
    let kept = match opens_files {
        true => CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH,
        false => CapabilitySet::empty(),
    };
    let before = capabilities(None)?;
    let after = CapabilitySets {
        effective: before.effective & kept,
        permitted: before.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, after)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAEMONSET: CapabilitySet =
        CapabilitySet::BPF.union(CapabilitySet::PERFMON).union(CapabilitySet::SYS_PTRACE);

    fn names(held: CapabilitySet, memlock: bool) -> Vec<&'static str> {
        lacking(held, memlock).iter().map(|missing| missing.capability).collect()
    }

    #[test]
    fn each_capability_that_is_missing_is_named() {
        assert_eq!(names(DAEMONSET, false), [""; 0]);
        for (name, one) in [
            ("CAP_BPF", CapabilitySet::BPF),
            ("CAP_PERFMON", CapabilitySet::PERFMON),
            ("CAP_SYS_PTRACE", CapabilitySet::SYS_PTRACE),
        ] {
            assert_eq!(names(DAEMONSET - one, false), [name]);
        }
        assert_eq!(names(DAEMONSET, true), ["CAP_SYS_RESOURCE"]);
        assert_eq!(names(CapabilitySet::SYS_ADMIN, false), ["CAP_SYS_PTRACE"], "it loads, too");
        assert_eq!(names(DAEMONSET | CapabilitySet::SYS_RESOURCE, true), [""; 0]);
    }

    #[test]
    fn what_loads_is_essential_and_what_only_looks_is_not() {
        let lacks = lacking(CapabilitySet::empty(), true);
        let others =
            lacks.iter().filter(|missing| !missing.essential).map(|missing| missing.capability);
        let others: Vec<_> = others.collect();
        assert_eq!((lacks.len(), &*others), (4, &["CAP_SYS_RESOURCE", "CAP_SYS_PTRACE"][..]));
    }

    /// On a thread of its own: what is dropped does not come back.
    #[test]
    fn what_is_dropped_is_gone_for_good() {
        let before = held();
        std::thread::spawn(move || {
            let kept = drop_privileges(|| true).unwrap();
            assert_eq!(kept, before & KEPT);
            assert_eq!(held(), kept);
            let all = capabilities(None).unwrap();
            assert_eq!(all.permitted, kept);
            let back = CapabilitySets { effective: all.effective | CapabilitySet::BPF, ..all };
            assert!(set_capabilities(None, back).is_err());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_needs_none_keeps_none() {
        let before = held();
        let kept = |opens_files| {
            let thread = std::thread::spawn(move || {
                keep_none(opens_files).unwrap();
                held()
            });
            thread.join().unwrap()
        };
        let files = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        assert_eq!((kept(false), kept(true)), (CapabilitySet::empty(), before & files));
        assert_eq!(held(), before, "this thread's are its own");
    }

    #[test]
    fn what_the_maps_need_is_kept() {
        let before = held();
        std::thread::spawn(move || {
            let kept = drop_privileges(|| {
                assert!(!held().contains(CapabilitySet::BPF));
                false
            });
            let wanted = before & (KEPT | CapabilitySet::BPF);
            assert_eq!(kept.unwrap(), wanted);
        })
        .join()
        .unwrap();
    }
}
