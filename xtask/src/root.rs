//! Root, for what loads kernel programs and starts containers: found before anything is built, and nothing
//! that it writes stays out of reach of the person who builds next.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::IsTerminal as _,
    os::unix::fs::{MetadataExt as _, lchown},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{getegid, geteuid};

use crate::{host, progress::step, toolchain::output, workspace::Workspace};

/// What it takes, by its number in the kernel (include/uapi/linux/capability.h): the default set of containerd's
/// containers, without which runc starts none, then what the lab and the agent need on top.
const CAPABILITIES: [(u32, &str); 19] = [
    (0, "chown"),
    (1, "dac_override"),
    (3, "fowner"),
    (4, "fsetid"),
    (5, "kill"),
    (6, "setgid"),
    (7, "setuid"),
    (8, "setpcap"),
    (10, "net_bind_service"),
    (13, "net_raw"),
    (18, "sys_chroot"),
    (27, "mknod"),
    (29, "audit_write"),
    (31, "setfcap"),
    (12, "net_admin"),
    (19, "sys_ptrace"),
    (21, "sys_admin"),
    (38, "perfmon"),
    (39, "bpf"),
];
/// How often sudo is used while this runs, so that it does not ask again in the middle: it forgets after
/// 5 minutes at the earliest, unless somebody has set less.
const SUDO_EVERY: Duration = Duration::from_secs(60);

/// Makes sure that [`command`] will work, before time is spent on builds. Where sudo wants a password, it asks
/// for it now, and is kept from asking again while this process runs.
///
/// # Errors
/// When this is neither root nor can become it, or root may not do what it takes; the error says what to do.
pub(crate) fn demand() -> Result<()> {
    const WHY: &str = "loading kernel programs and starting containers takes root";
    const WITHOUT: &str =
        "Without root you can run `cargo xtask build` and `cargo xtask test lint unit vm fuzz`";
    if geteuid().is_root() {
        return may_do_all();
    }
    let Some(sudo) = host::find_program("sudo") else {
        bail!("{WHY}, and there is no sudo: log in as root and run `cargo xtask` there. {WITHOUT}");
    };
    if needs_no_password(&sudo) {
        return Ok(());
    }
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        bail!(
            "{WHY}, and sudo cannot ask for a password here: run it in a terminal, or as root. {WITHOUT}"
        );
    }
    let asked = Command::new(&sudo).arg("--validate").status().context("cannot start sudo")?;
    if !asked.success() {
        bail!("{WHY}, and sudo refuses it: log in as root and run `cargo xtask` there");
    }
    thread::spawn(move || {
        loop {
            thread::sleep(SUDO_EVERY);
            output(Command::new(&sudo).args(["--non-interactive", "--validate"]));
        }
    });
    Ok(())
}

/// Root of a container may lack what root is needed for.
fn may_do_all() -> Result<()> {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if is_of_user_namespace(&map) {
        bail!(
            "root of a user namespace (a rootless container, `unshare --user`) may load no kernel programs: \
             run `cargo xtask` as the machine's root"
        );
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let last = fs::read_to_string("/proc/sys/kernel/cap_last_cap").unwrap_or_default();
    let missing = missing(&status, last.trim().parse().unwrap_or(u32::MAX));
    if !missing.is_empty() {
        bail!(
            "root lacks the capabilities {} here: start the container with --privileged, or run \
             `cargo xtask` on the machine itself",
            missing.join(", ")
        );
    }
    Ok(())
}

/// Whether the kernel's `uid_map` is another than the machine's own, which maps every ID to itself.
fn is_of_user_namespace(map: &str) -> bool {
    let words: Vec<&str> = map.split_whitespace().collect();
    !words.is_empty() && words != ["0", "0", "4294967295"]
}

/// What `/proc/self/status` lacks of [`CAPABILITIES`], as far as the kernel has them: up to the number `last`.
fn missing(status: &str, last: u32) -> Vec<&'static str> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(effective) = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()) else {
        return Vec::new(); // not told: the first that is missing shows itself
    };
    let lacks = |(number, _): &&(u32, &str)| *number <= last && effective & (1 << number) == 0;
    CAPABILITIES.iter().filter(lacks).map(|(_, name)| *name).collect()
}

/// A command that runs `program` as root: directly, or through sudo.
///
/// # Errors
/// When this is neither root nor able to become it; [`demand`] says what to do.
pub(crate) fn command(workspace: &Workspace, program: impl AsRef<OsStr>) -> Result<Command> {
    let program = program.as_ref();
    if geteuid().is_root() {
        let mut command = Command::new(program);
        command.env("PATH", workspace.path());
        return Ok(command);
    }
    let Some(sudo) = host::find_program("sudo") else {
        demand()?;
        bail!("there is no sudo");
    };
    let mut command = Command::new(sudo);
    command.args(["--preserve-env", "env"]);
    // sudo resets these even when it preserves the rest.
    let mut path = OsString::from("PATH=");
    path.push(workspace.path());
    command.arg(path);
    for name in ["HOME", "CARGO_HOME", "RUSTUP_HOME"] {
        if let Ok(value) = env::var(name) {
            command.arg(format!("{name}={value}"));
        }
    }
    command.arg(program);
    Ok(command)
}

fn needs_no_password(sudo: &Path) -> bool {
    output(Command::new(sudo).args(["--non-interactive", "true"])).is_some()
}

/// After a child that ran as root: makes the files in `folder` those of the user who runs this.
///
/// # Errors
/// When they cannot be changed.
pub(crate) fn take_back(workspace: &Workspace, folder: &Path) -> Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    if user == 0 || not_of(user, folder).is_empty() {
        return Ok(());
    }
    let mut chown = command(workspace, "chown")?;
    chown.args(["--recursive", "--no-dereference", &format!("{user}:{group}")]).arg(folder);
    step("giving files of root to you", &mut chown).map(|_| ())
}

/// Where somebody runs all of this with sudo: makes what it has written in the checkout and in cargo's folder
/// theirs, or the next build without sudo fails.
///
/// # Errors
/// When a file cannot be changed.
pub(crate) fn give_back(workspace: &Workspace) -> Result<()> {
    let number = |name| env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    let (Some(user @ 1..), Some(group)) = (number("SUDO_UID"), number("SUDO_GID")) else {
        return Ok(());
    };
    if !geteuid().is_root() {
        return Ok(());
    }
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
        let home = env::var_os("HOME")?;
        Some(PathBuf::from(home).join(".cargo"))
    });
    let is_theirs = |folder: &Path| fs::metadata(folder).is_ok_and(|about| about.uid() == user);
    let mut paths = Vec::new();
    // Where the checkout is root's own, so is what is built in it.
    if is_theirs(workspace.root()) {
        let target = workspace.target("");
        // A bare machine's folders belong to its own root.
        let bare = workspace.target("bare");
        let folders = fs::read_dir(&target).into_iter().flatten().flatten().map(|one| one.path());
        paths.extend(folders.filter(|path| *path != bare).flat_map(|path| of_user(0, &path)));
        paths.extend(target.is_dir().then_some(target));
    }
    if let Some(cargo) = cargo.filter(|cargo| is_theirs(cargo)) {
        paths.extend(of_user(0, &cargo));
    }
    paths.iter().try_for_each(|path| {
        lchown(path, Some(user), Some(group))
            .with_context(|| format!("cannot give {} to its user", path.display()))
    })
}

/// What lies in `folder`, itself included, and belongs to `user`.
fn of_user(user: u32, folder: &Path) -> Vec<PathBuf> {
    select(folder, &|owner| owner == user)
}

/// What lies in `folder`, itself included, and belongs to another than `user`.
fn not_of(user: u32, folder: &Path) -> Vec<PathBuf> {
    select(folder, &|owner| owner != user)
}

fn select(folder: &Path, wanted: &dyn Fn(u32) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut ahead = vec![folder.to_path_buf()];
    while let Some(path) = ahead.pop() {
        // What went meanwhile belongs to nobody.
        let Ok(about) = fs::symlink_metadata(&path) else { continue };
        if about.is_dir() {
            ahead.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|one| one.path()));
        }
        if wanted(about.uid()) {
            found.push(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_user_namespace_is_not_the_machines() {
        assert!(!is_of_user_namespace("         0          0 4294967295\n"));
        assert!(is_of_user_namespace("         0       1000          1\n"));
        assert!(is_of_user_namespace("0 0 65536\n"));
    }

    #[test]
    fn a_container_that_restricts_root_is_named_with_what_it_lacks() {
        let status = |set: &str| format!("Name:\txtask\nCapPrm:\t0\nCapEff:\t{set}\n");
        let all = status("000001ffffffffff");
        assert_eq!(missing(&all, 40), [""; 0]);
        // Docker's default.
        let docker = status("00000000a80425fb");
        let lacks = ["net_admin", "sys_ptrace", "sys_admin", "perfmon", "bpf"];
        assert_eq!(missing(&docker, 40), lacks);
        assert_eq!(missing(&docker, 37), lacks[..3], "a kernel that has no CAP_BPF yet");
    }

    #[test]
    fn files_of_others_are_found_wherever_they_lie() {
        let folder = tempfile::tempdir().expect("a folder");
        let below = folder.path().join("a/b");
        fs::create_dir_all(&below).expect("made");
        fs::write(below.join("file"), "").expect("written");
        std::os::unix::fs::symlink("nowhere", below.join("link")).expect("linked");
        let own = geteuid().as_raw();
        assert!(not_of(own, folder.path()).is_empty());
        assert_eq!(of_user(own, folder.path()).len(), 5);
    }
}
