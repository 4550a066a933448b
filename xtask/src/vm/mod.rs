//! The kernel programs on foreign kernels: a test binary, alone in a guest with a kernel of Debian's.

mod initramfs;
mod kernel;
mod newc;
mod qemu;

use std::{env, fs};

use anyhow::{Result, bail};

pub(crate) use self::kernel::{Kernel, choose};
use crate::{
    test::{Run, TestBinary},
    workspace::Workspace,
};

/// Runs `test` on `kernel`.
///
/// # Errors
/// When the guest cannot be made, or does not report how the test ended.
pub(crate) fn run(workspace: &Workspace, kernel: &Kernel, test: &TestBinary) -> Result<Run> {
    if env::consts::ARCH != "x86_64" {
        bail!("foreign kernels are set up for x86_64 only, this is {}", env::consts::ARCH);
    }
    let image = kernel.image(workspace)?;
    let folder = kernel.folder(workspace);
    fs::create_dir_all(&folder)?;
    let archive = folder.join("initramfs.cpio");
    initramfs::pack(workspace, &test.executable, &folder, &archive)?;
    let ended = qemu::boot(
        workspace,
        &qemu::Guest {
            title: &format!("{} on Linux {}", test.name, kernel.version),
            kernel: &image,
            initramfs: &archive,
            log: folder.join("serial.log"),
        },
    )?;
    Ok(Run::of(ended.status == 0, ended.text))
}
