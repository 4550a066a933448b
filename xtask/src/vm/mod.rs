//! The kernel programs on foreign kernels: a test binary, alone in a guest with a kernel of Debian's
//! and one version of cgroups.

mod cgroup;
mod initramfs;
mod kernel;
mod newc;
mod qemu;

use std::{
    collections::BTreeMap,
    env, fs,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Result, bail};

pub(crate) use self::{
    cgroup::CgroupVersion,
    kernel::{KERNELS, Kernel, choose},
};
use crate::{
    host::{Arch, X86_64},
    progress::{ProgressLine, note},
    test::{
        BinaryRun, ExpectedTests, Tally, TestBinary, absent, compile_programs, keep, programs,
        report,
    },
    workspace::Workspace,
};

/// A machine to boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Guest {
    pub(crate) kernel: &'static Kernel,
    pub(crate) cgroup: CgroupVersion,
    /// Only the tests whose names contain this.
    pub(crate) only: Option<String>,
}

/// Each of `kernels` with each of `cgroups`.
pub(crate) fn matrix(kernels: &[&'static Kernel], cgroups: &[CgroupVersion]) -> Vec<Guest> {
    kernels
        .iter()
        .flat_map(|&kernel| cgroups.iter().map(move |&cgroup| Guest { kernel, cgroup, only: None }))
        .collect()
}

/// Those of the gate: the oldest and the newest kernel of this architecture. On those in between the hooks are the
/// same but for those of connections, which TCP changes most.
pub(crate) fn of_gate(cgroups: &[CgroupVersion]) -> Vec<Guest> {
    let all = KERNELS.iter().filter(|kernel| kernel.arch.is_host()).collect::<Vec<_>>();
    let (Some((oldest, rest)), Some(newest)) = (all.split_first(), all.last()) else {
        return Vec::new();
    };
    let between =
        rest.iter().filter(|kernel| *kernel != newest && cgroups.contains(&CgroupVersion::V2));
    let connections = between.map(|&kernel| Guest {
        kernel,
        cgroup: CgroupVersion::V2,
        only: Some("connections".into()),
    });
    matrix(&[*oldest, *newest], cgroups).into_iter().chain(connections).collect()
}

/// Runs `test` in each of `guests`, as many at once as this machine has CPUs for; a guest that cannot
/// be booted is a failed test, and keeps no other from running. `suffix`: what tells this run's failures
/// from another's.
///
/// # Errors
/// When there can be no guest at all.
pub(crate) fn run(
    workspace: &Workspace,
    guests: &[Guest],
    test: &TestBinary,
    suffix: &str,
) -> Result<Tally> {
    if *Arch::host()? != X86_64 {
        bail!("foreign kernels are set up for x86_64 only, this is {}", env::consts::ARCH);
    }
    fs::create_dir_all(workspace.target("vm"))?;
    let mut systems = BTreeMap::new();
    for arch in guests.iter().map(|guest| guest.kernel.arch) {
        if !systems.contains_key(arch.debian) {
            systems.insert(arch.debian, System::of(workspace, arch, test)?);
        }
    }

    // Most of the time one of a guest's two CPUs is busy, so there is one guest for each of ours.
    let at_once = thread::available_parallelism().map_or(1, usize::from).min(guests.len());
    let waiting = Mutex::new(guests.iter());
    let tally = Mutex::new(Tally::default());
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(guest) = next(&waiting) {
                    let system = &systems[guest.kernel.arch.debian];
                    let run = boot(workspace, guest, system, suffix);
                    tally.lock().unwrap_or_else(PoisonError::into_inner).add(run);
                }
            });
        }
    });
    Ok(tally.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// What guests of an architecture run.
struct System {
    test: TestBinary,
    initramfs: PathBuf,
}

impl System {
    /// # Errors
    /// When the test does not compile for another architecture, or a file cannot be read.
    fn of(workspace: &Workspace, arch: &Arch, test: &TestBinary) -> Result<Self> {
        let test = match arch.is_host() {
            true => test.clone(),
            false => programs(&compile_programs(workspace, arch)?)?.clone(),
        };
        let initramfs = workspace.target(&format!("vm/{}.cpio", arch.debian));
        initramfs::pack(workspace, arch, &test.executable, &initramfs)?;
        Ok(Self { test, initramfs })
    }
}

fn next<T>(waiting: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).next()
}

/// One guest from its kernel to its line on stderr.
fn boot(
    workspace: &Workspace,
    guest: &Guest,
    System { test, initramfs }: &System,
    suffix: &str,
) -> Tally {
    let Guest { kernel, cgroup, only } = guest;
    let of = only.as_ref().map(|only| format!(" ({only})")).unwrap_or_default();
    let title = format!("{}{of} on Linux {}, cgroup {}", test.name, kernel.name, cgroup.name());
    let name = format!("vm-{}-{}{suffix}", kernel.name, cgroup.name());
    let log = workspace.target("vm").join(format!("{name}.log"));
    let absent = absent::of(&test.name, |feature| cgroup.has(feature, kernel.arch.is_host()));
    let (arguments, expected) = match only {
        Some(only) => (vec![only.as_str()], ExpectedTests { some: true, filtered: None }),
        None => (absent::arguments(&absent), test.expected(&absent)),
    };
    let ended = kernel.image(workspace).and_then(|image| {
        let line = ProgressLine::begin(&title);
        let ended = qemu::boot(
            workspace,
            &line,
            &qemu::Machine {
                arch: kernel.arch,
                kernel: &image,
                initramfs,
                arguments: &cgroup.arguments(&arguments),
                log: log.clone(),
            },
        );
        let run = ended.map(|end| BinaryRun::of(end.status == 0, end.text, expected));
        let said = match &run {
            Ok(run) => format!("{} passed, {} failed", run.tally.passed, run.tally.failed),
            Err(_) => "it did not come to its end".to_owned(),
        };
        line.conclude(run.as_ref().is_ok_and(|run| run.tally.failed == 0), &said);
        run
    });
    match ended {
        Ok(run) => report(workspace, &name, run),
        Err(error) => {
            let said = fs::read_to_string(&log).unwrap_or_default();
            note(&format!("{title}: {error:#}"));
            keep(workspace, &name, &format!("{said}\n{error:#}"));
            Tally { failed: 1, ..Tally::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_booted_with_every_version_of_cgroups() {
        let kernels = choose(&["6.1".into(), "5.10".into()]).expect("both are in the table");
        let guests = matrix(&kernels, &[CgroupVersion::V2, CgroupVersion::V1]);
        let names: Vec<_> = guests.iter().map(|g| (g.kernel.name, g.cgroup.name())).collect();
        assert_eq!(names, [("6.1", "v2"), ("6.1", "v1"), ("5.10", "v2"), ("5.10", "v1")]);
    }
}
