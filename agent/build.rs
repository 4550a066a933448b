//! Embeds the kernel programs, which `cargo xtask build` makes with another compiler.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    // Asked for when it runs: checkouts that share a target folder share this program.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let workspace = Path::new(&manifest).join("..");
    println!("cargo::rerun-if-env-changed=CORONER_BPF_OBJECT");
    println!("cargo::rerun-if-env-changed=PROFILE");
    println!("cargo::rustc-check-cfg=cfg(coroner_bpf, coroner_bpf_debug)");

    println!("cargo::rerun-if-env-changed=CORONER_COMMIT");
    let target = env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=CORONER_TARGET={target}");
    println!("cargo::rustc-env=CORONER_COMMIT={}", commit(&workspace));

    let object = env::var_os("CORONER_BPF_OBJECT")
        .map_or_else(|| workspace.join("target/bpf/coroner-bpf.o"), PathBuf::from);
    embed(&object, "coroner-bpf.o", "coroner_bpf");
    if env::var("PROFILE").as_deref() == Ok("debug") {
        let debug = workspace.join("target/bpf/coroner-bpf-debug.o");
        embed(&debug, "coroner-bpf-debug.o", "coroner_bpf_debug");
    }
}

/// The commit of a release. A development build does not ask: it would be built again after each commit.
fn commit(workspace: &Path) -> String {
    if let Ok(commit) = env::var("CORONER_COMMIT") {
        return commit;
    }
    if env::var("PROFILE").as_deref() != Ok("release") {
        return "unknown".to_owned();
    }
    let git = Command::new("git").current_dir(workspace).args(["rev-parse", "HEAD"]).output();
    let commit = git.ok().filter(|git| git.status.success());
    commit.map_or_else(
        || "unknown".to_owned(),
        |git| String::from_utf8_lossy(&git.stdout).trim().to_owned(),
    )
}

/// Copies an object to where the sources include it from and says so with a cfg; without the
/// object nothing is embedded, and the agent says at start what to do.
fn embed(object: &Path, name: &str, cfg: &str) {
    // A path that does not exist yet is watched as well: its appearance rebuilds.
    println!("cargo::rerun-if-changed={}", object.display());
    let Some(out) = env::var_os("OUT_DIR") else { return };
    match fs::copy(object, Path::new(&out).join(name)) {
        Ok(_) => println!("cargo::rustc-cfg={cfg}"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => println!("cargo::error=cannot embed {}: {error}", object.display()),
    }
}
