//! Cgroups that come, go, empty and freeze.

use super::{
    debug_log,
    emit::{LOST, To, count, emit, header, now},
    filter, namespace,
    read::{Address, cgroup_id, layout},
    watch::{CONTAINERS, WatchedCgroup},
};
use aya_ebpf::{
    helpers::generated::bpf_probe_read_kernel_str, macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use coroner_ebpf::{
    CONTAINER_COUNTED, Container, MAX_NESTING, NESTED_SHARE, is_container_name,
    maps::{LOST_MAP_FULL, LOST_NESTING},
    record::{EMPTY, FROZEN, MKDIR, Mkdir, Moment, NAME_LEN, RMDIR},
};

/// `cgroup_mkdir(struct cgroup *cgrp, const char *path)`: called under `cgroup_mutex` before the
/// directory can be used, so no task gets into a container before it is known.
#[raw_tracepoint]
pub fn cgroup_mkdir(ctx: RawTracePointContext) -> i32 {
    let cgroup = Address(ctx.arg(0));
    if !is_cgroup2(cgroup) {
        return 0;
    }
    // `cgroup.self.parent` is the parent's `self`; `kn->parent` was renamed in 6.15.
    let css = cgroup.pointer(layout!(cgroup_self) + layout!(css_parent));
    let parent = cgroup_id(Address(css.0.wrapping_sub(u64::from(layout!(cgroup_self)))));
    let name_at = cgroup.pointer(layout!(cgroup_kn)).pointer(layout!(kn_name));
    let known = WatchedCgroup::find(parent);

    let mut name = [0u8; NAME_LEN];
    // SAFETY: the destination is as long as it says.
    let copied = unsafe {
        bpf_probe_read_kernel_str(name.as_mut_ptr().cast(), NAME_LEN as u32, name_at.0 as *const _)
    };
    // The length counts the NUL; negative if nothing could be read.
    let len = if copied > 0 { (copied as u32 & 0xff) - 1 } else { 0 };
    let (is_root, skip) = search(&name);
    if skip {
        return 0;
    }

    let id = cgroup_id(cgroup);
    let is_container = is_container_name(len as usize, is_root);
    let mut container = None;
    let entry = match known {
        Some(above) => {
            let nested = above.owner_id() != 0;
            let depth = if is_container && !nested { 0 } else { above.depth() + 1 };
            if nested {
                container = Some(above.owner(parent));
            }
            if depth > MAX_NESTING
                || container.is_some_and(|container| container.nested() >= NESTED_SHARE)
            {
                count(&LOST, LOST_NESTING);
                return 0;
            }
            let owner = if nested {
                above.owner_id()
            } else if is_container {
                id
            } else {
                0
            };
            Container { owner, depth, flags: CONTAINER_COUNTED, ..Container::default() }
        }
        None if is_root => Container {
            owner: if is_container { id } else { 0 },
            flags: CONTAINER_COUNTED,
            ..Container::default()
        },
        None => return 0,
    };
    filter::raise(id);
    if CONTAINERS.insert(id, entry, 0).is_err() {
        filter::lower(id);
        // Not told either: its end could not be. The agent hears of it from the runtime.
        count(&LOST, LOST_MAP_FULL);
        return 0;
    }
    if let Some(container) = container {
        container.set_nested(container.nested() + 1);
    }
    debug_log!(&ctx, "watching cgroup {}", id);
    let level = cgroup.read(layout!(cgroup_level));
    let time = now();
    emit(To::Deciding, time, || Mkdir {
        header: header(MKDIR, time, id),
        parent,
        level,
        name_len: len,
        name,
    });
    0
}

/// Whether a name holds the root needle, and whether it holds the one to be left out. One pass
/// with the last eight bytes in a register: no unaligned loads, no inner loop.
///
/// Nor a branch: the verifier follows every way through a loop, and with comparisons in it that is
/// a million instructions on Linux 7.2. `(x - 1) & !x` has its top bit set only if x is 0. For the
/// same reason there is no way out at the NUL; the zeroes behind it match nothing.
#[inline(always)]
fn search(name: &[u8; NAME_LEN]) -> (bool, bool) {
    let (mut root, mut skip) = (0u64, 0u64);
    let mut window = 0u64;
    for byte in name {
        window = (window >> 8) | (u64::from(*byte) << 56);
        let (to_root, to_skip) = (window ^ layout!(root_needle), window ^ layout!(skip_needle));
        root |= to_root.wrapping_sub(1) & !to_root;
        skip |= to_skip.wrapping_sub(1) & !to_skip;
    }
    (root >> 63 != 0, skip >> 63 != 0)
}

/// `cgroup_rmdir(struct cgroup *cgrp, const char *path)`: after the last exit of a task in it.
#[raw_tracepoint]
pub fn cgroup_rmdir(ctx: RawTracePointContext) -> i32 {
    let cgroup = Address(ctx.arg(0));
    let id = cgroup_id(cgroup);
    let Some(watched) = WatchedCgroup::find(id) else { return 0 };
    if !is_cgroup2(cgroup) {
        return 0;
    }
    let counted = watched.is_counted();
    let owner = watched.owner_id();
    if CONTAINERS.remove(id).is_ok() {
        if counted {
            filter::lower(id);
            if owner != 0
                && owner != id
                && let Some(container) = WatchedCgroup::look_up(owner)
            {
                container.set_nested(container.nested().saturating_sub(1));
            }
        }
        // Since Linux 7 the last task may leave it after it was removed.
        namespace::report(id);
        moment(To::DecidingNow, RMDIR, id, 0);
    }
    0
}

/// `cgroup_notify_populated(struct cgroup *cgrp, const char *path, int val)`: `current` may be
/// anybody (Linux 7.x defers it past the last switch of the dying task).
#[raw_tracepoint]
pub fn cgroup_notify_populated(ctx: RawTracePointContext) -> i32 {
    let populated: i32 = ctx.arg(2);
    let cgroup = Address(ctx.arg(0));
    if populated == 0
        && let Some(id) = watched_id(cgroup)
    {
        namespace::report(id);
        moment(To::DecidingNow, EMPTY, id, 0);
    }
    0
}

/// `cgroup_notify_frozen(struct cgroup *cgrp, const char *path, int val)`.
#[raw_tracepoint]
pub fn cgroup_notify_frozen(ctx: RawTracePointContext) -> i32 {
    let frozen: i32 = ctx.arg(2);
    if let Some(id) = watched_id(Address(ctx.arg(0))) {
        moment(To::Deciding, FROZEN, id, frozen as u64);
    }
    0
}

/// A cgroup's id, if it is watched.
#[inline(always)]
fn watched_id(cgroup: Address) -> Option<u64> {
    let id = cgroup_id(cgroup);
    // What costs least first: nearly all are of nobody's interest.
    (WatchedCgroup::find(id).is_some() && is_cgroup2(cgroup)).then_some(id)
}

#[inline(always)]
fn moment(to: To, kind: u32, cgroup: u64, value: u64) {
    let time = now();
    emit(to, time, || Moment { header: header(kind, time, cgroup), value });
}

/// The hooks fire for the hierarchies of cgroup v1 as well, whose ids collide with those of cgroup2. The number of
/// cgroup2 is 0 (`cgroup_init`, kernel/cgroup/cgroup.c).
#[inline(always)]
fn is_cgroup2(cgroup: Address) -> bool {
    let hierarchy: u32 = cgroup.pointer(layout!(cgroup_root)).read(layout!(root_hierarchy_id));
    hierarchy == 0
}
