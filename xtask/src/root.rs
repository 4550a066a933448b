//! Root, for what loads kernel programs and starts containers.

use std::{
    ffi::{OsStr, OsString},
    io::IsTerminal as _,
    path::Path,
    process::Command,
};

use anyhow::{Result, bail};

use crate::{host, toolchain::output, workspace::Workspace};

/// A command that runs `program` as root: directly, or through sudo where that can ask or need not.
///
/// # Errors
/// When this is neither root nor able to become it; the error says what to type.
pub(crate) fn command(workspace: &Workspace, program: impl AsRef<OsStr>) -> Result<Command> {
    let program = program.as_ref();
    if rustix::process::geteuid().is_root() {
        let mut command = Command::new(program);
        command.env("PATH", workspace.path());
        return Ok(command);
    }
    let Some(sudo) = host::find_program("sudo") else {
        bail!(
            "this loads kernel programs and starts containers, which takes root, and there is no sudo: \
             log in as root and run `cargo xtask` there"
        );
    };
    let may_ask = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if !may_ask && !needs_no_password(&sudo) {
        bail!(
            "this loads kernel programs and starts containers, which takes root: run it in a terminal, \
             where sudo can ask for a password, or as `sudo -E env \"PATH=$PATH\" cargo xtask …`"
        );
    }
    let mut command = Command::new(sudo);
    command.args(["--preserve-env", "env"]);
    // sudo resets these even when it preserves the rest.
    let mut path = OsString::from("PATH=");
    path.push(workspace.path());
    command.arg(path);
    for name in ["HOME", "CARGO_HOME", "RUSTUP_HOME"] {
        if let Ok(value) = std::env::var(name) {
            command.arg(format!("{name}={value}"));
        }
    }
    command.arg(program);
    Ok(command)
}

fn needs_no_password(sudo: &Path) -> bool {
    output(Command::new(sudo).args(["--non-interactive", "true"])).is_some()
}
