//! Builds everything, in the order in which it is embedded: kernel programs, workload, agent and lab.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    host::Arch,
    setup::{BPF_RUST, cargo_tool},
    steps::{show, step},
    toolchain::{BPF_TARGET, cargo, cargo_for, home},
    workspace::Workspace,
};

/// The profile of the binaries that run on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Quick to build.
    Dev,
    /// What is shipped.
    Release,
}

impl Profile {
    fn folder(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
        }
    }
}

/// What was built, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    /// `coroner`.
    pub(crate) agent: PathBuf,
    /// `coroner-lab`.
    pub(crate) lab: PathBuf,
    /// The static program of the lab's image.
    pub(crate) workload: PathBuf,
}

/// Builds all of it.
///
/// # Errors
/// When something does not compile; the compiler's own words are in the error.
pub(crate) fn all(workspace: &Workspace, profile: Profile) -> Result<Binaries> {
    kernel_programs(workspace)?;
    binaries_of_run(workspace, profile)
}

/// Builds the agent, the lab and its workload, with the kernel programs that are there.
///
/// # Errors
/// When something does not compile.
pub(crate) fn binaries_of_run(workspace: &Workspace, profile: Profile) -> Result<Binaries> {
    let mut command = cargo("build");
    command.args([
        "--locked",
        "--package=coroner",
        "--package=coroner-lab",
        "--package=coroner-workload",
        // Not built, but of the tests: what these share is built with equal features.
        "--package=coroner-fuzz-targets",
        "--bins",
    ]);
    if profile == Profile::Release {
        command.arg("--release");
    }
    show("building the agent and the lab", &mut command)?;
    binaries(workspace, profile)
}

/// Where these are put.
///
/// # Errors
/// On an architecture that coroner does not build for.
pub(crate) fn binaries(workspace: &Workspace, profile: Profile) -> Result<Binaries> {
    let folder = workspace.built(profile.folder())?;
    Ok(Binaries {
        agent: folder.join("coroner"),
        lab: folder.join("coroner-lab"),
        workload: folder.join("workload"),
    })
}

/// Compiles the kernel programs, with and without their own diagnostics, to `target/bpf/*.o`.
///
/// # Errors
/// The programs do not compile.
pub(crate) fn kernel_programs(workspace: &Workspace) -> Result<()> {
    for (title, features, object) in [
        ("building the kernel programs", None, "coroner-bpf.o"),
        ("building the kernel programs with diagnostics", Some("debug-log"), "coroner-bpf-debug.o"),
    ] {
        let mut command = bpf_cargo(workspace, "build");
        if let Some(features) = features {
            command.args(["--features", features]);
        }
        show(title, &mut command)?;
        let built = workspace.target(&format!("bpf/{BPF_TARGET}/bpf/coroner-bpf"));
        replace_if_changed(&built, &workspace.target("bpf").join(object))?;
    }
    Ok(())
}

/// A cargo command on the kernel programs' binary, for the BPF target, with Debian's compiler.
pub(crate) fn bpf_cargo(workspace: &Workspace, subcommand: &str) -> Command {
    let linker = cargo_tool(workspace, "bpf-linker");
    let mut flags = vec![
        format!("-Clinker={}", linker.display()),
        "-Clink-arg=--btf".to_owned(),
        "-Cdebuginfo=2".to_owned(), // BTF is made from it
        // aya-ebpf asks for the layout of pt_regs, which raw tracepoints do not get: one object is for all
        // architectures.
        "--cfg=bpf_target_arch=\"x86_64\"".to_owned(),
    ];
    flags.extend(mapped_paths(workspace));
    let mut command = cargo(subcommand);
    command
        .env("RUSTC", BPF_RUST.folder(workspace).join("bin/rustc"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env_remove("RUSTFLAGS")
        // Encoded, so that a path may hold spaces.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .args([
            "--locked",
            "--package=coroner-ebpf",
            "--bin=coroner-bpf",
            "--profile=bpf",
            "--target",
            BPF_TARGET,
            "--target-dir",
        ])
        // Its own: with another RUSTC, a shared folder would be rebuilt in turns.
        .arg(workspace.target("bpf"));
    command
}

/// Builds the agent as a release ships it: optimised, without symbols, and nothing in it says where this
/// checkout is, nor whose it is. The kernel programs must have been built, for it embeds them.
///
/// # Errors
/// When it does not compile, or names the checkout all the same.
pub(crate) fn agent_for_release(workspace: &Workspace, arch: &Arch) -> Result<PathBuf> {
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    flags.extend(mapped_paths(workspace));
    let folder = workspace.target("image/build");
    let mut command = cargo_for("build", arch);
    command
        // Encoded, so that a path may hold spaces. It wins over the workspace's own flags.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .args(["--locked", "--package=coroner", "--bin=coroner", "--profile=image"])
        .arg("--target-dir")
        .arg(&folder);
    show(&format!("building the agent for a release, {}", arch.debian), &mut command)?;
    let built = folder.join(arch.triple).join("image/coroner");
    let program = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    for path in [workspace.root().to_path_buf(), PathBuf::from("/.cargo/registry/")] {
        let path = path.display().to_string();
        if program.windows(path.len()).any(|window| window == path.as_bytes()) {
            bail!("{} names {path}: equal sources would give other images", built.display());
        }
    }
    Ok(built)
}

/// Flags that give the checkout and cargo's folder the same names everywhere: panics and debug
/// information name source files by them.
fn mapped_paths(workspace: &Workspace) -> impl Iterator<Item = String> {
    [(Some(workspace.root().to_owned()), "/coroner"), (home("CARGO_HOME", ".cargo"), "/cargo")]
        .into_iter()
        .filter_map(|(from, to)| Some(mapped(&from?, to)))
}

fn mapped(from: &Path, to: &str) -> String {
    format!("--remap-path-prefix={}={to}", from.display())
}

/// A copy without debug information, a tenth of the size; by the binutils that every C compiler brings.
///
/// # Errors
/// When there is no `strip`, or it fails.
pub(crate) fn stripped(
    workspace: &Workspace,
    arch: &Arch,
    program: &Path,
    copy: &Path,
) -> Result<PathBuf> {
    if let Some(folder) = copy.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let prefix = if arch.is_host() { String::new() } else { format!("{}-", arch.multiarch) };
    let mut strip = Command::new(format!("{prefix}strip"));
    strip.env("PATH", workspace.path()).arg("--strip-debug").arg("-o").arg(copy).arg(program);
    step(&format!("stripping {}", program.display()), &mut strip)?;
    Ok(copy.to_path_buf())
}

/// Copies `from` to `to` unless it is the same already: the agent embeds it and would be rebuilt.
fn replace_if_changed(from: &Path, to: &Path) -> Result<()> {
    let new = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    fs::write(to, new).with_context(|| format!("cannot write {}", to.display()))
}
