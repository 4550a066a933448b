use super::*;
use crate::{linux::procfs::ProcVisibility, sources::kernel::Unproven};
use coroner_core::input::Loss;

fn at(secs: u64, input: Input) -> Received {
    Received { at: secs_boot(secs), input }
}

fn secs_boot(secs: u64) -> BootTime {
    BootTime(secs * 1_000_000_000)
}

fn connected() -> Input {
    Input::Cri(CriEvent::Connected { runtime: "containerd 1.7".into(), process: None })
}

fn unreachable(error: &str) -> Input {
    Input::Cri(CriEvent::Unreachable { error: error.into(), code: None })
}

/// Everything works at second 1.
fn well() -> Health {
    let mut health = Health::new(true, secs_boot(0));
    let hooks = [("cgroup_mkdir", Ok(()))].into();
    health.kernel_started(StartReport { hooks, ..StartReport::default() });
    health.note(&at(1, connected()));
    health.note(&at(1, Input::Api(ApiEvent::Snapshot { pods: vec![] })));
    health
}

fn failing(health: &Health, now: u64) -> Vec<&'static str> {
    let Checks { ready, checks } = health.checks(secs_boot(now));
    let failing = checks.iter().filter(|check| check.severity == Severity::Failing);
    let failing: Vec<_> = failing.map(|check| check.name).collect();
    assert_eq!(ready, failing.is_empty());
    failing
}

#[test]
fn nothing_is_ready_before_it_answered() {
    let mut health = Health::new(true, secs_boot(0));
    assert_eq!(failing(&health, 1), ["kernel"], "the others are not asked before it is up");
    health.kernel_started(StartReport::default());
    assert_eq!(failing(&health, 1), ["cri", "api"]);
    let mut without = Health::new(false, secs_boot(0));
    without.kernel_failed("no BTF".into());
    without.asks = true;
    assert_eq!(failing(&without, 1), ["kernel", "cri"]);
    assert_eq!(failing(&well(), 1), [""; 0]);
}

#[test]
fn a_source_that_fails_says_since_when_and_recovers() {
    let mut health = well();
    health.note(&at(10, unreachable("refused")));
    health.note(&at(12, unreachable("reset")));
    assert_eq!(failing(&health, 15), ["cri"]);
    let text = health.checks(secs_boot(15)).to_string();
    assert!(text.contains("unreachable for 5 s: reset"), "{text}");
    health.note(&at(16, connected()));
    assert_eq!(failing(&health, 16), [""; 0]);

    health.note(&at(20, Input::Api(ApiEvent::OutOfSync { error: "410".into() })));
    assert_eq!((failing(&health, 20), health.api_in_sync()), (vec!["api"], Some(false)));
    health.note(&at(21, Input::Api(ApiEvent::Applied(Default::default()))));
    assert_eq!(failing(&health, 21), ["api"], "an event of a list that is not complete");
    health.note(&at(22, Input::Api(ApiEvent::Resumed)));
    assert_eq!(failing(&health, 22), [""; 0]);
}

/// What is logged once when it changes.
#[test]
fn another_reason_of_the_runtimes_check_is_told_once() {
    let mut health = well();
    let seconds = Duration::from_secs;
    for (longest, change) in [(4, false), (15, true), (16, false), (1, true)] {
        assert_eq!(health.runtime_takes(seconds(longest)), change, "{longest}");
    }
    health.note(&at(2, Input::Cri(CriEvent::UnreadableSandboxes { count: 1 })));
    assert!(health.runtime_takes(seconds(1)));
    assert!(!health.runtime_takes(seconds(1)));
}

fn lacks(health: &mut Health, capability: &'static str, essential: bool) {
    health.lacks = vec![MissingCapability { capability, purpose: "it matters", essential }];
}

fn started(health: &mut Health, hook: &'static str, how: Result<(), String>) {
    let unproven = Unproven { hooks: vec![hook], why: "read-only".into() };
    let unproven = Some(unproven).filter(|_| how.is_ok());
    health.kernel_started(StartReport {
        hooks: [(hook, how)].into(),
        unproven,
        ..Default::default()
    });
}

fn restricted(health: &mut Health, lockdown: &str, label: &str) {
    let [lockdown, label] = [lockdown, label].map(|text| Some(text.to_owned()));
    let visibility =
        ProcVisibility { root: false, host: false, namespaces: true, wait_channels: true };
    health.restrictions = Restrictions { visibility: Some(visibility), lockdown, label };
}

fn lost(health: &mut Health, kind: LossKind) {
    health.note(&at(10, Input::Lost(Loss::new(kind, 3))));
}

/// A check, what happened to a node that was well, and how it is found eleven seconds after its start.
#[test]
fn each_check_says_what_is_wrong_and_what_to_do() {
    use Severity::{Degraded, Failing, Ok as Fine};
    type Case = (&'static str, fn(&mut Health), Severity, &'static str);
    let cases: [Case; 24] = [
        ("privileges", |_| {}, Fine, "all required capabilities"),
        ("privileges", |health| lacks(health, "CAP_BPF", true), Failing, "CAP_BPF is missing"),
        ("privileges", |health| lacks(health, "CAP_SYS_PTRACE", false), Degraded, "run as root"),
        (
            "privileges",
            |health| _ = health.confinement.insert("seccomp", Err("no".into())),
            Degraded,
            "FILTER",
        ),
        ("lockdown", |health| restricted(health, "[none] integrity\n", ""), Fine, "none"),
        ("lockdown", |health| restricted(health, "none [confidentiality]\n", ""), Failing, "boot"),
        ("confinement", |health| restricted(health, "", "unconfined\n"), Fine, "no AppArmor"),
        ("confinement", |health| restricted(health, "", "a (enforce)\n"), Degraded, "Unconfined"),
        ("confinement", |health| restricted(health, "", "coroner (enforce)\n"), Fine, "coroner"),
        ("confinement", |health| restricted(health, "", "a (complain)\n"), Fine, "denies nothing"),
        ("confinement", |health| restricted(health, "", "u:r:container_t:s0\0"), Degraded, "spc_t"),
        ("confinement", |health| restricted(health, "", "u:r:spc_t:s0"), Fine, "spc_t"),
        ("host", |health| restricted(health, "", ""), Degraded, "cannot enter"),
        ("kernel", |health| health.kernel_failed("no BTF".into()), Failing, "no BTF"),
        ("kernel", |health| started(health, "a", Err("wrong".into())), Failing, "a: wrong"),
        ("kernel", |health| started(health, "cgroup_mkdir", Ok(())), Fine, "read-only"),
        ("kernel", |health| started(health, "exec", Ok(())), Degraded, "hostPID: true"),
        ("cri", |_| {}, Fine, "containerd 1.7"),
        ("cri", |health| _ = health.runtime_takes(SLOW), Degraded, "1.7; slow: a call takes 5 s"),
        ("leaks", |health| health.detection_state = DetectionState::NodeForeign, Failing, "--node"),
        ("leaks", |health| health.detection_state = DetectionState::NodeUnknown, Degraded, "RBAC"),
        ("losses", |_| {}, Fine, "none in the last 10 minutes"),
        ("losses", |health| lost(health, LossKind::DetailRingFull), Degraded, "3 (1 s ago)"),
        (
            "losses",
            |health| lost(health, LossKind::CgroupMapFull),
            Failing,
            "remove unused cgroups",
        ),
    ];
    for (name, happens, severity, word) in cases {
        let mut health = well();
        happens(&mut health);
        let mut checks = health.checks(secs_boot(11)).checks.into_iter();
        let check = checks.find(|check| check.name == name).expect(name);
        let said = format!("{} {}", check.found, check.todo);
        assert!(check.severity == severity && said.contains(word), "{name}: {check:?}");
        assert_eq!(failing(&health, 11), [name; 1][..usize::from(severity == Failing)]);
    }
    let mut health = well();
    lost(&mut health, LossKind::CgroupMapFull);
    assert_eq!(failing(&health, 611), [""; 0], "forgotten after ten minutes");
    health.runtime_takes(SLOW);
    health.note(&at(2, unreachable("no answer within 60s")));
    assert_eq!(failing(&health, 11), ["cri", "losses"], "an outage says more than slowness");
}

#[test]
fn a_silent_loop_is_not_alive() {
    let mut health = well();
    health.note(&at(100, Input::Tick));
    assert_eq!(health.alive(secs_boot(109)), Ok(()));
    assert_eq!(health.alive(secs_boot(110)), Err(Duration::from_secs(10)));
}
