//! The programs of the node: those that `cargo xtask setup` installed.

use anyhow::{Context as _, Result, bail, ensure};
use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// In the environment: the folder of the project's own tools.
const TOOLS: &str = "CORONER_LAB_TOOLS";
/// Cargo marks a target directory with it.
const TARGET_MARK: &str = "CACHEDIR.TAG";

/// The folder of the project's own tools.
pub fn tools() -> PathBuf {
    let named = env::var_os(TOOLS).filter(|path| !path.is_empty()).map(PathBuf::from);
    let tools = named.unwrap_or_else(|| {
        let program = env::current_exe().unwrap_or_default();
        target_directory(&program).unwrap_or(Path::new("target")).join("tools")
    });
    fs::canonicalize(&tools).unwrap_or(tools)
}

/// containerd 2, or 1.7 where 2 does not start; and why, in the second case.
pub fn default_version() -> Result<(PathBuf, Option<String>)> {
    let newest = match find("2") {
        Ok(containerd) => return Ok((containerd, None)),
        Err(error) => error,
    };
    let containerd = find("1.7").map_err(|_| anyhow::anyhow!("{newest:#}"))?;
    Ok((containerd, Some(format!("containerd 1.7 instead of 2: {newest:#}"))))
}

/// The daemon at a path, or the one of the folders `containerd-*` whose version begins with `wanted` (`1.7`, `2`).
pub fn find(wanted: &str) -> Result<PathBuf> {
    if wanted.contains('/') {
        ensure!(Path::new(wanted).is_file(), "{wanted} is not there, or is no file");
        return fs::canonicalize(wanted).with_context(|| wanted.to_owned());
    }
    ensure!(
        is_version(wanted),
        "{wanted:?} is neither a version of containerd such as 1.7, nor a path with a slash in it"
    );
    let tools = tools();
    let entries = fs::read_dir(&tools).into_iter().flatten().flatten().map(|entry| entry.path());
    let own = entries.filter(|path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"containerd-"))
    });
    let own =
        own.flat_map(|folder| ["bin", "usr/bin"].map(|bin| folder.join(bin).join("containerd")));
    let here: Vec<_> = own.filter_map(|path| Some((version(&path).ok()?, path))).collect();
    let is_wanted = |version: &str| {
        version.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if let Some((_, containerd)) = here.iter().find(|(version, _)| is_wanted(version)) {
        return Ok(containerd.clone());
    }
    let known: Vec<&str> = here.iter().map(|(version, _)| version.as_str()).collect();
    bail!(
        "no containerd {wanted} starts here, only: {}. `cargo xtask setup` installs what the tests need in {}; name \
         any other by its path",
        if known.is_empty() { "none".into() } else { known.join(", ") },
        tools.display()
    )
}

/// The version that a daemon reports, such as `1.7.24`.
pub fn version(daemon: &Path) -> Result<String> {
    let output = Command::new(daemon).arg("--version").output();
    let output = output.with_context(|| format!("cannot run {}", daemon.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // `containerd github.com/containerd/containerd/v2 2.1.9+unknown`: numbers and dots.
    let word = text.split_whitespace().nth(2).unwrap_or_default().trim_start_matches('v');
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    let version = word[..end].trim_end_matches('.');
    ensure!(is_version(version), "{} --version reports no version: {text:?}", daemon.display());
    Ok(version.to_owned())
}

fn is_version(text: &str) -> bool {
    text.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

pub fn program(name: &str) -> PathBuf {
    tools().join("bin").join(name)
}

/// The directory of the CNI plugins.
pub fn plugins() -> PathBuf {
    tools().join("cni/usr/lib/cni")
}

/// PATH with the daemon's own directory first: there it looks for its shim, and the machine's is of another version.
pub(super) fn path_with(daemon: &Path) -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = daemon.parent().map(Path::to_path_buf);
    // Only a directory with a colon in its name cannot be joined; then PATH stays as it is.
    env::join_paths(own.into_iter().chain(env::split_paths(&path))).unwrap_or(path)
}

/// The target directory in which cargo has put this file. That of one architecture, which is in it, is marked too.
pub fn target_directory(file: &Path) -> Option<&Path> {
    let marked = |directory: &&Path| directory.join(TARGET_MARK).is_file();
    file.ancestors().skip(1).filter(marked).last()
}
