//! As in the DaemonSet: the host's cgroups are there, and none can be made.

use crate::stage::{options, with_cgroup2};
use coroner::sources::kernel;
use rustix::mount::{MountFlags, MountPropagationFlags, mount_bind, mount_change, mount_remount};
use std::{io, path::Path};

/// Gives the calling thread a hierarchy that is read-only, and nobody else.
fn seal(hierarchy: &Path) {
    // SAFETY: touches no memory; from here on this thread has mounts of its own.
    let left = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    assert_eq!(left, 0, "unshare: {}", io::Error::last_os_error());
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).unwrap();
    mount_bind(hierarchy, hierarchy).unwrap();
    mount_remount(hierarchy, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
}

#[test]
fn signals_and_processes_are_proven_where_no_cgroup_can_be_made() {
    with_cgroup2(|hierarchy| {
        let hierarchy = hierarchy.to_owned();
        let report = std::thread::spawn(move || {
            seal(&hierarchy);
            kernel::start(&options(&hierarchy)).unwrap_or_else(|error| panic!("{error}")).report()
        })
        .join()
        .unwrap();
        for (hook, verdict) in &report.hooks {
            assert_eq!(*verdict, Ok(()), "{hook}");
        }
        let unproven = report.unproven.expect("no cgroup could be made");
        assert!(unproven.is_harmless(), "{unproven}");
        assert!(unproven.hooks.contains(&"cgroup_mkdir"), "{unproven}");
    });
}
