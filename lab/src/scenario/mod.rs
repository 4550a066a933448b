//! Scenarios as data: a pod, what is done to it, and what must come out. One catalogue is the
//! demo, the end-to-end test and the load of a benchmark.

mod deaths;
pub mod judge;
mod pod;

use coroner::domain::{
    input::ExitStatus,
    observation::{Cause, FindingKind, PhaseKind, Verdict},
};
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};

/// Where scenarios live in the lab's apiserver.
pub const NAMESPACE: &str = "lab";

/// One scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Kebab-case, named after what it shows. The pod's name too.
    pub name: &'static str,
    /// What it belongs to: `deaths`.
    pub group: &'static str,
    /// What it shows, in one sentence.
    pub shows: &'static str,
    /// Its pod must run before the agent starts.
    pub before_agent: bool,
    /// What is done to the pod.
    pub act: Act,
    /// What must come out.
    pub expected: Expected,
    blueprint: pod::Blueprint,
}

/// What is done to a pod, counted from the moment it is Running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// `kubectl delete pod`.
    Delete {
        /// After this long.
        after: Duration,
    },
    /// `kubectl delete pod --grace-period=0 --force`.
    ForceDelete {
        /// After this long.
        after: Duration,
    },
    /// Nothing: it ends by itself.
    Nothing,
}

/// What must come out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Expected {
    /// Why the pod ended.
    pub cause: Cause,
    /// How each container died, by name. No other container may be reported.
    pub containers: BTreeMap<&'static str, Death>,
    /// Findings, of the pod or of a container, that must be there.
    pub findings: Vec<FindingKind>,
    /// Findings that may be there: the scenario is not about them. Any other contradicts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also_allowed: Vec<FindingKind>,
    /// Phases on the critical path, with what is allowed.
    pub phases: Vec<Span>,
}

/// How one container dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Death {
    /// The verdict.
    pub verdict: Verdict,
    /// How its init ended.
    pub exit: ExitStatus,
}

/// Seconds that a phase may take.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Span {
    /// The phase.
    pub phase: PhaseKind,
    /// Not less: what the scenario states, minus 0.2 s for what overlaps its edges.
    pub at_least: f64,
    /// Not more: what the scenario states, and time for a machine that is busy.
    pub at_most: f64,
}

impl Span {
    /// A phase of `seconds` by the scenario's own arithmetic. Processes never wake early, but a
    /// loaded machine wakes them late.
    pub fn about(phase: PhaseKind, seconds: f64) -> Self {
        const EARLY: f64 = 0.2;
        const LATE: f64 = 1.5;
        Self { phase, at_least: (seconds - EARLY).max(0.0), at_most: seconds + LATE }
    }
}

impl Scenario {
    /// The pod, bound to `node`, made of the lab's `image`.
    pub fn pod(&self, image: &str, node: &str) -> Pod {
        self.blueprint.build(self.name, image, node)
    }

    /// The pod's grace.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.blueprint.grace).unwrap_or(0))
    }

    /// It needs a controller that limits memory.
    pub fn needs_memory_limit(&self) -> bool {
        self.blueprint.containers.iter().any(|container| container.memory.is_some())
    }
}

/// All scenarios, in the order in which they are told.
pub fn catalogue() -> Vec<Scenario> {
    deaths::scenarios()
}

/// Those of the catalogue with one of the `names` (all if there are none), of the `group` (any if
/// there is none). Fails with the names that do not exist.
pub fn choose(names: &[String], group: Option<&str>) -> Result<Vec<Scenario>, Unknown> {
    let all = catalogue();
    let unknown: Vec<String> = names
        .iter()
        .filter(|name| all.iter().all(|scenario| scenario.name != name.as_str()))
        .map(|name| format!("no scenario is called {name:?}"))
        .chain(
            group
                .filter(|group| all.iter().all(|scenario| scenario.group != *group))
                .map(|group| format!("no group is called {group:?}")),
        )
        .collect();
    if !unknown.is_empty() {
        return Err(Unknown { what: unknown, known: all });
    }
    Ok(all
        .into_iter()
        .filter(|scenario| names.is_empty() || names.iter().any(|name| name == scenario.name))
        .filter(|scenario| group.is_none_or(|group| group == scenario.group))
        .collect())
}

/// Names that the catalogue does not have.
#[derive(Debug)]
pub struct Unknown {
    what: Vec<String>,
    known: Vec<Scenario>,
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}; there are:", self.what.join(", "))?;
        for scenario in &self.known {
            writeln!(f, "  {:<10} {:<24} {}", scenario.group, scenario.name, scenario.shows)?;
        }
        Ok(())
    }
}

impl std::error::Error for Unknown {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_deaths_are_fifteen_and_each_has_a_name_of_its_own() {
        let names: BTreeSet<_> =
            catalogue().iter().filter(|s| s.group == "deaths").map(|s| s.name).collect();
        assert_eq!(names.len(), 15, "{names:?}");
        assert_eq!(catalogue().len(), names.len());
    }

    #[test]
    fn names_are_dns_labels_and_every_scenario_says_what_it_shows() {
        for scenario in catalogue() {
            let name = scenario.name;
            assert!(name.len() <= 63 && name.starts_with(|c: char| c.is_ascii_lowercase()));
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
            assert!(scenario.shows.ends_with('.'), "{name}: one sentence");
        }
    }

    #[test]
    fn expectations_name_the_containers_of_the_pod() {
        for scenario in catalogue() {
            let pod = scenario.pod("image", "node");
            let spec = pod.spec.unwrap();
            let of_pod: BTreeSet<_> = spec.containers.iter().map(|c| c.name.as_str()).collect();
            let expected: BTreeSet<_> = scenario.expected.containers.keys().copied().collect();
            assert_eq!(of_pod, expected, "{}", scenario.name);
            for span in &scenario.expected.phases {
                assert!(span.at_least < span.at_most, "{}: {span:?}", scenario.name);
            }
        }
    }

    /// What nobody deletes must not be waited for: it must end by itself, and not be restarted.
    #[test]
    fn what_ends_by_itself_is_never_restarted() {
        for scenario in catalogue().iter().filter(|s| s.act == Act::Nothing) {
            let spec = scenario.pod("image", "node").spec.unwrap();
            assert_eq!(spec.restart_policy.as_deref(), Some("Never"), "{}", scenario.name);
        }
    }

    #[test]
    fn chooses_by_name_and_group_and_names_what_is_unknown() {
        assert_eq!(choose(&[], None).unwrap().len(), catalogue().len());
        assert_eq!(choose(&[], Some("deaths")).unwrap().len(), 15);
        let two = ["crash".to_owned(), "sigwait".to_owned()];
        let chosen: Vec<_> = choose(&two, None).unwrap().iter().map(|s| s.name).collect();
        assert_eq!(chosen, ["crash", "sigwait"]);
        let error = choose(&["nonsense".to_owned()], Some("births")).unwrap_err().to_string();
        assert!(error.contains("\"nonsense\"") && error.contains("\"births\""), "{error}");
        assert!(error.contains("handles-sigterm"), "{error}");
    }
}
