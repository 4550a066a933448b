//! Hand-made accounts for the tests, and the comparison with golden files.

use coroner_core::{
    ids::{ContainerId, PodRef, PodUid, Tgid},
    input::{
        ConnectionEvent, ContainerKind, Disposition, ExitStatus, Hook, LossKind, SignalResult,
        TrafficPeer, Workload,
    },
    leak::{
        BlockedOn, Leak, LeakCause, LeakClass, LeakEvidence, LeakKey, LeakedResources, LikelyCause,
    },
    report::{
        ContainerDeath, Evidence, EvidenceKind, Finding, Milestone, OpenConnections, Phase,
        PodTermination, Process, Proof, Target, Traffic, TrafficShare,
    },
    time::{Anchor, BootTime, Moment, WallTime},
    types::{Cause, FindingKind, MilestoneKind, PhaseKind, Source, Verdict},
};
use std::{path::Path, time::Duration};

/// Compares with `tests/golden/NAME`; with `UPDATE_GOLDEN` set it writes the file instead.
pub(crate) fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; UPDATE_GOLDEN=1 writes it", path.display()));
    assert!(text == wanted, "{name} differs; UPDATE_GOLDEN=1 accepts this:\n{text}");
}

/// By which the samples are dated.
pub(crate) const CLOCK: Anchor =
    Anchor { boot_ns: 1_000_000_000_000, wall_ns: 1_790_000_000_000_000_000 };

/// Milliseconds after the delete request, at 1000 s of the boot clock.
fn ms(millis: u64) -> Moment {
    Moment::of_boot(BootTime((1_000_000 + millis) * 1_000_000), &CLOCK)
}

fn pod(name: &str) -> PodRef {
    let uid = PodUid::new("2b6c9e1a-5f3d-4d52-9d0b-6f0a3f1f7c11");
    PodRef { namespace: "shop".into(), name: name.into(), uid }
}

fn milestones(all: &[(MilestoneKind, u64, Source)]) -> Vec<Milestone> {
    let uncertainty = |source| match source {
        Source::Cri => Duration::from_millis(250),
        _ => Duration::ZERO,
    };
    all.iter()
        .map(|&(kind, at, source)| Milestone {
            kind,
            at: ms(at),
            uncertainty: uncertainty(source),
            source,
        })
        .collect()
}

fn phases(all: &[(PhaseKind, u64)]) -> Vec<Phase> {
    let mut from = 0;
    all.iter()
        .map(|&(kind, to)| {
            let took = Duration::from_millis(to - from);
            let (from_at, uncertainty) = (ms(from), Duration::ZERO);
            let phase = Phase { kind, from: from_at, to: ms(to), took, uncertainty };
            from = to;
            phase
        })
        .collect()
}

/// preStop 3 s, a handler of 1 s, grace 30.
pub(crate) fn graceful() -> PodTermination {
    use MilestoneKind::*;
    use Source::*;
    let own = [
        (StopBegan, 152, Kernel),
        (PreStopBegan, 152, Kernel),
        (PreStopEnded, 3_161, Kernel),
        (TermSent, 3_174, Kernel),
        (TermHandled, 3_174, Kernel),
        (Exited, 4_177, Kernel),
        (CgroupEmpty, 4_178, Kernel),
    ];
    let death = ContainerDeath {
        node: String::new(),
        id: ContainerId::new("5d9c7c7d0e6f41d7a3b1"),
        name: "web".into(),
        pod: Some(pod("web-0")),
        workload: None,
        kind: ContainerKind::Main,
        verdict: Verdict::Graceful,
        proof: Proof {
            message: "It handled SIGTERM and exited 1.003 s later, 26 s before its \
                       deadline."
                .into(),
            evidence: vec![Evidence {
                at: ms(3_174),
                source: Kernel,
                kind: EvidenceKind::SignalDeliver { signal: 15 },
            }],
        },
        cause: Cause::ApiDelete,
        cause_source: Api,
        cause_message: "Its object was deleted (metadata.deletionTimestamp).".into(),
        findings: vec![],
        exit: Some(ExitStatus::Code(0)),
        stop_signal: 15,
        grace_seconds: Some(30),
        grace_ratio: Some(0.1342),
        pre_stop: Some(Hook::Exec("sleep".into())),
        killer: None,
        children_killed: 0,
        children_names: vec![],
        milestones: milestones(&own),
        truncated: false,
        incomplete: vec![],
    };
    let mut all = vec![(DeleteRequested, 0, Api)];
    all.extend(own);
    all.extend([(ContainerExited, 4_198, Cri), (SandboxStopped, 4_310, Cri)]);
    all.push((ObjectGone, 5_402, Api));
    PodTermination {
        node: String::new(),
        pod: pod("web-0"),
        life: 1,
        revision: 1,
        is_final: true,
        workload: None,
        cause: Cause::ApiDelete,
        cause_source: Api,
        cause_message: "Its object was deleted (metadata.deletionTimestamp).".into(),
        grace_seconds: Some(30),
        shortened_to_seconds: None,
        began: ms(0),
        ended: ms(5_402),
        took: Duration::from_millis(5_402),
        uncertainty: Duration::ZERO,
        request_lag_seconds: Some(0.412),
        milestones: milestones(&all),
        phases: phases(&[
            (PhaseKind::KubeletReaction, 152),
            (PhaseKind::PreStop, 3_161),
            (PhaseKind::StopCall, 3_174),
            (PhaseKind::Shutdown, 4_177),
            (PhaseKind::Reap, 4_178),
            (PhaseKind::RuntimeNotice, 4_198),
            (PhaseKind::SandboxStop, 4_310),
            (PhaseKind::Cleanup, 5_402),
        ]),
        critical: Some(death.id.clone()),
        containers: vec![death],
        traffic: None,
        findings: vec![],
        truncated: false,
        incomplete: vec![],
    }
}

/// One is graceful, the other ignores SIGTERM until SIGKILL; evidence was lost.
pub(crate) fn two_containers() -> PodTermination {
    use MilestoneKind::*;
    use Source::*;
    let mut account = graceful();
    account.grace_seconds = Some(10);
    let mut web = account.containers.remove(0);
    web.grace_seconds = Some(10);
    web.grace_ratio = Some(0.4026);
    let own = [
        (StopBegan, 160, Kernel),
        (TermSent, 160, Kernel),
        (KillSent, 10_166, Kernel),
        (Exited, 10_168, Kernel),
        (CgroupEmpty, 10_169, Kernel),
    ];
    let proxy = ContainerDeath {
        id: ContainerId::new("e1f0c7aa41ce4ab0a9d2"),
        name: "proxy".into(),
        verdict: Verdict::StopSignalIgnored,
        proof: Proof {
            message: "PID 1 has no handler for SIGTERM, so the kernel discarded it \
                       (signal_generate: ignored); SIGKILL came 10.006 s later, at the end of \
                       the grace period."
                .into(),
            evidence: vec![Evidence {
                at: ms(160),
                source: Kernel,
                kind: EvidenceKind::SignalGenerate {
                    signal: 15,
                    code: 0,
                    result: SignalResult::Ignored,
                    sender: runc(),
                    target: Some(Target {
                        unkillable: true,
                        group_exit: false,
                        disposition: Disposition::Default,
                        blocked: false,
                        pending: vec![],
                    }),
                },
            }],
        },
        findings: vec![Finding::new(
            FindingKind::ChildrenNotSignalled,
            "2 processes (worker, worker) died with PID 1 and were never sent SIGTERM.",
        )],
        exit: Some(ExitStatus::Signal { signal: 9, core: false }),
        grace_ratio: Some(1.0009),
        pre_stop: None,
        killer: Some(runc()),
        children_killed: 2,
        children_names: vec!["worker".into(), "worker".into()],
        milestones: milestones(&own),
        ..web.clone()
    };
    let mut all = vec![(DeleteRequested, 0, Api)];
    all.extend(own);
    all.extend([(SandboxStopped, 10_450, Cri), (ObjectGone, 11_312, Api)]);
    account.milestones = milestones(&all);
    account.phases = phases(&[
        (PhaseKind::KubeletReaction, 160),
        (PhaseKind::Shutdown, 10_166),
        (PhaseKind::Kill, 10_168),
        (PhaseKind::Reap, 10_169),
        (PhaseKind::Unattributed, 10_450),
        (PhaseKind::Cleanup, 11_312),
    ]);
    (account.ended, account.took) = (ms(11_312), Duration::from_millis(11_312));
    account.critical = Some(proxy.id.clone());
    account.containers = vec![web, proxy];
    account.findings = vec![Finding::new(
        FindingKind::RuntimeRestarted,
        "containerd did not answer for 0.2 s while this pod was being stopped.",
    )];
    account.incomplete = vec![LossKind::DetailRingFull];
    account
}

/// The same, with what it cost its clients: it closed its listener at once, and they kept coming.
pub(crate) fn with_traffic(mut account: PodTermination) -> PodTermination {
    use ConnectionEvent as E;
    use TrafficPeer::{Client, Node};
    let share = |(peer, event, count, first, last)| TrafficShare {
        peer,
        event,
        count,
        first: ms(first),
        last: ms(last),
    };
    let open = |established| Some(OpenConnections { established, listening: vec![8080] });
    let counts = [
        (Client, E::Opened, 31, 40, 3_160),
        (Client, E::ListenerClosed, 1, 3_190, 3_190),
        (Client, E::RefusedAfterStop, 17, 3_204, 4_170),
        (Node, E::RefusedAfterStop, 1, 3_900, 3_900),
        (Client, E::CutIdle, 19, 4_177, 4_177),
        (Client, E::Cut, 4, 4_177, 4_177),
    ];
    account.traffic = Some(Traffic {
        not_visible: None,
        since: ms(9),
        until: ms(4_178),
        stopped: Some(ms(3_174)),
        sees_refusals: true,
        at_begin: open(12),
        at_stop: open(23),
        counts: counts.into_iter().map(share).collect(),
    });
    account.workload = Some(Workload { kind: "Deployment".into(), name: "web".into() });
    account.findings.push(Finding::new(
        FindingKind::ConnectionsCut,
        "The exit of the process cut 4 connection(s) in the middle of a request (the client had sent data last); 19 \
         more were idle.",
    ));
    let at = |kind, at| (kind, at, Source::Kernel);
    account.milestones.extend(milestones(&[
        at(MilestoneKind::LastNewConnection, 3_160),
        at(MilestoneKind::ListenerClosed, 3_190),
    ]));
    account.milestones.sort_by_key(|milestone| milestone.at);
    account
}

/// The second tail: the kubelet's garbage collection removed the sandbox.
pub(crate) fn with_sandbox_removed(mut account: PodTermination) -> PodTermination {
    let removed = [(MilestoneKind::SandboxRemoved, 48_712, Source::Cri)];
    account.milestones.extend(milestones(&removed));
    account
}

/// The watch of the apiserver was away for 90 s, and the object was gone when it was back.
pub(crate) fn gone_in_an_outage() -> PodTermination {
    let mut account = graceful();
    let outage = Duration::from_secs(90);
    account.ended = ms(95_402);
    account.took += outage;
    account.uncertainty = outage;
    let gone = |milestone: &&mut Milestone| milestone.kind == MilestoneKind::ObjectGone;
    let gone = account.milestones.iter_mut().find(gone).expect("it is gone");
    (gone.at, gone.uncertainty) = (account.ended, outage);
    let cleanup = account.phases.last_mut().expect("its clean-up");
    (cleanup.to, cleanup.took, cleanup.uncertainty) =
        (account.ended, cleanup.took + outage, outage);
    account
}

/// Killed at once, of a second life, and its beginning was not seen.
pub(crate) fn second_life() -> PodTermination {
    use MilestoneKind::*;
    let mut account = graceful();
    account.life = 2;
    account.revision = 3;
    account.is_final = false;
    account.cause = Cause::Unknown;
    account.cause_source = Source::Inferred;
    account.cause_message =
        "It was stopped without a deletion, and its status names no reason.".into();
    account.grace_seconds = None;
    account.truncated = true;
    let death = &mut account.containers[0];
    death.name = String::new();
    death.verdict = Verdict::Crashed;
    death.proof.message = "It died of SIGSEGV, which the kernel raised in it.\x1b[2J".into();
    death.exit = Some(ExitStatus::Signal { signal: 11, core: true });
    death.grace_ratio = None;
    death.truncated = true;
    death.milestones = milestones(&[(Exited, 5, Source::Kernel), (CgroupEmpty, 6, Source::Kernel)]);
    account.milestones = death.milestones.clone();
    account.phases = phases(&[(PhaseKind::Reap, 1)]);
    (account.ended, account.took) = (ms(1), Duration::from_millis(1));
    account
}

/// The story of seed 002: stopped, its pod gone, passed by for 92 days.
pub(crate) fn leaked() -> Leak {
    let id = "398445f28f116ed45394c18d7697a64dceeef739379d5ac920bbf3fd6cc1bb78";
    let at = |seconds: i64| {
        Moment::of_wall(WallTime::from_secs(1_700_000_000 + seconds), &Anchor::default())
    };
    let shows = |seconds: Option<i64>, source, message: &str| {
        let message = message.into();
        LeakEvidence { at: seconds.map(at), source, message }
    };
    Leak {
        node: String::new(),
                class: LeakClass::NotreadyNoPod,
        key: LeakKey::Sandbox { id: id.into() },
        pod: Some(pod("web-0")),
        workload: None,
        attempt: Some(0),
        created: Some(at(-92 * 86_400)),
        first_observed: at(0),
        preexisting: true,
        resolved: false,
        confirmed: at(300),
        resources: LeakedResources {
            netns: Some("/run/netns/cni-7a3f".into()),
            ips: vec!["10.244.1.17".into()],
            ..LeakedResources::default()
        },
        cause: LikelyCause {
            kind: LeakCause::PodWorkerStuck,
            message: "kubelet pod worker stuck in terminating (kubernetes#107730): kubelet v1.23.1, runtime killed when \
                      the object was deleted"
                .into(),
        },
        blocked_on: None,
        evidence: vec![
            shows(Some(-4), Source::Api, "its object was deleted"),
            shows(Some(-3), Source::Cri, "its sandbox was no longer ready"),
            shows(
                Some(299),
                Source::Api,
                "the apiserver, queried directly, has no pod of this UID",
            ),
            shows(
                None,
                Source::Proc,
                "the kubelet v1.23.1 (pid 814) has not been restarted since",
            ),
        ],
        remediation: [
            "Restarting the kubelet cleans up all of these at once:",
            "$ systemctl restart kubelet",
            "To fix the bug, upgrade the kubelet to 1.27 or later.",
            "Or manually, only this one:",
            &format!("$ crictl stopp {id}"),
            &format!("$ crictl rmp {id}"),
        ]
        .map(str::to_owned)
        .into(),
    }
}

pub(crate) fn stuck() -> Leak {
    let uid = pod("db-0").uid;
    Leak {
        class: LeakClass::StuckTerminating,
        key: LeakKey::Pod { uid },
        pod: Some(pod("db-0")),
        workload: Some(Workload { kind: "StatefulSet".into(), name: "db".into() }),
        attempt: None,
        preexisting: false,
        resources: LeakedResources::default(),
        cause: LikelyCause {
            kind: LeakCause::Finalizer,
            message:
                "cleanup on this node is complete; the finalizer example.com/hold keeps the object"
                    .into(),
        },
        blocked_on: Some(BlockedOn::Finalizer),
        evidence: Vec::new(),
        remediation: [
            "Find out why the controller behind the finalizer does not remove it:",
            "$ kubectl -n shop get pod db-0 -o jsonpath='{.metadata.finalizers}'",
        ]
        .map(str::to_owned)
        .into(),
        ..leaked()
    }
}

fn runc() -> Process {
    Process { pid: Tgid(4711), comm: "runc".into(), cgroup: None, in_container: Some(false) }
}
