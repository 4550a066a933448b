//! How often the kernel skipped a program: while one runs on a CPU, the kernel does not run it there a
//! second time. See [`coroner_ebpf::backup`].

use super::{object::raw_tracepoint, plan::Hook};
use aya::{
    Ebpf,
    maps::{MapData, PerCpuArray},
    programs::ProgramError,
};
use aya_obj::generated::{bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, bpf_prog_info};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
};

pub(super) struct Skipped {
    hooks: Vec<Programs>,
    runs: Arc<PerCpuArray<MapData, u64>>,
    /// By how much the events for which both were skipped have risen so far. Their number also falls, when the second
    /// program has reported an event that it was still on its way to.
    lost: u64,
    warned: bool,
}

struct Programs {
    hook: Hook,
    first: OwnedFd,
    second: Option<OwnedFd>,
    /// Events for which both were skipped, at the last look.
    seen: u64,
}

impl Skipped {
    /// `runs`: the counters of the second programs.
    pub(super) fn new(runs: Arc<PerCpuArray<MapData, u64>>) -> Self {
        Self { hooks: Vec::new(), runs, lost: 0, warned: false }
    }

    pub(super) fn add(&mut self, ebpf: &mut Ebpf, hook: Hook) -> Result<(), ProgramError> {
        let mut program = |name: &str| {
            let file = raw_tracepoint(ebpf, name)?.fd()?;
            file.as_fd().try_clone_to_owned().map_err(ProgramError::IOError)
        };
        let first = program(hook.name)?;
        let second = hook.second().as_deref().map(program).transpose()?;
        self.hooks.push(Programs { hook, first, second, seen: 0 });
        Ok(())
    }

    /// The programs of this hook are detached for good.
    pub(super) fn remove(&mut self, hook: &Hook) {
        self.hooks.retain(|one| one.hook != *hook);
    }

    pub(super) fn lost(&mut self) -> u64 {
        for programs in &mut self.hooks {
            match programs.count(&self.runs) {
                Ok(count) => {
                    self.lost += count.saturating_sub(programs.seen);
                    programs.seen = count;
                }
                Err(error) if !self.warned => {
                    self.warned = true;
                    let hook = programs.hook.name;
                    tracing::warn!(hook, %error, "cannot count the events that the kernel skips");
                }
                Err(_) => {}
            }
        }
        self.lost
    }
}

impl Programs {
    /// Events for which both were skipped.
    fn count(&self, runs: &PerCpuArray<MapData, u64>) -> io::Result<u64> {
        let skipped = skipped(&self.first)?;
        let Some((backup, second)) = self.hook.backup.zip(self.second.as_ref()) else {
            return Ok(skipped);
        };
        let runs: u64 = runs.get(&(backup as u32), 0).map_err(io::Error::other)?.iter().sum();
        Ok(skipped.saturating_sub(runs).min(self::skipped(second)?))
    }
}

/// `bpf_prog_info.recursion_misses`; 0 before Linux 6.1, which skips no program of a raw tracepoint.
fn skipped(program: &OwnedFd) -> io::Result<u64> {
    /// The part of `union bpf_attr` that this command reads.
    #[repr(C)]
    struct Attributes {
        program: u32,
        length: u32,
        info: *mut bpf_prog_info,
    }
    // SAFETY: integers and arrays of them, of which all may be 0.
    let mut info: bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut attributes = Attributes {
        program: program.as_raw_fd() as u32,
        length: size_of::<bpf_prog_info>() as u32,
        info: &raw mut info,
    };
    // SAFETY: both have the lengths that are given, and outlive the call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_OBJ_GET_INFO_BY_FD as libc::c_long,
            &raw mut attributes,
            size_of::<Attributes>(),
        )
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(info.recursion_misses) }
}
