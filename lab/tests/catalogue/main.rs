//! The whole catalogue, played for real: private containerd and runc, the real agent with its kernel programs, real
//! deaths. Each scenario is a test: `containerd-2/sigterm-ignored`. Needs root, and what `cargo xtask build` makes.

#[path = "../shared/binaries.rs"]
mod binaries;
mod run;

use coroner_lab::{
    containerd,
    scenarios::{Scenario, catalogue},
};
use libtest_mimic::{Arguments, Trial};
use run::LabRun;
use std::{env, process::ExitCode, sync::Arc};

/// In the environment: also what the gate has no time for. `cargo xtask test --long` sets it.
const LONG: &str = "CORONER_TEST_LONG";
/// How late the apiserver's answers are.
const DELAYS: [&str; 3] = ["3s", "9s", "30s"];

/// What is played on nodes that are made in another way: what depends on the runtime, and one of each kind of the rest.
const ON_OTHER_NODES: [&str; 10] = [
    "handles-sigterm",
    "sigterm-ignored",
    "oom-killed",
    "image-changed",
    "pod-worker-stuck",
    "ready-orphan",
    "netns-kept-open",
    "orphan-shim",
    "runtime-killed",
    "exits-with-requests",
];
/// What is played with an apiserver that is late.
const LATE: [&str; 10] = [
    "handles-sigterm",
    "slower-than-grace",
    "force-delete",
    "job-completes",
    "two-deaths-in-one-pod",
    "killed-from-outside",
    "grace-shortened",
    "sidecars-last",
    "deleted-during-post-start",
    "liveness-restart",
];

/// In the environment: the catalogue may be played on containerd 1.7 where 2 does not start.
const OLD_RUNTIME: &str = "CORONER_TEST_CONTAINERD_1_7";

/// Everything on containerd 2, and with `--long` ten scenarios on each other node.
fn runs() -> Vec<LabRun> {
    let all = catalogue();
    let of = |names: &[&str]| -> Vec<Scenario> {
        all.iter().filter(|one| names.contains(&one.name)).cloned().collect()
    };
    let (by_default, version) = match (containerd::find("2"), env::var_os(OLD_RUNTIME)) {
        (Err(_), Some(_)) => ("containerd-1.7", "1.7"),
        (Err(error), None) => {
            eprintln!("{error:#}; {OLD_RUNTIME}=1 plays the catalogue on containerd 1.7");
            ("containerd-2", "2")
        }
        (Ok(_), _) => ("containerd-2", "2"),
    };
    let mut runs = vec![LabRun::new(by_default, all.clone(), &["--containerd", version])];
    if env::var_os(LONG).is_none() {
        return runs;
    }
    let nodes: [(&str, &[&str]); 4] = [
        ("containerd-1.7", &["--containerd", "1.7"]),
        ("crun", &["--oci-runtime", "crun"]),
        ("systemd", &["--cgroup-driver", "systemd"]),
        ("nested", &["--nested"]),
    ];
    let others = nodes.into_iter().filter(|(name, _)| *name != by_default);
    runs.extend(others.map(|(name, flags)| LabRun::new(name, of(&ON_OTHER_NODES), flags)));
    runs.extend(DELAYS.map(|delay| {
        LabRun::new(&format!("late-{delay}"), of(&LATE), &["--delay-apiserver", delay])
    }));
    runs
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for run in runs() {
        let is_wanted =
            |name: &str| !arguments.is_filtered_out(&Trial::test(name.to_owned(), || Ok(())));
        trials.extend(Arc::new(run).trials(is_wanted));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
