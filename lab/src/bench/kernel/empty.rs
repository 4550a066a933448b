//! Programs that do nothing: the kernel's figure for them is what it costs to run any program on a hook, and to time it.
//! They have two instructions and are loaded without a library, because no compiler makes fewer.

use crate::bench::programs;
use anyhow::Context as _;
use std::{
    collections::BTreeMap,
    ffi::CString,
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

/// `include/uapi/linux/bpf.h`: commands and a type of programs.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;

/// `r0 = 0` and `exit`, as the kernel's `struct bpf_insn`.
static NOTHING: [u64; 2] = [0xb7, 0x95];
/// The same after a call of `bpf_get_current_cgroup_id`.
static ASKING: [u64; 3] = [80 << 32 | 0x85, 0xb7, 0x95];
static LICENSE: [u8; 4] = *b"MIT\0";

/// The beginning of `union bpf_attr` for `BPF_PROG_LOAD`; the rest is 0.
#[repr(C)]
struct ProgLoadAttr {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
}

/// `union bpf_attr` for `BPF_RAW_TRACEPOINT_OPEN`.
#[repr(C)]
struct RawTracepointAttr {
    name: u64,
    program: u32,
    reserved: u32,
}

/// Attached programs that do nothing. Dropped, they are detached.
#[derive(Debug)]
pub(super) struct Empty {
    _links: Vec<OwnedFd>,
    ids: BTreeMap<String, u32>,
}

impl Empty {
    /// One on each of these raw tracepoints, behind the programs that are attached there already.
    pub(super) fn attach(hooks: &[&str]) -> anyhow::Result<Self> {
        Self::of(&NOTHING, hooks)
    }

    /// The same of programs that ask for the cgroup of the process and do nothing with it.
    pub(super) fn asking(hooks: &[&str]) -> anyhow::Result<Self> {
        Self::of(&ASKING, hooks)
    }

    fn of(code: &'static [u64], hooks: &[&str]) -> anyhow::Result<Self> {
        let own = std::process::id();
        let before = programs::of_process(own)?;
        let links = hooks.iter().map(|hook| {
            attach(hook, code).with_context(|| format!("cannot attach an empty program to {hook}"))
        });
        let links = links.collect::<anyhow::Result<_>>()?;
        let mut all = programs::of_process(own)?;
        all.retain(|id, _| !before.contains_key(id));
        let ids = all.into_iter().filter_map(|(id, hook)| Some((hook?, id))).collect();
        Ok(Self { _links: links, ids })
    }

    /// The ID of the one on this hook.
    pub(super) fn on(&self, hook: &str) -> anyhow::Result<u32> {
        self.ids.get(hook).copied().with_context(|| format!("no empty program on {hook}"))
    }
}

fn attach(hook: &str, code: &'static [u64]) -> anyhow::Result<OwnedFd> {
    let load = ProgLoadAttr {
        kind: BPF_PROG_TYPE_RAW_TRACEPOINT,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
    };
    let (program, name) = (bpf(BPF_PROG_LOAD, &load)?, CString::new(hook)?);
    let (name, program) = (name.as_ptr() as u64, program.as_raw_fd() as u32);
    Ok(bpf(BPF_RAW_TRACEPOINT_OPEN, &RawTracepointAttr { name, program, reserved: 0 })?)
}

fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the attributes are the beginning of the union for this command, as long as is said,
    // and what they point to outlives the call.
    let descriptor =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>() as u32) };
    match i32::try_from(descriptor) {
        // SAFETY: a new descriptor that only this function has.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}
