//! Root, for what loads kernel programs and starts containers.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail, ensure};
use rustix::process::{getegid, geteuid};

use crate::{
    host::find_program,
    steps::{output, step},
    workspace::Workspace,
};

/// `CAP_SYS_ADMIN`, include/uapi/linux/capability.h.
const SYS_ADMIN: u32 = 21;

/// Makes sure that [`command`] will work, before time is spent on builds. sudo asks for a password now.
///
/// # Errors
/// This user is not root and sudo does not help, or root is restricted; the error says what to do.
pub(crate) fn demand() -> Result<()> {
    const WHY: &str = "loading kernel programs and starting containers needs root";
    if !geteuid().is_root() {
        let Some(sudo) = find_program("sudo") else {
            bail!("{WHY}, and there is no sudo: run this command as root");
        };
        // `--validate` may ask for a password that running a command does not need.
        let asked = || Command::new(&sudo).arg("--validate").status();
        let is_allowed = output(Command::new(&sudo).args(["--non-interactive", "true"])).is_some()
            || asked().is_ok_and(|status| status.success());
        ensure!(is_allowed, "{WHY}: run this command as root");
        return Ok(());
    }
    let status = fs::read_to_string("/proc/self/status")?;
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    let is_restricted =
        u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set >> SYS_ADMIN & 1 == 0);
    let map = fs::read_to_string("/proc/self/uid_map")?;
    if is_restricted || map.split_whitespace().nth(2) != Some("4294967295") {
        bail!(
            "{WHY}, and root is restricted in this container or user namespace: start the container with \
             --privileged, or run this command on the machine"
        );
    }
    Ok(())
}

/// A command that runs `program` as root: directly, or through sudo.
pub(crate) fn command(workspace: &Workspace, program: impl AsRef<OsStr>) -> Command {
    if geteuid().is_root() {
        let mut command = Command::new(program);
        command.env("PATH", workspace.path());
        return command;
    }
    let mut command = Command::new("sudo");
    // sudo resets these even if it preserves the rest.
    command.args(["--preserve-env", "env"]);
    for (name, value) in [("PATH", Some(workspace.path())), ("HOME", env::var_os("HOME"))] {
        let mut pair = std::ffi::OsString::from(format!("{name}="));
        pair.push(value.unwrap_or_default());
        command.arg(pair);
    }
    command.arg(program);
    command
}

/// Makes the files of root in `folder` this user's, after a child that ran as root.
///
/// # Errors
/// chown fails.
pub(crate) fn take_back(workspace: &Workspace, folder: &Path) -> Result<()> {
    if geteuid().is_root() || !folder.exists() {
        return Ok(());
    }
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    change_owner(&mut command(workspace, "chown"), user, group, folder)
}

/// Makes the files that this command has written as root under sudo those of the user who called sudo, or the next
/// build without sudo fails.
///
/// # Errors
/// chown fails.
pub(crate) fn give_back(workspace: &Workspace) -> Result<()> {
    let number = |name| env::var(name).ok()?.parse::<u32>().ok();
    let (Some(user @ 1..), Some(group)) = (number("SUDO_UID"), number("SUDO_GID")) else {
        return Ok(());
    };
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home);
    let is_theirs = |folder: &Path| fs::metadata(folder).is_ok_and(|about| about.uid() == user);
    let target = is_theirs(workspace.root()).then(|| workspace.target(""));
    for folder in [target, cargo.filter(|cargo| is_theirs(cargo))].into_iter().flatten() {
        change_owner(&mut Command::new("chown"), user, group, &folder)?;
    }
    Ok(())
}

fn change_owner(chown: &mut Command, user: u32, group: u32, folder: &Path) -> Result<()> {
    chown
        .args(["--recursive", "--no-dereference", "--from=0", &format!("{user}:{group}")])
        .arg(folder);
    step(&format!("giving root's files in {} to their user", folder.display()), chown)?;
    Ok(())
}
