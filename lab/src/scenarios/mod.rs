//! Scenarios as data: a pod, what is done to it, and what must be reported. One catalogue is the demo, the end-to-end
//! test and the load of a benchmark.

mod action;
#[cfg(test)]
mod coverage;
mod deaths;
mod draft;
mod expected;
mod faults;
mod leaks;
pub(crate) mod pod;
mod restarts;
mod traffic;

pub use action::{Action, Step, When};
pub use expected::{
    Crowd, Death, Earlier, Expected, ExpectedLeak, ExpectedTraffic, Holding, Origin, Span,
};

use k8s_openapi::api::core::v1::Pod;

/// Where scenarios are in the lab's apiserver.
pub const NAMESPACE: &str = "lab";

/// The pod that runs as long as the lab.
pub const RESIDENT: &str = "resident";

/// The group of the demo, and what is played after it.
const DEMO: &str = "deaths";
const FINALE: [&str; 2] = ["pod-worker-stuck", "closes-its-listener"];

#[derive(Clone, Debug)]
pub struct Scenario {
    /// Kebab-case, named after what it shows. The pod's name too.
    pub name: &'static str,
    /// `deaths`, `restarts`, `faults`, `leaks` or `traffic`.
    pub group: &'static str,
    /// What it shows, in one sentence.
    pub shows: &'static str,
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// What it does concerns all pods of the node: nothing else is played at the same time.
    pub alone: bool,
    /// Its pod is older than the agent.
    pub before_agent: bool,
    /// It is about leaks: watched for longer than the agent's threshold, and then cleaned up.
    pub watched: bool,
    /// Its clients, which connect before the first step.
    pub clients: Vec<Crowd>,
    pub expected: Expected,
    pub(crate) blueprint: pod::Blueprint,
}

impl Scenario {
    /// The pod, or the manifest of a static one.
    pub fn pod(&self, node: &str) -> Pod {
        let mut pod = self.blueprint.build(self.name, node);
        if !self.clients.is_empty() {
            // Connections are counted from the deletion request on, whose event may be late on a busy machine.
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(crate::driver::REACTION_MS.into(), "600".into());
        }
        pod
    }

    pub fn is_static(&self) -> bool {
        self.blueprint.is_static
    }

    /// Scenarios about other leaked things have no pod.
    pub fn has_pod(&self) -> bool {
        !self.blueprint.containers.is_empty()
    }

    /// Its network does not work from the beginning.
    pub fn never_starts(&self) -> bool {
        self.blueprint.never_starts
    }

    pub fn containers(&self) -> impl Iterator<Item = &'static str> {
        self.blueprint.containers.iter().map(|container| container.name)
    }

    /// It needs a controller that limits memory.
    pub fn needs_memory_limit(&self) -> bool {
        self.blueprint.containers.iter().any(|container| container.memory.is_some())
    }

    /// It starts the agent itself, with other flags.
    pub fn needs_own_agent(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.act, Action::RestartAgent(_)))
    }
}

/// All scenarios, in the order in which they are listed.
pub fn catalogue() -> Vec<Scenario> {
    let all = [
        deaths::scenarios(),
        restarts::scenarios(),
        faults::scenarios(),
        leaks::scenarios(),
        traffic::scenarios(),
    ];
    all.concat()
}

/// A pod that runs as long as the lab, as every node has one: by its processes the agent tells its own node's cgroups from
/// those of others on the machine (agent/src/sources/host/pods.rs).
pub fn resident() -> Scenario {
    draft::runs_on(RESIDENT, 1).runs(pod::Part::new("app", "handle --for 0ms")).finish("")
}

/// What is played if nothing is requested: all deaths, a leak, and a termination that costs clients their connections.
pub fn demo() -> Vec<Scenario> {
    let mut all = catalogue();
    all.retain(|scenario| scenario.group == DEMO || FINALE.contains(&scenario.name));
    all
}

/// Those of the catalogue with one of the `names` (all if there are none), of the `group` (any if there is none). The
/// error has the names that do not exist.
pub fn choose(names: &[String], group: Option<&str>) -> Result<Vec<Scenario>, String> {
    let mut all = catalogue();
    let names_unknown = names.iter().filter(|name| all.iter().all(|one| one.name != **name));
    let mut unknown: Vec<_> = names_unknown.map(|name| format!("no scenario {name:?}")).collect();
    let group_unknown = group.filter(|group| all.iter().all(|one| one.group != *group));
    unknown.extend(group_unknown.map(|group| format!("no group {group:?}")));
    if !unknown.is_empty() {
        let known =
            all.iter().map(|one| format!("\n  {:<9} {:<24} {}", one.group, one.name, one.shows));
        return Err(format!("{}; there are:{}", unknown.join(", "), known.collect::<String>()));
    }
    all.retain(|one| names.is_empty() || names.iter().any(|name| name == one.name));
    all.retain(|one| group.is_none_or(|group| group == one.group));
    Ok(all)
}
