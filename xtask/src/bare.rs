//! `cargo xtask bare COMMAND`: runs a command on a bare machine, which is a root file system with nothing
//! but Debian's minimal base, git and a C compiler, in a mount namespace of its own. What is
//! installed on the machine around it cannot help. The kernel is the machine's, and so are its processes
//! and cgroups: the agent must see them.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    host, root,
    setup::{MMDEBSTRAP, debian_mirror, keyring},
    steps::{note, step},
    toolchain::home,
    workspace::Workspace,
};

const ENTER: &str = include_str!("bare/enter.sh");
/// What a person has who has just installed rustup.
const PACKAGES: &str = "ca-certificates,git,build-essential";
/// Debian 12.
const SUITE: &str = "bookworm";
/// What passes from the environment into the bare machine: where rustup is, how packages are fetched here, and how the
/// output is to look.
const PASSED: [&str; 17] = [
    "HOME",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "CI",
    "TERM",
    "LANG",
    "NO_COLOR",
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "RUST_BACKTRACE",
];
/// What passes by the beginning of its name: pip's settings.
const PASSED_BY_BEGINNING: &str = "PIP_";

/// Runs the command in a new bare root, and removes the root; whether it succeeded.
///
/// # Errors
/// When the root cannot be made or entered.
pub(crate) fn run(workspace: &Workspace, command_line: &[OsString]) -> Result<bool> {
    root::demand()?;
    let folder = workspace.target("bare").join(SUITE);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Another one at the same time would remove this one's root.
    let lock = fs::File::create(folder.join("lock"))?;
    if lock.try_lock().is_err() {
        bail!("another `cargo xtask bare` uses {}", folder.display());
    }
    let base = base(workspace, &folder)?;
    let script = folder.join("enter.sh");
    fs::write(&script, ENTER).with_context(|| format!("cannot write {}", script.display()))?;
    let root_folder = folder.join("root");
    let lacks = |name| format!("neither {name} nor HOME is set: where is rustup's toolchain?");
    let cargo = home("CARGO_HOME", ".cargo").with_context(|| lacks("CARGO_HOME"))?;
    let rustup = home("RUSTUP_HOME", ".rustup").with_context(|| lacks("RUSTUP_HOME"))?;
    let rustup_program = host::find_program("rustup").context("there is no rustup on PATH")?;
    // As this user: inside they are made by root, and then belong to it.
    for own in [workspace.failed(), cargo.join("registry"), cargo.join("git")] {
        fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
    }
    let mut command = root::command(workspace, "unshare");
    command.args(["--mount", "--uts", "--ipc", "sh"]).arg(&script).arg(&base).arg(&root_folder);
    command.args([workspace.root(), &folder.join("target"), &cargo, &rustup, &rustup_program]);
    command.args(["env", "-i"]).args(environment(&cargo)).args(command_line);
    let status = command.status().context("cannot start unshare (of the package util-linux)")?;
    end_stragglers(workspace, &root_folder)?;
    if fs::read_to_string("/proc/self/mountinfo")?.contains(&format!(" {}/", root_folder.display()))
    {
        bail!("something is mounted below {}: unmount it", root_folder.display());
    }
    let mut remove = root::command(workspace, "rm");
    remove.args(["-rf", "--one-file-system"]).arg(&root_folder);
    step("removing the bare root", &mut remove)?;
    if !status.success() {
        note(&format!(
            "it failed on a bare {SUITE}: {status}; its target folder is {}",
            folder.join("target").display()
        ));
    }
    Ok(status.success())
}

/// The environment of a person who has just logged in, and how packages are fetched here.
fn environment(cargo: &Path) -> Vec<OsString> {
    let path = format!(
        "PATH={}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        cargo.display()
    );
    let passes = |name: &str| PASSED.contains(&name) || name.starts_with(PASSED_BY_BEGINNING);
    env::vars_os()
        .filter(|(name, _)| name.to_str().is_some_and(passes))
        .map(|(name, value)| {
            let mut pair = name;
            pair.push("=");
            pair.push(value);
            pair
        })
        // What helps the next build costs this one, which mostly is the only one.
        .chain([path.into(), "CARGO_INCREMENTAL=0".into()])
        .collect()
}

/// Debian's minimal base as a tar archive: made once, extracted for every run.
fn base(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let archive = folder.join("base.tar");
    if archive.is_file() {
        return Ok(archive);
    }
    let made = archive.with_extension("partial.tar");
    let mut command = root::command(workspace, "perl");
    MMDEBSTRAP.install(workspace)?;
    command.arg(MMDEBSTRAP.file(workspace)).args(["--quiet", "--variant=minbase", "--format=tar"]);
    command.arg("--keyring").arg(keyring(workspace)?).arg(format!("--include={PACKAGES}"));
    command.arg(SUITE).arg(&made);
    command.args(
        ["", "-security"].map(|part| format!("deb {} {SUITE}{part} main", debian_mirror(part))),
    );
    step(&format!("making a bare {SUITE}"), &mut command)?;
    fs::rename(&made, &archive).with_context(|| format!("cannot make {}", archive.display()))?;
    Ok(archive)
}

/// Ends what the command left running: every process that has its root there. They are root's.
fn end_stragglers(workspace: &Workspace, root_folder: &Path) -> Result<()> {
    let mut command = root::command(workspace, "sh");
    command.args(["-c", END_STRAGGLERS, "sh"]).arg(root_folder);
    command.status().context("cannot start sh")?;
    Ok(())
}

const END_STRAGGLERS: &str = r#"
for process in /proc/[0-9]*; do
    if [ "$process/root" -ef "$1" ]; then
        echo "the command left process ${process#/proc/} running; ending it" >&2
        kill -KILL "${process#/proc/}"
    fi
done"#;
