//! The kubelet's arithmetic of the grace period. Pure.

use std::time::Duration;

/// What StopContainer is given at least, seconds (`minimumGracePeriodInSeconds`,
/// kuberuntime_manager.go): even a pod whose preStop hook used the grace up has this long.
pub const STOP_FLOOR: i64 = 2;

/// What a pod is given at least, seconds (pod_workers.go, `calculateEffectiveGracePeriod`).
pub const POD_FLOOR: i64 = 1;

/// `terminationGracePeriodSeconds` where the spec does not say, seconds.
pub const DEFAULT: i64 = 30;

/// The grace in force, seconds: the delete request's, else the spec's, never below the pod's floor.
pub fn in_force(of_delete: Option<i64>, of_spec: Option<i64>) -> i64 {
    of_delete.or(of_spec).unwrap_or(DEFAULT).max(POD_FLOOR)
}

/// What is left of `grace` seconds after `spent` on a hook or on waiting for a turn. The kubelet
/// subtracts whole seconds, truncated (kuberuntime_container.go, `killContainer`).
pub fn left(grace: i64, spent: Duration) -> i64 {
    grace.saturating_sub(i64::try_from(spent.as_secs()).unwrap_or(i64::MAX))
}

/// The timeout of StopContainer, seconds, when `left` of the grace is left.
pub fn stop_timeout(left: i64) -> i64 {
    left.max(STOP_FLOOR)
}

/// `left` seconds as a duration to wait at most.
pub fn wait(left: i64) -> Duration {
    Duration::from_secs(u64::try_from(left).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delete_request_wins_over_the_spec_and_nothing_is_below_one_second() {
        let table = [
            (Some(5), Some(30), 5),
            (None, Some(10), 10),
            (None, None, 30),
            (Some(0), Some(30), 1), // force delete
            (None, Some(0), 1),
            (Some(-3), None, 1),
        ];
        for (of_delete, of_spec, expected) in table {
            assert_eq!(in_force(of_delete, of_spec), expected, "{of_delete:?} {of_spec:?}");
        }
    }

    #[test]
    fn time_spent_is_subtracted_in_whole_seconds() {
        assert_eq!(left(10, Duration::from_millis(4_999)), 6);
        assert_eq!(left(10, Duration::from_millis(5_001)), 5);
        assert_eq!(left(10, Duration::from_secs(15)), -5);
        assert_eq!(left(i64::MIN, Duration::MAX), i64::MIN);
    }

    #[test]
    fn the_floor_is_two_seconds() {
        assert_eq!(stop_timeout(left(10, Duration::from_secs(10))), 2);
        assert_eq!(stop_timeout(-5), 2);
        assert_eq!(stop_timeout(1), 2);
        assert_eq!(stop_timeout(3), 3);
        assert_eq!(wait(-5), Duration::ZERO);
    }
}
