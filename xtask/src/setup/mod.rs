//! Brings what is missing, into the project's own folders.

mod apt;
mod needs;
mod python;
mod releases;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

pub(crate) use self::{
    apt::Apt,
    needs::{BUILD, DEPLOY, FUZZ, INSTRUCTIONS, LAB, LINT, Need, Plan, STORM, VERSIONS, VM},
    python::python,
    releases::{KUBECTL, PROMETHEUS, PROMTOOL},
};
use crate::{
    host::Arch,
    progress::{note, step},
    toolchain::{BPF_LINKER, CARGO_FUZZ, cargo},
    workspace::Workspace,
};

/// Brings what is missing of `needs`; says nothing when nothing is. `list_only`: says what it would bring.
///
/// # Errors
/// When something is missing that it may not or cannot bring: the error says how a person gets it.
pub(crate) fn ensure(workspace: &Workspace, needs: &[Need], list_only: bool) -> Result<()> {
    let missing: Vec<Need> =
        needs.iter().copied().filter(|need| !need.present(workspace)).collect();
    let plan = Plan::of(&missing, apt::available());
    if plan.is_empty() {
        return Ok(());
    }
    announce(&plan, list_only);
    if list_only {
        bail!("not installed: --no-install only lists");
    }
    if !plan.by_hand.is_empty() {
        bail!("please install what is listed above, then try again");
    }
    if !plan.apt.is_empty() {
        install_packages(workspace, &plan.apt)?;
    }
    for release in &plan.suites {
        release.fetch(workspace)?;
    }
    for (need, program, version) in
        [(Need::BpfLinker, "bpf-linker", BPF_LINKER), (Need::CargoFuzz, "cargo-fuzz", CARGO_FUZZ)]
    {
        if plan.cargo.contains(&need) {
            install_with_cargo(workspace, program, version)?;
        }
    }
    if !plan.python.is_empty() {
        python::install(workspace)?;
    }
    for need in missing {
        if !need.present(workspace) {
            bail!(
                "{} was installed but does not work here; by hand: {}",
                need.title(),
                need.advice()
            );
        }
    }
    Ok(())
}

/// What building, running and testing need.
pub(crate) fn all() -> Vec<Need> {
    [BUILD, LAB, VERSIONS, DEPLOY, FUZZ, VM, LINT].concat()
}

fn announce(plan: &Plan, list_only: bool) {
    let folder = "target/tools, nothing else on this machine is touched";
    let verb = if list_only { "would install" } else { "installing" };
    if !plan.apt.is_empty() {
        note(&format!("{verb} from the distribution's packages (into {folder}):"));
        for need in &plan.apt {
            let packages = need.packages().first().map(|group| group.join(", "));
            note(&format!("  {}: {}", need.title(), packages.unwrap_or_default()));
        }
    }
    for release in &plan.suites {
        note(&format!("{verb} from Debian's {} (into {folder}):\n  {release}", release.suite));
    }
    for need in &plan.cargo {
        note(&format!("{verb} with cargo (into {folder}):\n  {}", need.title()));
    }
    for need in &plan.python {
        note(&format!("{verb} from PyPI (into {folder}):\n  {}", need.title()));
    }
    if !plan.by_hand.is_empty() {
        note("missing, and not mine to install:");
        for need in &plan.by_hand {
            note(&format!("  {}: {}", need.title(), need.advice()));
        }
    }
}

fn install_packages(workspace: &Workspace, needs: &[Need]) -> Result<()> {
    let root = workspace.tools().join("root");
    let mut apt = Apt::of_machine(workspace.tools().join("apt"));
    let packages = match choose(&apt, needs) {
        Some(packages) => packages,
        None => {
            apt.update()?;
            match choose(&apt, needs) {
                Some(packages) => packages,
                None => bail!("{}", unavailable(&apt, needs)),
            }
        }
    };
    apt.unpack("fetching packages", &packages, &root)?;
    for need in needs {
        for (program, name) in need.programs() {
            let program = root.join(program);
            if program.is_file() {
                wrap(workspace, &program, name)?;
            }
        }
    }
    Ok(())
}

/// Debian's public keys: the machine's, or those of the package that Ubuntu has.
///
/// # Errors
/// When there is no apt, or it does not have them.
pub(crate) fn debian_keyring(workspace: &Workspace) -> Result<PathBuf> {
    const KEYRING: &str = "usr/share/keyrings/debian-archive-keyring.gpg";
    if !apt::available() {
        bail!("foreign kernels and versions are Debian's packages: this takes apt-get and dpkg");
    }
    let root = workspace.tools().join("root");
    for keyring in [Path::new("/").join(KEYRING), root.join(KEYRING)] {
        if keyring.is_file() {
            return Ok(keyring);
        }
    }
    Apt::of_machine(workspace.tools().join("apt")).unpack(
        "fetching Debian's public keys",
        &["debian-archive-keyring"],
        &root,
    )?;
    Ok(root.join(KEYRING))
}

/// Of every need the first group of packages that this release has.
fn choose(apt: &Apt, needs: &[Need]) -> Option<Vec<&'static str>> {
    let groups: Option<Vec<_>> = needs
        .iter()
        .map(|need| need.packages().iter().copied().find(|group| apt.has(group)))
        .collect();
    groups.map(|groups| groups.concat())
}

fn unavailable(apt: &Apt, needs: &[Need]) -> String {
    let lines: Vec<String> = needs
        .iter()
        .filter(|need| !need.packages().iter().any(|group| apt.has(group)))
        .map(|need| format!("  {}: {}", need.title(), need.advice()))
        .collect();
    format!("this release has no packages for these, please install them:\n{}", lines.join("\n"))
}

/// A script that runs an unpacked program with the libraries unpacked beside it.
fn wrap(workspace: &Workspace, program: &Path, name: &str) -> Result<()> {
    let bin = workspace.tools().join("bin");
    fs::create_dir_all(&bin)?;
    let script = bin.join(name);
    fs::write(&script, wrapper(&libraries(workspace)?, program, name))
        .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", script.display()))
}

/// The folders of the libraries unpacked from packages.
fn libraries(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let root = workspace.tools().join("root");
    let multiarch = Arch::host()?.multiarch;
    Ok(["usr/lib", "lib"]
        .iter()
        .map(|folder| root.join(folder).join(multiarch))
        .chain([root.join("usr/lib").join(multiarch).join("pulseaudio")])
        .collect())
}

fn wrapper(libraries: &[PathBuf], program: &Path, name: &str) -> String {
    let folders: Vec<String> =
        libraries.iter().map(|folder| folder.display().to_string()).collect();
    // QEMU looks for its firmware where its package would have put it.
    let firmware = if name.starts_with("qemu-system") {
        let share = |folder: &str| {
            let usr = program.parent().and_then(Path::parent).unwrap_or(program);
            format!(" -L '{}'", usr.join("share").join(folder).display())
        };
        share("qemu") + &share("seabios") + &share("ipxe/qemu")
    } else {
        String::new()
    };
    format!(
        "#!/bin/sh\nLD_LIBRARY_PATH='{}'${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}} exec '{}'{firmware} \"$@\"\n",
        folders.join(":"),
        program.display()
    )
}

fn install_with_cargo(workspace: &Workspace, program: &str, version: &str) -> Result<()> {
    step(
        &format!("installing {program}"),
        cargo("install")
            .args([program, "--version", version, "--locked", "--force", "--root"])
            .arg(workspace.tools())
            .env("PATH", workspace.path()) // or cargo asks for the folder to be on it
            // Flags meant for this workspace are not meant for it.
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS"),
    )
    .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_program_gets_its_libraries_and_its_arguments() {
        let libraries = [PathBuf::from("/t/lib")];
        let text = wrapper(&libraries, Path::new("/t/usr/bin/protoc"), "protoc");
        assert_eq!(
            text,
            "#!/bin/sh\nLD_LIBRARY_PATH='/t/lib'${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
             exec '/t/usr/bin/protoc' \"$@\"\n"
        );
    }

    #[test]
    fn qemu_is_told_where_its_firmware_is() {
        let text = wrapper(&[], Path::new("/t/usr/bin/qemu-system-x86_64"), "qemu-system-x86_64");
        assert!(text.contains("-L '/t/usr/share/seabios'"), "{text}");
    }
}
