//! The filter before the map of watched cgroups: whatever shares a slot with a container, nothing
//! that happens in a container goes unseen, and nothing outside is told.

use crate::{
    actors::Actor,
    ends,
    stage::{POD, Pod, Session, TestCgroup, with_cgroup2},
};
use coroner_core::{
    ids::{CgroupId, Tgid},
    input::{ExitStatus, KernelFact},
};
use coroner_ebpf::filter::{SLOTS, slot};
use std::collections::BTreeMap;

/// So many containers, that not many more cgroups must be made until one shares a slot with one.
const CONTAINERS: u32 = 300;

/// More than enough for that. A cgroup's files decide by how much ids are counted up, and by some steps
/// the slots come round only when nearly all of them were had.
const TRIES: u32 = 8 * SLOTS as u32;

fn containers(pod: &TestCgroup) -> BTreeMap<usize, TestCgroup> {
    (0..CONTAINERS)
        .map(|number| pod.child(&format!("{number:064x}")))
        .map(|cgroup| (slot(cgroup.id.0), cgroup))
        .collect()
}

/// A new cgroup of a name, in a slot that one of these has.
fn sharing(parent: &TestCgroup, name: &str, with: &BTreeMap<usize, TestCgroup>) -> TestCgroup {
    (0..TRIES)
        .map(|_| parent.child(name))
        .find(|cgroup| with.contains_key(&slot(cgroup.id.0)))
        .expect("a cgroup that shares a slot")
}

/// Something that the programs tell of, if they know this cgroup: a process from outside comes and
/// goes.
fn visit(cgroup: &TestCgroup, code: u8) -> u32 {
    let process = Actor::exec(&cgroup.path, code);
    let pid = process.pid;
    process.wait();
    pid
}

fn is_seen(session: &Session, cgroup: CgroupId, pid: u32, code: u8) -> bool {
    let executed = session
        .about(cgroup)
        .iter()
        .any(|fact| matches!(fact, KernelFact::Exec { task, .. } if task.tgid == Tgid(pid)));
    let ended = ends(session, pid).iter().any(|(_, status)| *status == ExitStatus::Code(code));
    assert_eq!(executed, ended, "half of a life is told");
    ended
}

#[test]
fn containers_that_share_a_slot_are_seen_until_each_is_gone() {
    with_cgroup2(|hierarchy| {
        let mut session = Session::start(hierarchy);
        let root = TestCgroup::top(hierarchy, "kubepods");
        let pod = root.child(POD);
        let mut containers = containers(&pod);
        for name in ["d", "e", "f"] {
            let late = sharing(&pod, &name.repeat(64), &containers);
            let early = containers.remove(&slot(late.id.0)).unwrap();
            let (first, second) = (visit(&early, 1), visit(&late, 2));
            let (early_id, late_id) = (early.id, late.id);
            early.remove();
            let third = visit(&late, 3);
            late.remove();
            session.settle();
            assert!(is_seen(&session, early_id, first, 1));
            assert!(is_seen(&session, late_id, second, 2));
            assert!(is_seen(&session, late_id, third, 3), "the other one's removal took it along");
            for id in [early_id, late_id] {
                let told = session.about(id);
                let removed = KernelFact::CgroupRemoved { cgroup: id };
                assert_eq!(told.last(), Some(&removed), "{told:#?}");
            }
        }
        // Who shares a slot with a container is none.
        let top = TestCgroup::top(hierarchy, "ordinary");
        let outside = sharing(&top, "service", &containers);
        let theirs = visit(&outside, 5);
        session.settle();
        assert!(!is_seen(&session, outside.id, theirs, 5));
        assert_eq!(session.about(outside.id), []);
        drop((containers, outside, top, pod, root));
    });
}

#[test]
fn containers_that_were_there_before_are_seen_whoever_shares_their_slots() {
    with_cgroup2(|hierarchy| {
        let Pod { container, pod, root } = Pod::make(hierarchy);
        let before = containers(&pod);
        let mut session = Session::start(hierarchy);
        // The kernel counts this one, and the agent has marked the other.
        let new = sharing(&pod, &"f".repeat(64), &before);
        let old = &before[&slot(new.id.0)];
        let first = visit(&new, 7);
        let new_id = new.id;
        new.remove();
        let second = visit(old, 8);
        session.settle();
        assert!(is_seen(&session, new_id, first, 7));
        assert!(is_seen(&session, old.id, second, 8), "the new one's removal took it along");
        drop((before, container, pod, root));
    });
}
