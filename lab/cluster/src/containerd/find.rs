//! Which containerd: of the versions that `cargo xtask setup` brought, or any that somebody has. What is
//! installed on the machine counts only if [`SYSTEM_TOOLS`] says so.

use anyhow::{Context, Result, bail, ensure};
use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// In the environment: the folder of the project's own tools.
const TOOLS: &str = "CORONER_LAB_TOOLS";
/// In the environment: programs on PATH count as well. `cargo xtask --system-tools` sets it.
const SYSTEM_TOOLS: &str = "CORONER_LAB_SYSTEM_TOOLS";

/// The folder of the project's own tools: what the environment names, or `tools` in the target directory of
/// this build.
pub fn tools() -> PathBuf {
    let named = env::var_os(TOOLS).filter(|path| !path.is_empty()).map(PathBuf::from);
    named.unwrap_or_else(|| {
        let program = env::current_exe().unwrap_or_default();
        target_directory(&program).unwrap_or(Path::new("target")).join("tools")
    })
}

/// The daemon that is meant by `wanted`: a path, or the beginning of a version (`1.7`, `2`). For a
/// version that is the one of the folders `containerd-*/usr/bin` below `tools` whose daemon says that it
/// is.
pub fn find(wanted: &str, tools: &Path) -> Result<PathBuf> {
    if wanted.contains('/') {
        let path = PathBuf::from(wanted);
        ensure!(path.is_file(), "{wanted} is not there, or is no file");
        return fs::canonicalize(&path).with_context(|| wanted.to_owned());
    }
    ensure!(
        is_version(wanted),
        "{wanted:?} is neither a version of containerd such as 1.7, nor a path with a slash in it"
    );
    let tools = fs::canonicalize(tools).unwrap_or_else(|_| tools.into());
    let here = here(&tools);
    if let Some((_, daemon)) = here.iter().find(|(version, _)| is_of(version, wanted)) {
        return Ok(daemon.clone());
    }
    let known: Vec<&str> = here.iter().map(|(version, _)| version.as_str()).collect();
    bail!(
        "there is no containerd {wanted} here, only: {}. `cargo xtask setup` brings what the tests \
         need into {}; any other can be named by its path",
        if known.is_empty() { "none".into() } else { known.join(", ") },
        tools.display()
    )
}

/// All that can be run: those of the project, then the machine's own if it counts.
fn here(tools: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(tools).into_iter().flatten().flatten();
    let mut private: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"containerd-"))
        .map(|entry| entry.path().join("usr/bin/containerd"))
        .collect();
    private.sort();
    private
        .into_iter()
        .chain(on_machine("containerd"))
        .filter_map(|daemon| Some((version(&daemon).ok()?, daemon)))
        .collect()
}

/// The version that a daemon says it is, such as `1.7.24`.
pub fn version(daemon: &Path) -> Result<String> {
    let output = Command::new(daemon)
        .arg("--version")
        .output()
        .with_context(|| format!("cannot run {}", daemon.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    match version_in(&said) {
        Some(version) if output.status.success() => Ok(version.to_owned()),
        _ => bail!("{} --version says no version: {:?}", daemon.display(), said.trim()),
    }
}

/// Whether a pod gets users of its own from that version: 1.6 takes no notice of being asked, and 2 wants a runc that
/// maps the IDs of mounts, which is 1.2.
pub fn has_user_namespaces(version: &str) -> bool {
    is_of(version, "1.7")
}

/// From `containerd github.com/containerd/containerd/v2 2.1.9+unknown`: numbers and dots.
fn version_in(said: &str) -> Option<&str> {
    let word = said.split_whitespace().nth(2)?.trim_start_matches('v');
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    Some(word[..end].trim_end_matches('.')).filter(|version| is_version(version))
}

fn is_version(text: &str) -> bool {
    text.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// 1.7.24 is of 1.7, 1.70.1 is not.
fn is_of(version: &str, wanted: &str) -> bool {
    version.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// A program of the project's own tools; one of the machine's if it counts and there is no other.
pub fn program(name: &str) -> PathBuf {
    let own = tools().join("bin").join(name);
    if own.is_file() { own } else { on_machine(name).unwrap_or(own) }
}

/// A program on PATH, if those count.
fn on_machine(name: &str) -> Option<PathBuf> {
    env::var_os(SYSTEM_TOOLS)?;
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// PATH with the daemon's own directory first: there it looks for its shim before it looks beside
/// itself, and the machine's is of another version.
pub(super) fn path_with(daemon: &Path) -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = daemon.parent().map(Path::to_path_buf);
    // Only a directory with a colon in its name cannot be joined; then PATH stays as it is.
    env::join_paths(own.into_iter().chain(env::split_paths(&path))).unwrap_or(path)
}

/// Cargo marks a target directory with it.
const TARGET_MARK: &str = "CACHEDIR.TAG";

/// The target directory in which cargo has put this file. That of one architecture, which is in it, is
/// marked too.
pub fn target_directory(file: &Path) -> Option<&Path> {
    let marked = |directory: &&Path| directory.join(TARGET_MARK).is_file();
    file.ancestors().skip(1).filter(marked).last()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn versions_are_read_as_debian_s_builds_say_them() {
        let of =
            |rest: &str| version_in(&format!("containerd github.com/x {rest}")).map(str::to_owned);
        assert_eq!(of("1.6.20~ds1 1.6.20~ds1-1+deb12u3").as_deref(), Some("1.6.20"));
        assert_eq!(of("2.1.9+unknown").as_deref(), Some("2.1.9"));
        assert_eq!(of("v1.7.24 abc").as_deref(), Some("1.7.24"));
        assert_eq!(of("unknown"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn a_version_is_a_beginning_at_a_dot() {
        assert!(is_of("1.7.24", "1.7") && is_of("1.7.24", "1.7.24") && is_of("1.7", "1"));
        assert!(!is_of("1.70.1", "1.7") && !is_of("2.1.9", "1"));
    }

    #[test]
    fn what_is_not_there_is_answered_with_what_is() {
        let tools = tempfile::tempdir().unwrap();
        let bin = tools.path().join("containerd-old/usr/bin");
        fs::create_dir_all(&bin).unwrap();
        let daemon = bin.join("containerd");
        fs::write(&daemon, "#!/bin/sh\necho containerd example.org/containerd 0.9.3\n").unwrap();
        fs::set_permissions(&daemon, fs::Permissions::from_mode(0o755)).unwrap();
        for wanted in ["0.9", "0.9.3", "0"] {
            assert_eq!(find(wanted, tools.path()).unwrap(), fs::canonicalize(&daemon).unwrap());
        }
        let said = find("0.8", tools.path()).unwrap_err().to_string();
        assert!(said.contains("containerd 0.8") && said.contains("0.9.3"), "{said}");
        assert!(said.contains("cargo xtask setup"), "{said}");
        for wrong in ["", "latest", "1.", "1.7-rc"] {
            let said = find(wrong, tools.path()).unwrap_err().to_string();
            assert!(said.contains("neither a version"), "{said}");
        }
        assert!(find("./nothing/here", tools.path()).is_err());
    }

    #[test]
    fn a_program_that_cargo_built_knows_its_target_directory() {
        let target = tempfile::tempdir().unwrap();
        let program = target.path().join("debug/coroner-lab");
        assert_eq!(target_directory(&program), None);
        fs::write(target.path().join(TARGET_MARK), "").unwrap();
        assert_eq!(target_directory(&program), Some(target.path()));
        let of_one = target.path().join("x86_64-unknown-linux-gnu");
        fs::create_dir(&of_one).unwrap();
        fs::write(of_one.join(TARGET_MARK), "").unwrap();
        assert_eq!(target_directory(&of_one.join("debug/coroner-lab")), Some(target.path()));
    }
}
