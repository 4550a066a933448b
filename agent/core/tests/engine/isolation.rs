//! Containers that the host's kernel does not see into.

use super::world::{CODE_0, Cgroups, World, container, ids, init, object, running, sandbox, shim};
use coroner_core::{
    input::{ApiEvent, ContainerState, CriEvent, CriSandbox, KernelFact, Task},
    report::ContainerDeath,
    types::{FindingKind, MilestoneKind, Verdict},
};

/// The pod is deleted; what the host shows looks like a graceful end.
fn ends(world: &mut World, of: CriSandbox) -> ContainerDeath {
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.later(100).term(1, true);
    world.later(500).exits(1, CODE_0);
    let stopped = CriSandbox { ready: false, ..of };
    world.lists(vec![stopped], vec![container(1, ContainerState::Exited)]);
    world.status(1, 137);
    let at = world.at();
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(60);
    world.died[0].clone()
}

fn assert_unseen(death: &ContainerDeath, by: &str) {
    assert_eq!(death.verdict, Verdict::Unknown, "{}", death.proof.message);
    assert_eq!(death.exit, None, "the hypervisor's, not the container's");
    let kinds: Vec<_> = death.findings.iter().map(|f| f.kind).collect();
    assert_eq!(kinds, [FindingKind::UnsupportedRuntime], "and no contradiction with it");
    assert!(death.findings[0].detail.contains(by), "{}", death.findings[0].detail);
    assert!(death.proof.message.contains(by), "{}", death.proof.message);
    for kind in [MilestoneKind::TermSent, MilestoneKind::TermHandled, MilestoneKind::Exited] {
        assert_eq!(death.milestone(kind), None);
    }
    assert!(death.milestone(MilestoneKind::CgroupEmpty).is_some(), "when it was over is known");
}

fn handled_by(handler: &str) -> (World, CriSandbox) {
    let mut world = running(1);
    let of = CriSandbox { handler: handler.into(), ..sandbox(1, true) };
    world.lists(vec![of.clone()], vec![container(1, ContainerState::Running)]);
    (world, of)
}

#[test]
fn the_handler_names_the_runtime() {
    let (mut world, of) = handled_by("kata-qemu");
    assert_unseen(&ends(&mut world, of), "runtime handler kata-qemu");
    let (mut world, of) = handled_by("gvisor");
    assert_unseen(&ends(&mut world, of), "runtime handler gvisor");
}

#[test]
fn other_handlers_are_seen_into() {
    let (mut world, of) = handled_by("nvidia");
    let death = ends(&mut world, of);
    assert_eq!(death.verdict, Verdict::Graceful, "{}", death.proof.message);
}

#[test]
fn a_default_handler_is_told_by_its_shim() {
    let mut world = running(1);
    let runtime = "io.containerd.kata.v2".into();
    world.cri(CriEvent::RuntimeType { container: ids(1).2, runtime });
    assert_unseen(&ends(&mut world, sandbox(1, true)), "runtime io.containerd.kata.v2");
    let mut world = running(1);
    let runtime = "io.containerd.runc.v2".into();
    world.cri(CriEvent::RuntimeType { container: ids(1).2, runtime });
    assert_eq!(ends(&mut world, sandbox(1, true)).verdict, Verdict::Graceful);
}

#[test]
fn or_by_what_runs_where_others_have_their_pause() {
    let vmm = |comm: &str| Task { comm: comm.into(), ..init(3) };
    let mut world = running(1);
    let cgroup = Cgroups::of(1).pause;
    let task = vmm("qemu-system-x86");
    world.kernel(KernelFact::Exec { cgroup, task: task.clone(), parent: shim() });
    assert_unseen(&ends(&mut world, sandbox(1, true)), "process qemu-system-x86");

    // A container whose own program is a hypervisor is a container like any other.
    let mut world = running(1);
    let cgroup = Cgroups::of(1).own;
    let task = Task { comm: "qemu-system-x86".into(), ..init(1) };
    world.kernel(KernelFact::Exec { cgroup, task, parent: shim() });
    world.kernel(KernelFact::Exec {
        cgroup: Cgroups::of(1).pause,
        task: vmm("pause"),
        parent: shim(),
    });
    assert_eq!(ends(&mut world, sandbox(1, true)).verdict, Verdict::Graceful);
}
