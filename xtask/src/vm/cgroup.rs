//! The two versions of cgroups that a guest can have.

use clap::ValueEnum;

/// A version of cgroups: all that a guest mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cgroup {
    /// The unified hierarchy
    V2,
    /// A hierarchy for each controller
    V1,
}

impl Cgroup {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::V2, Self::V1];

    /// Its name on the command line and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::V1 => "v1",
        }
    }

    /// What the guest's kernel is told, which hands it on to the first process and so to the tests.
    pub(super) fn argument(self) -> &'static str {
        match self {
            Self::V2 => "CORONER_CGROUP=v2",
            Self::V1 => "CORONER_CGROUP=v1",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_as_they_are_parsed_and_told() {
        for cgroup in Cgroup::ALL {
            assert_eq!(Cgroup::from_str(cgroup.name(), false), Ok(cgroup));
            assert_eq!(cgroup.argument(), format!("CORONER_CGROUP={}", cgroup.name()));
        }
        assert!(include_str!("init.sh").contains("$CORONER_CGROUP"));
    }
}
