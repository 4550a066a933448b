//! Whether and when a container that ended is started again (container/helpers.go,
//! `ShouldContainerBeRestarted`; kuberuntime_manager.go, `doBackOff`). Pure.

use super::order;
use k8s_openapi::api::core::v1::PodSpec;
use std::time::Duration;

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
    match spec.restart_policy.as_deref() {
        Some("Never") => false,
        Some("OnFailure") => exit_code != 0,
        _ => true,
    }
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
    use k8s_openapi::api::core::v1::Container;

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
    fn the_pauses_double_up_to_five_minutes() {
        let seconds = [0, 1, 2, 3, 6, 40, u32::MAX].map(|n| back_off(n).as_secs());
        assert_eq!(seconds, [0, 10, 20, 40, 300, 300, 300]);
    }
}
