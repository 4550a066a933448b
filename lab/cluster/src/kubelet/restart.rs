//! Whether and when a container that ended is started again (container/helpers.go,
//! `ShouldContainerBeRestarted`; kuberuntime_manager.go, `doBackOff`). Pure.

use super::order;
use k8s_openapi::{
    api::core::v1::{Container, ContainerRestartRule, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use std::{collections::BTreeMap, time::Duration};

/// restartPolicyRules: action.
const RESTART_ALL: &str = "RestartAllContainers";
/// The first pause; each further one is twice as long.
const BACK_OFF: Duration = Duration::from_secs(10);
/// The longest pause.
const MAX_BACK_OFF: Duration = Duration::from_secs(300);

/// By the policy: a sidecar always runs again while its pod does, a main container as
/// restartPolicy says.
pub fn is_due(spec: &PodSpec, name: &str, exit_code: i32) -> bool {
    if order::is_sidecar(spec, name) {
        return true;
    }
    // A container's own policy wins over the pod's.
    let own = main(spec, name).and_then(|main| main.restart_policy.as_deref());
    match own.or(spec.restart_policy.as_deref()) {
        Some("Never") => false,
        Some("OnFailure") => exit_code != 0,
        _ => true,
    }
}

fn main<'a>(spec: &'a PodSpec, name: &str) -> Option<&'a Container> {
    spec.containers.iter().find(|main| main.name == name)
}

/// Whether a container's restartPolicyRules have all containers of the pod started again where it exits with
/// this code (KEP-5532).
pub fn restarts_all(spec: &PodSpec, name: &str, exit_code: i32) -> bool {
    let rules = main(spec, name).and_then(|main| main.restart_policy_rules.as_ref());
    let matches = |rule: &ContainerRestartRule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let is_in = codes.values.iter().flatten().any(|code| *code == exit_code);
            is_in == (codes.operator == "In")
        })
    };
    // The first rule that matches decides.
    let rule = rules.into_iter().flatten().find(|rule| matches(rule));
    rule.is_some_and(|rule| rule.action == RESTART_ALL)
}

/// Whether any container has such a rule.
pub fn may_restart_all(spec: &PodSpec) -> bool {
    let mut rules =
        spec.containers.iter().flat_map(|main| main.restart_policy_rules.iter().flatten());
    rules.any(|rule| rule.action == RESTART_ALL)
}

/// By its resizePolicy, a container that runs with these resources is started again with those of its spec. The
/// lab's kubelet does nothing about a resize in place.
pub fn resizes(runs_with: Option<&ResourceRequirements>, container: &Container) -> bool {
    let wanted = container.resources.as_ref();
    let changed = |kind: &str| {
        let of = |all: Option<&ResourceRequirements>| {
            let of = |list: Option<&BTreeMap<String, Quantity>>| list?.get(kind).cloned();
            all.map(|all| (of(all.requests.as_ref()), of(all.limits.as_ref())))
        };
        of(runs_with) != of(wanted)
    };
    let mut policies = container.resize_policy.iter().flatten();
    policies.any(|of| of.restart_policy == "RestartContainer" && changed(&of.resource_name))
}

/// How long after its end a container that has been restarted so often rests. The first restart
/// comes at once.
pub fn back_off(restarts: u32) -> Duration {
    let Some(doublings) = restarts.checked_sub(1) else { return Duration::ZERO };
    let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
    BACK_OFF.saturating_mul(factor).min(MAX_BACK_OFF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ContainerResizePolicy, ContainerRestartRuleOnExitCodes};

    #[test]
    fn the_policy_decides_for_mains_and_sidecars_always_run() {
        let table = [
            (None, 0, true),
            (Some("Always"), 0, true),
            (Some("OnFailure"), 0, false),
            (Some("OnFailure"), 3, true),
            (Some("Never"), 3, false),
        ];
        for (policy, code, expected) in table {
            let sidecar = Container {
                name: "side".into(),
                restart_policy: Some("Always".into()),
                ..Default::default()
            };
            let spec = PodSpec {
                restart_policy: policy.map(Into::into),
                containers: vec![Container { name: "app".into(), ..Default::default() }],
                init_containers: Some(vec![sidecar]),
                ..Default::default()
            };
            assert_eq!(is_due(&spec, "app", code), expected, "{policy:?} {code}");
            assert!(is_due(&spec, "side", code), "{policy:?} {code}");
        }
    }

    #[test]
    fn a_resize_restarts_where_the_policy_of_this_resource_says_so() {
        let resources = |kind: &str, quantity: &str| ResourceRequirements {
            requests: Some(BTreeMap::from([(kind.into(), Quantity(quantity.into()))])),
            ..Default::default()
        };
        let policy = |kind: &str, restart: &str| ContainerResizePolicy {
            resource_name: kind.into(),
            restart_policy: restart.into(),
        };
        let container = |kind, quantity| Container {
            resources: Some(resources(kind, quantity)),
            resize_policy: Some(vec![
                policy("cpu", "RestartContainer"),
                policy("memory", "NotRequired"),
            ]),
            ..Default::default()
        };
        let (cpu, memory) = (resources("cpu", "1"), resources("memory", "1Mi"));
        assert!(resizes(Some(&cpu), &container("cpu", "2")));
        assert!(!resizes(Some(&cpu), &container("cpu", "1")));
        assert!(!resizes(Some(&memory), &container("memory", "2Mi")));
        assert!(!resizes(Some(&cpu), &Container { resize_policy: None, ..container("cpu", "2") }));
    }

    #[test]
    fn a_rule_has_all_containers_restarted_for_its_exit_codes_only() {
        let rule = |operator: &str| ContainerRestartRule {
            action: "RestartAllContainers".into(),
            exit_codes: Some(ContainerRestartRuleOnExitCodes {
                operator: operator.into(),
                values: Some(vec![42]),
            }),
        };
        let spec = |rules| PodSpec {
            containers: vec![Container {
                name: "app".into(),
                restart_policy: Some("Never".into()),
                restart_policy_rules: rules,
                ..Default::default()
            }],
            ..Default::default()
        };
        let of = spec(Some(vec![rule("In")]));
        assert!(restarts_all(&of, "app", 42) && may_restart_all(&of));
        assert!(!restarts_all(&of, "app", 0) && !is_due(&of, "app", 0), "its own policy");
        assert!(restarts_all(&spec(Some(vec![rule("NotIn")])), "app", 0));
        assert!(!restarts_all(&spec(None), "app", 42) && !may_restart_all(&spec(None)));
    }

    #[test]
    fn the_pauses_double_up_to_five_minutes() {
        let seconds = [0, 1, 2, 3, 6, 40, u32::MAX].map(|n| back_off(n).as_secs());
        assert_eq!(seconds, [0, 10, 20, 40, 300, 300, 300]);
    }
}
