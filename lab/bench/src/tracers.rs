//! The tools that coroner is measured beside: where they are, and what they need to start.

use anyhow::Context as _;
use std::{
    env, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

/// These tools look for tracepoints below /sys/kernel/tracing, which is not mounted everywhere: each
/// gets it in a mount namespace of its own.
pub(crate) fn see_tracepoints(command: &mut Command) {
    // SAFETY: system calls only, on constants.
    unsafe {
        command.pre_exec(|| {
            let check = |result| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
            let none = std::ptr::null();
            check(libc::unshare(libc::CLONE_NEWNS))?;
            let flags = libc::MS_REC | libc::MS_PRIVATE;
            check(libc::mount(none, c"/".as_ptr(), none, flags, none.cast()))?;
            let (kind, at) = (c"tracefs".as_ptr(), c"/sys/kernel/tracing".as_ptr());
            check(libc::mount(kind, at, kind, 0, none.cast()))
        });
    }
}

/// Where set-up has put it, or the machine's own.
pub(crate) fn find(name: &str) -> anyhow::Result<PathBuf> {
    let brought = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin").join(name);
    let path = env::var_os("PATH").unwrap_or_default();
    let own = env::split_paths(&path).chain(["/usr/sbin".into()]).map(|folder| folder.join(name));
    let found = std::iter::once(brought).chain(own).find(|file| file.is_file());
    found.with_context(|| {
        format!("{name} is not there: `cargo xtask bench` brings it, or install it")
    })
}
