//! A real process that SIGKILL does not end: the v1 freezer holds it in state D until it is thawed.

use crate::{
    actors::{Actor, Role},
    stage::{Pod, Session, TIMEOUT, TestCgroup, freezer, wait_for, with_cgroup2},
};
use coroner::{
    linux::clock,
    sources::processes::{ProcRoot, look},
};
use coroner_core::{
    engine::{Engine, Settings},
    input::{Input, KernelFact, Received, TaskState},
    output::{Report, Request},
};
use libc::SIGKILL;
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Thaws when dropped: nothing else ends what is in it.
struct Frozen(PathBuf);

impl Frozen {
    fn freeze(cgroup: &TestCgroup, pid: u32) -> Self {
        fs::write(cgroup.path.join("cgroup.procs"), pid.to_string()).unwrap();
        let state = cgroup.path.join("freezer.state");
        fs::write(&state, "FROZEN").unwrap();
        wait_for(Duration::from_millis(1), || {
            let is_frozen = fs::read_to_string(&state).unwrap().trim() == "FROZEN";
            is_frozen.then_some(()).ok_or_else(|| "it does not freeze".to_owned())
        });
        Self(state)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "THAWED"); // an error would hide the test's own
    }
}

/// An engine that hears what the session hears and whose looks are real ones.
struct LookingEngine<'a> {
    engine: Engine,
    session: &'a mut Session,
    heard: usize,
    host: ProcRoot,
}

impl LookingEngine<'_> {
    /// Ticks until the engine says of an unkillable container that it is or is no more.
    fn until(&mut self, over: bool) -> (String, Vec<Input>) {
        let until = Instant::now() + TIMEOUT;
        let mut answers = Vec::new();
        while Instant::now() < until {
            // The engine goes by the clock: it has to have been some seconds.
            std::thread::sleep(Duration::from_millis(100));
            self.session.settle();
            let new: Vec<_> = self.session.heard()[self.heard..].to_vec();
            self.heard += new.len();
            let mut inputs: Vec<Input> = new.into_iter().map(Input::Kernel).collect();
            inputs.push(Input::Tick);
            while let Some(input) = (!inputs.is_empty()).then(|| inputs.remove(0)) {
                let outputs = self.engine.step(Received { at: clock::boot_now(), input });
                for request in outputs.requests {
                    if let Request::InspectProcesses(which) = request {
                        let answer = Input::Proc(look(&self.host, which));
                        answers.push(answer.clone());
                        inputs.push(answer);
                    }
                }
                for report in outputs.reports {
                    if let Report::Unkillable(holdout) = report
                        && holdout.over == over
                    {
                        return (holdout.detail, answers);
                    }
                }
            }
        }
        panic!("never said (over: {over}); /proc answered {answers:#?}");
    }
}

#[test]
fn a_frozen_process_survives_sigkill_and_is_told_until_it_ends() {
    with_cgroup2(|hierarchy| {
        // Nothing else survives SIGKILL at will.
        let freezer = freezer();
        let mut session = Session::start(hierarchy);
        let pod = Pod::make(hierarchy);
        let cgroup = TestCgroup::top(&freezer, "freezer");
        let init = Actor::start(&pod.container.path, Role { init: true, ..Role::default() });
        let pid = init.pid;
        let frozen = Frozen::freeze(&cgroup, pid);
        init.kill(SIGKILL);
        session.until(
            "SIGKILL",
            |fact| matches!(fact, KernelFact::SignalGenerated(sent) if sent.signal == 9),
        );

        let host = ProcRoot { proc: Path::new("/proc").into(), cgroup_root: hierarchy.into() };
        let engine = Engine::new(Settings::new(clock::anchor()));
        let mut agent = LookingEngine { engine, session: &mut session, heard: 0, host };
        let (detail, answers) = agent.until(false);
        eprintln!("{detail}");
        assert!(detail.contains(&format!("(pid {pid}) in state D (uninterruptible)")), "{detail}");
        let Some(Input::Proc(report)) = answers.last() else { panic!("nobody looked") };
        assert_eq!((report.alive, report.frozen), (Some(1), Some(true)));
        let process = &report.processes[0];
        assert_eq!(process.state, TaskState::Uninterruptible);
        assert!(!process.stack.is_empty(), "as root the stack can be read: {process:?}");
        assert_eq!(agent.engine.gauges().unkillable, [(TaskState::Uninterruptible, 1)].into());

        drop(frozen);
        init.wait();
        let (detail, _) = agent.until(true);
        eprintln!("{detail}");
        assert!(detail.starts_with("It ended "), "{detail}");
        assert!(agent.engine.gauges().unkillable.is_empty());
    });
}
