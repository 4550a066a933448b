//! The AppArmor profile in deploy/apparmor, enforced. Needs a kernel into which it is loaded, as it is into those of
//! the guests.

use crate::{
    agent::{
        CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_SYS_RESOURCE, RunningAgent, agent, checks,
        confine, doctor,
    },
    stage,
};
use std::{fs, io, os::unix::process::CommandExt as _, process::Output};

/// The capabilities of the DaemonSet, and before Linux 5.11 the one that locks memory.
fn kept() -> &'static [u32] {
    const ALL: &[u32] = &[CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_SYS_RESOURCE];
    if stage::release() >= (5, 11) { &ALL[..3] } else { ALL }
}

/// The next program of this process runs under the profile.
fn enter() -> io::Result<()> {
    fs::write("/proc/self/attr/apparmor/exec", "exec coroner")
}

#[test]
fn guest_the_profile_denies_nothing_that_is_needed() {
    let _machine = stage::machine();
    let kept = kept();
    let of = |(_, diagnosis): (Option<i32>, _)| checks(&diagnosis);
    let without = of(doctor(move || confine(kept)));
    let mut under = of(doctor(move || confine(kept).and_then(|()| enter())));
    let label = under.insert("confinement".into(), without["confinement"].clone());
    assert_eq!(label, Some(("ok".into(), "AppArmor profile coroner".into())));
    assert_eq!(under, without);

    fs::create_dir_all("/var/lib/coroner").unwrap(); // as the chart's hostPath
    let mut run = agent("run");
    // SAFETY: opens and writes one file.
    unsafe {
        run.args(["--traffic", "always", "--state-dir", "/var/lib/coroner"])
            .pre_exec(move || confine(kept).and_then(|()| enter()))
    };
    let mut running = RunningAgent::start(&mut run);
    running.until("system calls are filtered");
    running.until("counting connections");
    for part in ["privileges", "kernel", "traffic"] {
        let (state, detail, _) = running.ready(part);
        assert_eq!(state, "ok", "{detail}");
    }
    assert_eq!(running.stop(), Some(0));
}

#[test]
fn guest_the_profile_denies_a_file_in_another_place() {
    let _machine = stage::machine();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording.jsonl");
    let mut run = agent("run");
    run.args(["--listen", "127.0.0.1:0", "--api-listen", "off", "--socket", "off"]);
    // SAFETY: opens and writes one file.
    unsafe { run.arg("--record").arg(&file).pre_exec(enter) };
    let Output { status, stderr, .. } = run.output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("Permission denied"), "{said}");
    assert!(!file.exists());
}
