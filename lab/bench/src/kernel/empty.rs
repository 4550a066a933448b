//! Programs that do nothing, on the same hooks: what the kernel says they cost is what it costs to
//! run any program there, and to time it. Two instructions; they are loaded by hand, for no compiler
//! makes less.

use anyhow::Context as _;
use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// `include/uapi/linux/bpf.h`: commands and a type of programs.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;

/// `r0 = 0` and `exit`, as the kernel's `struct bpf_insn`.
static NOTHING: [u64; 2] = [0xb7, 0x95];
static LICENSE: [u8; 4] = *b"MIT\0";

/// The beginning of `union bpf_attr` for `BPF_PROG_LOAD`; what follows is 0.
#[repr(C)]
struct ProgLoadAttr {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
}

/// `union bpf_attr` for `BPF_RAW_TRACEPOINT_OPEN`.
#[repr(C)]
struct EmptyLinks {
    name: u64,
    program: u32,
    reserved: u32,
}

/// Attached programs that do nothing. Dropped, they are gone.
#[derive(Debug)]
pub(super) struct Empty {
    _links: Vec<OwnedFd>,
}

impl Empty {
    /// One on each of these raw tracepoints, behind what is attached there already.
    pub(super) fn attach(hooks: &[&str]) -> anyhow::Result<Self> {
        let links = hooks.iter().map(|hook| {
            attach(hook).with_context(|| format!("cannot attach an empty program to {hook}"))
        });
        Ok(Self { _links: links.collect::<anyhow::Result<_>>()? })
    }
}

fn attach(hook: &str) -> anyhow::Result<OwnedFd> {
    let program = bpf(
        BPF_PROG_LOAD,
        &ProgLoadAttr {
            kind: BPF_PROG_TYPE_RAW_TRACEPOINT,
            instructions: NOTHING.len() as u32,
            code: NOTHING.as_ptr() as u64,
            license: LICENSE.as_ptr() as u64,
        },
    )?;
    let name = CString::new(hook)?;
    let open =
        EmptyLinks { name: name.as_ptr() as u64, program: program.as_raw_fd() as u32, reserved: 0 };
    // The link keeps the program.
    Ok(bpf(BPF_RAW_TRACEPOINT_OPEN, &open)?)
}

fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the attributes are the beginning of the union for this command, as long as is said,
    // and what they point to outlives the call.
    let descriptor =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>() as u32) };
    match i32::try_from(descriptor) {
        // SAFETY: a new descriptor, which nobody else knows.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}
