//! The two versions of cgroups that a guest can have.

use clap::ValueEnum;

use crate::test::absent::Feature;

/// A version of cgroups: all that a guest mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CgroupVersion {
    /// The unified hierarchy
    V2,
    /// A hierarchy for each controller
    V1,
}

impl CgroupVersion {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::V2, Self::V1];

    /// Its name on the command line and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::V1 => "v1",
        }
    }

    /// Whether a guest of this machine's architecture, or of another one, has it.
    pub(super) fn has(self, feature: Feature, is_host: bool) -> bool {
        match feature {
            Feature::AppArmorProfile => is_host,
            Feature::MemoryOnV2 => self == Self::V2,
        }
    }

    /// What the guest's kernel is told, which hands it on to the first process: the version of cgroups, and
    /// arguments for the tests.
    pub(super) fn arguments(self, tests: &[&str]) -> String {
        format!("CORONER_CGROUP={} \"CORONER_GUEST_ARGUMENTS={}\"", self.name(), tests.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_as_they_are_parsed_and_told() {
        for cgroup in CgroupVersion::ALL {
            assert_eq!(CgroupVersion::from_str(cgroup.name(), false), Ok(cgroup));
        }
        let told = CgroupVersion::V1.arguments(&["--skip", "one"]);
        assert_eq!(told, r#"CORONER_CGROUP=v1 "CORONER_GUEST_ARGUMENTS=--skip one""#);
        for variable in ["$CORONER_CGROUP", "$CORONER_GUEST_ARGUMENTS"] {
            assert!(include_str!("init.sh").contains(variable));
        }
    }
}
