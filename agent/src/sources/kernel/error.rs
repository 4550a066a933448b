//! Why the kernel side could not start.

use super::layout::LayoutError;
use aya::{EbpfError, maps::MapError, programs::ProgramError};
use std::io;

/// Why the kernel side could not start. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("this binary was built without the kernel programs; build it with `cargo xtask build`")]
    NoObject,
    #[error("invalid ring buffer size {0}; use a power of two of at least a page")]
    RingSize(u32),
    #[error("{0}. coroner requires kernel BTF; use a kernel with CONFIG_DEBUG_INFO_BTF=y")]
    NoBtf(String),
    #[error(
        "cannot parse /sys/kernel/btf/vmlinux: {0}; please report it with the output of `uname -r`"
    )]
    Btf(String),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error("{0}")]
    Hierarchy(String),
    #[error(
        "not permitted to load BPF programs ({0}); run as root or with CAP_BPF and CAP_PERFMON \
         (before Linux 5.11 also CAP_SYS_RESOURCE), in the initial user namespace, with a seccomp \
         profile that allows bpf(2) (see deploy/seccomp)"
    )]
    NotPermitted(String),
    #[error("hooks refused: {0}")]
    Refused(String),
    #[error("cannot load the kernel programs: {0}")]
    Load(#[source] Box<EbpfError>),
    #[error("the kernel programs have no map {0}; rebuild with `cargo xtask build`")]
    MapMissing(&'static str),
    #[error("cannot use a map of the kernel programs: {0}")]
    Map(#[from] MapError),
    #[error("cannot read the diagnostics of the kernel programs: {0}")]
    Diagnostics(#[source] io::Error),
}

impl StartError {
    /// Tells want of privilege from all else.
    pub(super) fn from_load(error: Box<EbpfError>) -> Self {
        let denied = match &*error {
            EbpfError::MapError(MapError::CreateError { io_error, .. }) => is_eperm(io_error),
            EbpfError::MapError(MapError::SyscallError(error)) => is_eperm(&error.io_error),
            EbpfError::ProgramError(error) => is_denied(error),
            _ => false,
        };
        if denied { Self::NotPermitted(error.to_string()) } else { Self::Load(error) }
    }
}

/// EPERM; not EACCES, which is the verifier's verdict on one program.
pub(super) fn is_denied(error: &ProgramError) -> bool {
    match error {
        ProgramError::LoadError { io_error, .. } => is_eperm(io_error),
        ProgramError::SyscallError(error) => is_eperm(&error.io_error),
        _ => false,
    }
}

fn is_eperm(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}
