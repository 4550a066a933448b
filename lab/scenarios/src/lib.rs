//! Scenarios as data: a pod, what is done to it, and what must come out. One catalogue is the
//! demo, the end-to-end test and the load of a benchmark.

#![allow(missing_docs)] // a name that says it need not say it twice

mod act;
mod causes;
pub mod clients;
#[cfg(test)]
mod coverage;
pub mod death_mode;
mod deaths;
mod draft;
mod events;
mod expected;
mod faults;
pub mod judge;
mod leaks;
pub mod left;
mod pod;
mod traffic;

pub use act::{Action, AgentFlags, Step, When};
pub use expected::{Death, Earlier, Expected, ExpectedLeak, Holding, Span};
pub use pod::Site;

use coroner_lab_cluster::kubelet::translate::REACTION_MS;
use k8s_openapi::api::core::v1::Pod;

/// Where scenarios live in the lab's apiserver.
pub const NAMESPACE: &str = "lab";

/// The pod that lives as long as the lab.
pub const RESIDENT: &str = "resident";

/// The group that is played where none is asked for.
const TOUR: &str = "deaths";
/// What is played after it.
const FINALE: [&str; 2] = ["pod-worker-stuck", "closes-its-listener"];

#[derive(Clone, Debug)]
pub struct Scenario {
    /// Kebab-case, named after what it shows. The pod's name too.
    pub name: &'static str,
    /// What it belongs to: `deaths`, `causes`, `faults`, `leaks`, `events` or `traffic`.
    pub group: &'static str,
    /// What it shows, in one sentence.
    pub shows: &'static str,
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// What it does concerns all pods of the node: nothing else is played at the same time.
    pub alone: bool,
    /// It is about what is left behind: that is watched for longer than the agent's threshold, and
    /// then cleaned up.
    pub watched: bool,
    /// Its clients, which connect before the first step.
    pub clients: Vec<clients::Crowd>,
    /// So many pods of its kind, to which everything is done at once.
    pub copies: usize,
    /// What must come out.
    pub expected: Expected,
    blueprint: pod::Blueprint,
}

impl Scenario {
    /// The pod, or the manifest of a static one.
    pub fn pod(&self, site: Site<'_>) -> Pod {
        let mut pod = self.blueprint.build(self.name, site);
        if !self.clients.is_empty() {
            // Connections are counted from the deletion request on: its news may be late on a busy machine.
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(REACTION_MS.into(), "600".into());
        }
        pod
    }

    /// The names of its pods.
    pub fn pods(&self) -> impl Iterator<Item = String> {
        let name = |copy| match copy {
            0 => self.name.to_owned(),
            _ => format!("{}-{copy}", self.name),
        };
        (0..self.copies).map(name)
    }

    /// The pod is made from a manifest.
    pub fn is_static(&self) -> bool {
        self.blueprint.from_manifest
    }

    /// It has a pod: those that are about other things have none.
    pub fn has_pod(&self) -> bool {
        !self.blueprint.containers.is_empty()
    }

    /// The names of the pod's containers.
    pub fn containers(&self) -> impl Iterator<Item = &'static str> {
        self.blueprint.containers.iter().map(|container| container.name)
    }

    /// It needs a controller that limits memory.
    pub fn needs_memory_limit(&self) -> bool {
        self.blueprint.containers.iter().any(|container| container.memory.is_some())
    }

    /// It needs a runtime that gives a pod a user namespace.
    pub fn needs_user_namespace(&self) -> bool {
        self.blueprint.own_users
    }

    /// It needs what not every node has.
    pub fn is_special(&self) -> bool {
        self.needs_user_namespace() || self.needs_systemd()
    }

    /// It needs systemd as cgroup driver.
    pub fn needs_systemd(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.act, Action::StopScope { .. }))
    }

    /// It starts the agent itself, or with other flags.
    pub fn needs_own_agent(&self) -> bool {
        let is_about_agent =
            |step: &Step| matches!(step.act, Action::StartAgent | Action::RestartAgent(_));
        self.steps.iter().any(is_about_agent)
    }

    /// What is done before the agent starts, if it is to start that late, and what is done then.
    pub fn around_agent(&self) -> (Option<&[Step]>, &[Step]) {
        match self.steps.iter().position(|step| step.act == Action::StartAgent) {
            Some(at) => (Some(&self.steps[..=at]), &self.steps[at + 1..]),
            None => (None, &self.steps),
        }
    }
}

/// All scenarios, in the order in which they are told.
pub fn catalogue() -> Vec<Scenario> {
    let mut all = deaths::scenarios();
    all.extend(causes::scenarios());
    all.extend(faults::scenarios());
    all.extend(leaks::scenarios());
    all.extend(events::scenarios());
    all.extend(traffic::scenarios());
    all
}

/// A pod that lives as long as the lab, as every node has one: by its processes the agent tells its own
/// node's cgroups from those of others on the machine (agent/src/sources/host/pods.rs), also while nothing is
/// played.
pub fn resident() -> Scenario {
    let serves = pod::Part::new("app", "listen --ports 8080");
    draft::runs_on(RESIDENT, 1).runs(serves).on_own_network().finish("")
}

/// What is played where nothing is asked for: all deaths that each runtime can play, what one of them leaves behind,
/// and what one costs its clients.
pub fn demo() -> Vec<Scenario> {
    let mut all = catalogue();
    all.retain(|scenario| {
        (scenario.group == TOUR && !scenario.is_special()) || FINALE.contains(&scenario.name)
    });
    all
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

    const SITE: Site<'_> = Site { node: "node", port: 8080, listed: std::time::Duration::ZERO };

    #[test]
    fn every_scenario_has_a_name_of_its_own() {
        let names: BTreeSet<_> = catalogue().iter().map(|s| s.name).collect();
        assert_eq!(names.len(), catalogue().len());
    }

    #[test]
    fn names_are_dns_labels_and_every_scenario_says_what_it_shows() {
        for scenario in catalogue() {
            let name = scenario.name;
            assert!(name.len() <= 53 && name.starts_with(|c: char| c.is_ascii_lowercase()));
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
            assert!(scenario.shows.ends_with('.'), "{name}: one sentence");
        }
    }

    #[test]
    fn expectations_name_the_containers_of_the_pod() {
        for scenario in catalogue() {
            let spec = scenario.pod(SITE).spec.unwrap();
            let of_pod: BTreeSet<_> = spec
                .containers
                .iter()
                .chain(spec.init_containers.iter().flatten())
                .map(|c| c.name.as_str())
                .collect();
            let expected: BTreeSet<_> = scenario.expected.containers.keys().copied().collect();
            if scenario.expected.lives == 0 {
                assert!(expected.is_empty() && scenario.watched, "{}", scenario.name);
            } else {
                // A container in its back-off has ended before its pod does.
                let earlier = scenario.expected.earlier.iter().map(|earlier| earlier.container);
                let all: BTreeSet<_> = expected.iter().copied().chain(earlier).collect();
                assert_eq!(of_pod, all, "{}", scenario.name);
            }
            for earlier in &scenario.expected.earlier {
                assert!(of_pod.contains(earlier.container), "{}: {earlier:?}", scenario.name);
            }
            for span in &scenario.expected.phases {
                assert!(span.at_least < span.at_most, "{}: {span:?}", scenario.name);
            }
        }
    }

    /// What nobody deletes must not be waited for: it must end by itself, and not be restarted.
    #[test]
    fn what_ends_by_itself_is_never_restarted() {
        for scenario in catalogue().iter().filter(|s| s.steps.is_empty()) {
            let spec = scenario.pod(SITE).spec.unwrap();
            assert_eq!(spec.restart_policy.as_deref(), Some("Never"), "{}", scenario.name);
        }
    }

    /// Faults of the node would touch other scenarios, and must end before the next.
    #[test]
    fn what_breaks_the_node_is_played_alone_and_mended() {
        for scenario in catalogue() {
            let count = |act| scenario.steps.iter().filter(|step| step.act == act).count();
            let faults = count(Action::KillRuntime) + count(Action::StopApiserver);
            let mended = count(Action::StartRuntime) + count(Action::StartApiserver);
            assert_eq!(faults, mended, "{}", scenario.name);
            // Mended by whoever plays them.
            let of_all = |act| matches!(act, Action::RestartAgent(_) | Action::RunKubelet(_));
            let others = scenario.steps.iter().any(|step| of_all(step.act));
            // They take the machine for themselves.
            let loads = scenario.copies > 1 || scenario.clients.iter().any(|one| one.of_neighbour);
            assert_eq!(faults > 0 || others || loads, scenario.alone, "{}", scenario.name);
        }
    }

    /// The network plugin fails for the pod that the scenario has, and works again.
    #[test]
    fn what_breaks_the_network_uses_it_and_mends_it() {
        for scenario in catalogue() {
            let count = |act| scenario.steps.iter().filter(|step| step.act == act).count();
            assert_eq!(
                count(Action::BreakNetwork),
                count(Action::MendNetwork),
                "{}",
                scenario.name
            );
            let breaks = count(Action::BreakNetwork) > 0;
            assert!(!breaks || scenario.blueprint.own_network, "{}", scenario.name);
        }
    }

    /// A leak that is waited for is one that is expected, or the comparison would fail later.
    #[test]
    fn steps_wait_for_leaks_that_are_expected() {
        for scenario in catalogue() {
            for step in &scenario.steps {
                let When::Leaked(class) = step.when else { continue };
                let expected = scenario.expected.leaks.iter().any(|leak| leak.class == class);
                assert!(expected, "{}: {class}", scenario.name);
            }
            assert!(scenario.watched || scenario.expected.leaks.is_empty(), "{}", scenario.name);
        }
    }

    #[test]
    fn chooses_by_name_and_group_and_names_what_is_unknown() {
        assert_eq!(choose(&[], None).unwrap().len(), catalogue().len());
        let mut deaths = choose(&[], Some(TOUR)).unwrap();
        assert!(!deaths.is_empty() && deaths.iter().all(|scenario| scenario.group == TOUR));
        deaths.retain(|one| !one.is_special());
        let demo = demo();
        assert_eq!(demo.len(), deaths.len() + FINALE.len());
        let after: Vec<_> = demo[deaths.len()..].iter().map(|one| one.name).collect();
        assert_eq!(after, FINALE);
        let two = ["crash".to_owned(), "sigwait".to_owned()];
        let chosen: Vec<_> = choose(&two, None).unwrap().iter().map(|s| s.name).collect();
        assert_eq!(chosen, ["crash", "sigwait"]);
        let error = choose(&["nonsense".to_owned()], Some("births")).unwrap_err().to_string();
        assert!(error.contains("\"nonsense\"") && error.contains("\"births\""), "{error}");
        assert!(error.contains("handles-sigterm"), "{error}");
    }
}
