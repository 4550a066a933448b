//! Tests that need what a machine may lack without anybody's fault: the whole list. Every other test runs
//! everywhere, and fails where it lacks something.

use std::{fs, path::Path};

/// What a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    /// The memory controller on cgroup v2: not on a machine that uses it on v1.
    MemoryOnV2,
    /// AppArmor with the profile of deploy/apparmor: guests only, for it is not loaded into a kernel that others use.
    AppArmorProfile,
}

/// Test binary, test, and what the test needs. The layer vm boots guests that have each of these.
const TESTS: [(&str, &str, Feature); 3] = [
    ("programs", "apparmor::the_profile_denies_nothing_that_is_needed", Feature::AppArmorProfile),
    ("programs", "apparmor::the_profile_denies_a_file_in_another_place", Feature::AppArmorProfile),
    ("programs", "oom::with_memory_oom_group_everybody_is_chosen", Feature::MemoryOnV2),
];

/// A test that cannot run on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Absent {
    /// Its name, as `--skip` takes it.
    pub(crate) test: &'static str,
    feature: Feature,
}

impl Absent {
    /// For the closing table.
    pub(crate) fn told(self) -> String {
        let lacks = match self.feature {
            Feature::MemoryOnV2 => "no memory controller on cgroup v2",
            Feature::AppArmorProfile => "coroner's AppArmor profile is not loaded",
        };
        format!("{}: {lacks}", self.test)
    }
}

/// Those of a test binary where the machine has only what `has` says.
pub(crate) fn of(binary: &str, has: impl Fn(Feature) -> bool) -> Vec<Absent> {
    TESTS
        .iter()
        .filter(|(of, _, feature)| *of == binary && !has(*feature))
        .map(|(_, test, feature)| Absent { test, feature: *feature })
        .collect()
}

/// The arguments that leave these out of a test binary.
pub(crate) fn arguments(absent: &[Absent]) -> Vec<&'static str> {
    let skip = absent.iter().flat_map(|one| ["--skip", one.test]);
    (!absent.is_empty()).then_some("--exact").into_iter().chain(skip).collect()
}

/// What this machine has.
pub(crate) fn machine_has(feature: Feature) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    has(&mounts, feature, |point| {
        fs::read_to_string(point.join("cgroup.controllers")).unwrap_or_default()
    })
}

/// By the lines of mountinfo, proc_pid_mountinfo(5): the mount point is the fifth field, the type stands after the dash.
fn has(mountinfo: &str, feature: Feature, controllers: impl Fn(&Path) -> String) -> bool {
    mountinfo.lines().filter_map(|line| line.split_once(" - ")).any(|(before, after)| {
        match (feature, after.split(' ').next()) {
            (Feature::MemoryOnV2, Some("cgroup2")) => {
                let point = before.split(' ').nth(4).map(Path::new);
                point.is_some_and(|at| controllers(at).split_whitespace().any(|c| c == "memory"))
            }
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
34 30 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
39 30 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
    const UNIFIED: &str = "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn memory_is_on_cgroup_v2_alone() {
        let controllers = |point: &Path| match point == Path::new("/sys/fs/cgroup") {
            true => "cpu memory pids\n".to_owned(),
            false => "hugetlb\n".to_owned(),
        };
        for (mounts, v2) in [(HYBRID, false), (UNIFIED, true), ("", false)] {
            assert_eq!(has(mounts, Feature::MemoryOnV2, controllers), v2);
        }
    }

    #[test]
    fn only_what_is_listed_is_left_out_and_only_where_it_must_be() {
        assert_eq!(of("programs", |_| true), []);
        let absent = of("programs", |feature| feature != Feature::MemoryOnV2);
        let test = "oom::with_memory_oom_group_everybody_is_chosen";
        assert_eq!(arguments(&absent), ["--exact", "--skip", test]);
        assert!(absent[0].told().ends_with("no memory controller on cgroup v2"));
        assert!(arguments(&of("catalogue", |_| false)).is_empty());
    }
}
