//! The binary, for the tests that meet it as a person does.

pub(crate) mod serving;

use std::process::{Command, Output, Stdio};

/// The binary with nothing of the surrounding environment that it would listen to.
pub(crate) fn coroner(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coroner"));
    command.args(args.split_whitespace()).env_clear().stdin(Stdio::null());
    command
}

/// Its exit status, and what it wrote to stdout and stderr.
pub(crate) fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().expect("not killed"), text(stdout), text(stderr))
}
