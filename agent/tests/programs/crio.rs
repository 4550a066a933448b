//! The cgroups that CRI-O makes with systemd's driver and crun: the processes of a container are in a cgroup below its
//! scope, its sandbox has a cgroup without any, and the scope of its monitor bears its id and is no container.

use crate::{
    actors::{Actor, Role},
    ends, signals,
    stage::{ID, Session, TestCgroup, with_cgroup2},
};
use coroner_core::{
    ids::Tgid,
    input::{ExitStatus, KernelFact},
};
use libc::{SIGKILL, SIGTERM};

const SLICE: &str = "kubepods-besteffort-pod8dbc5577_d0e2_4706_8787_57d52c03ddf2.slice";

#[test]
fn a_container_is_below_its_scope_and_its_monitor_is_none() {
    with_cgroup2(|hierarchy| {
        let root = TestCgroup::top(hierarchy, "kubepods-besteffort.slice");
        let pod = root.child(SLICE);
        let mut session = Session::start(hierarchy);
        let sandbox = pod.child(&format!("crio-{}", "f".repeat(64)));
        let monitor = pod.child(&format!("crio-conmon-{ID}.scope"));
        let scope = pod.child(&format!("crio-{ID}.scope"));
        let container = scope.child("container");
        let conmon = Actor::start(&monitor.path, Role::default());
        let role = Role { init: true, handle: &[SIGTERM], ..Role::default() };
        let actor = Actor::start(&container.path, role);
        let (pid, conmon_pid) = (actor.pid, conmon.pid);
        actor.kill(SIGTERM);
        actor.wait();
        conmon.kill(SIGKILL);
        conmon.wait();
        session.until_empty(container.id);
        session.settle();

        let about = session.about(container.id);
        let signal = signals(&session, container.id);
        let signal = signal.first().map(|sent| (sent.target.tgid, sent.signal));
        assert_eq!(signal, Some((Tgid(pid), 15)), "{about:#?}");
        let [(_, status)] = &ends(&session, pid)[..] else { panic!("{about:#?}") };
        assert_eq!(*status, ExitStatus::Code(37));
        assert!(session.about(monitor.id).is_empty(), "its monitor");
        assert!(ends(&session, conmon_pid).is_empty(), "its monitor's end");
        let told = session.about(sandbox.id);
        assert!(matches!(told[..], [KernelFact::CgroupCreated { .. }]), "{told:#?}");
        drop((container, scope, monitor, sandbox));
    });
}
