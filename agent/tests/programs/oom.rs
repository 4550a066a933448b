//! The OOM killer, provoked by a limit.

use crate::{
    KILLED,
    actors::{Actor, Role},
    ends, sent,
    stage::{self, Pod, Session, TestCgroup, with_cgroup2},
};
use coroner::sources::kernel::btf::Parameter;
use coroner_core::{ids::Tgid, input::KernelFact};
use libc::SIGKILL;
use std::{fs, path::Path};

const LIMIT: &str = "16777216";
const APPETITE: usize = 256 << 20;
/// `SI_KERNEL`.
const BY_THE_KERNEL: i32 = 0x80;

/// The cgroup that limits a container's memory, where that is not its own: of cgroup v1, where cgroup2 does not have
/// the controller.
fn limit(hierarchy: &Path, pod: &Pod) -> Option<TestCgroup> {
    if controls_memory(hierarchy) {
        for above in [hierarchy, &pod.root.path, &pod.pod.path] {
            fs::write(above.join("cgroup.subtree_control"), "+memory").unwrap();
        }
        fs::write(pod.container.path.join("memory.max"), LIMIT).unwrap();
        return None;
    }
    let v1 = stage::mounted("cgroup", "memory");
    let v1 = v1.expect("no memory controller: it is in every kernel to be tested");
    let apart = TestCgroup::top(&v1, "limit");
    fs::write(apart.path.join("memory.limit_in_bytes"), LIMIT).unwrap();
    Some(apart)
}

fn controls_memory(hierarchy: &Path) -> bool {
    fs::read_to_string(hierarchy.join("cgroup.controllers"))
        .is_ok_and(|all| all.split_whitespace().any(|name| name == "memory"))
}

/// The processes that the OOM killer is said to have chosen; where each was found, in all that was
/// heard, and whose cgroup was told.
fn victims(session: &Session, pod: &Pod) -> Vec<(usize, u32)> {
    // Linux before the spring of 2024 gives the pid only.
    let by_task = stage::tracepoint("mark_victim").first() == Some(&Parameter::Pointer);
    let expected = by_task.then_some(pod.container.id);
    let heard = session.heard().iter().enumerate();
    heard
        .filter_map(|(at, event)| match event.fact {
            KernelFact::OomVictim { cgroup, pid } => {
                assert_eq!(cgroup, expected);
                Some((at, pid))
            }
            _ => None,
        })
        .collect()
}

#[test]
fn the_oom_killers_choice_is_told_after_its_sigkill() {
    with_cgroup2(|hierarchy| {
        let mut session = Session::start(hierarchy);
        let pod = Pod::make(hierarchy);
        let apart = limit(hierarchy, &pod);
        let cgroups = [Some(&pod.container), apart.as_ref()].into_iter().flatten();
        let cgroups: Vec<&Path> = cgroups.map(|cgroup| &*cgroup.path).collect();
        let process = Actor::start_in(&cgroups, Role { eat: APPETITE, ..Role::default() });
        process.wait_unreaped();
        let pid = process.pid;
        let chosen =
            |fact: &KernelFact| matches!(fact, KernelFact::OomVictim { pid: p, .. } if *p == pid);
        session.until("the OOM killer's choice", chosen);
        session.settle();

        let kill = sent(&session, &pod, &process, SIGKILL);
        assert_eq!((kill.code, kill.group), (BY_THE_KERNEL, true));
        assert_eq!(kill.sender.tgid, Tgid(pid), "in the name of the one that asked for memory");
        let victims = victims(&session, &pod);
        assert_eq!(victims.len(), 1, "{victims:?}");
        let killed_at = session.heard().iter().position(|event| {
            matches!(&event.fact, KernelFact::SignalGenerated(sent)
                if sent.target.tgid == Tgid(pid) && i32::from(sent.signal) == SIGKILL)
        });
        assert!(killed_at < Some(victims[0].0), "the signal comes first");
        assert_eq!(ends(&session, pid)[0].1, KILLED);
        drop(process); // before its cgroups
    });
}
