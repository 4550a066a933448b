//! How often the kernel skipped a program: while one runs on a CPU, the kernel does not run it there a
//! second time. See [`coroner_ebpf::backup`].

use super::plan::{HOOKS, Hook};
use aya::maps::{MapData, PerCpuArray};
use aya_obj::generated::{bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, bpf_prog_info};
use coroner_core::input::{Loss, LossKind};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// The programs of all hooks, and what their second programs have seen instead.
pub(super) struct Skipped {
    programs: Vec<(Hook, OwnedFd)>,
    runs: PerCpuArray<MapData, u64>,
    /// What was lost so far of each of them.
    lost: Vec<u64>,
}

impl Skipped {
    pub(super) fn new(runs: PerCpuArray<MapData, u64>) -> Self {
        Self { programs: Vec::new(), runs, lost: Vec::new() }
    }

    /// Watches the first program of a hook.
    pub(super) fn add(&mut self, hook: Hook, program: BorrowedFd<'_>) -> io::Result<()> {
        self.programs.push((hook, program.try_clone_to_owned()?));
        self.lost.push(0);
        Ok(())
    }

    /// Events that neither program has seen, since the last call.
    pub(super) fn losses(&mut self) -> impl Iterator<Item = Loss> {
        let Self { programs, runs, lost } = self;
        programs.iter().zip(lost).filter_map(|((hook, program), lost)| {
            // The skipped program first: what it has not seen is seen by the second one after that.
            let skipped = skipped(program.as_fd()).ok()?;
            let saved: u64 = match hook.backup {
                Some(backup) => runs.get(&(backup as u32), 0).ok()?.iter().sum(),
                None => 0,
            };
            let now = skipped.saturating_sub(saved);
            let more = now.saturating_sub(*lost);
            *lost = now.max(*lost);
            let kind = match HOOKS.contains(hook) {
                true => LossKind::ProgramSkipped,
                false => LossKind::ConnectionSkipped,
            };
            (more > 0).then(|| Loss::new(kind, more))
        })
    }
}

/// `bpf_prog_info.recursion_misses`; 0 before Linux 5.12, where no program is skipped.
fn skipped(program: BorrowedFd<'_>) -> io::Result<u64> {
    /// The part of `union bpf_attr` that this command reads.
    #[repr(C)]
    struct Attributes {
        program: u32,
        length: u32,
        info: u64,
    }
    // SAFETY: integers and arrays of them, of which all may be 0.
    let mut info: bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut attributes = Attributes {
        program: program.as_raw_fd() as u32,
        length: size_of::<bpf_prog_info>() as u32,
        info: (&raw mut info).addr() as u64,
    };
    // SAFETY: both are as long as they say, and outlive the call.
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
