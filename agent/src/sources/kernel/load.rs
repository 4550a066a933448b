//! Loads and attaches the programs: the effect of [`plan`](super::plan).

use super::{
    KernelOptions,
    counting::Counting,
    debug::{Diagnostics, diagnostics},
    object::{BPF_NOEXIST, Value, raw_tracepoint},
    plan::{Hook, Planned},
    ring::Rings,
    skipped::Skipped,
};
use crate::linux::cgroupfs::Inserted;
use anyhow::{Context, anyhow};
use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{HashMap, Map, MapData, MapError},
    programs::{ProgramError, RawTracePointRunOptions, TestRun as _},
};
use coroner_core::{ids::CgroupId, input::Task};
use coroner_ebpf::{CONTAINER_PID_ONE, Container, Layout, backup, maps, signal_bit};
use parking_lot::Mutex;
use std::{fmt::Display, io, sync::Arc};

/// `bpf(2)`: the key must be there.
const BPF_EXIST: u64 = 2;

/// The object with the programs, if one was there when this binary was built.
#[cfg(coroner_bpf)]
pub(super) const OBJECT: Option<&[u8]> =
    Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/coroner-bpf.o")));
/// The object with the programs, if one was there when this binary was built.
#[cfg(not(coroner_bpf))]
pub(super) const OBJECT: Option<&[u8]> = None;

pub(super) const NO_OBJECT: &str =
    "this binary was built without the kernel programs; build it with `cargo xtask build`";

/// The same with diagnostics, which a debug build logs at the level debug.
#[cfg(coroner_bpf_debug)]
const DEBUG_OBJECT: Option<&[u8]> =
    Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/coroner-bpf-debug.o")));
#[cfg(not(coroner_bpf_debug))]
const DEBUG_OBJECT: Option<&[u8]> = None;

/// The programs, for as long as this lives, and what they are told.
pub(super) struct Watching {
    containers: HashMap<MapData, u64, Value<Container>>,
    /// Shared with what attaches some of them on demand.
    programs: Arc<Mutex<Ebpf>>,
    diagnostics: Option<Diagnostics>,
}

/// Loads the object and attaches what is planned; of `traffic` the programs are only loaded. Hooks that the
/// kernel refuses get their reason there; only what concerns all of them is an error.
pub(super) fn load(
    options: &KernelOptions,
    layout: &Layout,
    plan: &mut [Planned],
    traffic: &mut [Planned],
) -> anyhow::Result<(Watching, Rings, Counting)> {
    let with_diagnostics = DEBUG_OBJECT.filter(|_| tracing::enabled!(tracing::Level::DEBUG));
    let object = with_diagnostics.or(OBJECT).context(NO_OBJECT)?;
    let layout = Value(*layout);
    let mut ebpf = EbpfLoader::new()
        .override_global("LAYOUT", &layout, true)
        .map_max_entries(maps::DECIDING, options.ring_bytes)
        .map_max_entries(maps::DETAIL, options.ring_bytes)
        .map_max_entries(maps::NOTIFIED, options.notified)
        .load(object)
        .map_err(not_loaded)?;

    let runs = Arc::new(take(&mut ebpf, backup::RUNS)?);
    let mut skipped = Skipped::new(Arc::clone(&runs));
    let mut skipped_traffic = Skipped::new(runs);
    let attached = plan.iter_mut().map(|planned| (planned, true));
    let all = attached.chain(traffic.iter_mut().map(|planned| (planned, false)));
    for (planned, attaches) in all.filter(|(planned, _)| planned.verdict.is_ok()) {
        let skipped = if attaches { &mut skipped } else { &mut skipped_traffic };
        let loaded = load_programs(&mut ebpf, &planned.hook, attaches, options.only_second)
            .and_then(|()| skipped.add(&mut ebpf, planned.hook));
        if let Err(error) = loaded {
            unload(&mut ebpf, &planned.hook);
            if is_denied(&error) {
                return Err(not_permitted(&error));
            }
            planned.verdict = Err(format!(
                "the kernel rejected program {}: {}: {}",
                planned.hook.name,
                describe(&error),
                planned.hook.loss
            ));
        }
    }

    let diagnostics = with_diagnostics.map(|_| diagnostics(&mut ebpf)).transpose()?;
    let rings = Rings::new(
        take(&mut ebpf, maps::DECIDING)?,
        take(&mut ebpf, maps::DETAIL)?,
        take(&mut ebpf, maps::LOST)?,
        skipped,
    );
    let containers = take(&mut ebpf, maps::CONTAINERS)?;
    raw_tracepoint(&mut ebpf, maps::TELL)
        .and_then(|program| program.load())
        .map_err(|error| not_loaded(error.into()))?;
    let entries = take(&mut ebpf, maps::TRAFFIC)?;
    let node_addresses = take(&mut ebpf, maps::NODE_ADDRESSES)?;
    let programs = Arc::new(Mutex::new(ebpf));
    let loaded = traffic.iter().filter(|planned| planned.verdict.is_ok());
    let counting = Counting {
        entries,
        node_addresses,
        programs: Arc::clone(&programs),
        loaded: loaded.map(|planned| planned.hook).collect(),
        attached: Vec::new(),
        skipped: skipped_traffic,
        only_second: options.only_second,
    };
    Ok((Watching { containers, programs, diagnostics }, rings, counting))
}

impl Watching {
    /// Makes a cgroup watched, unless it is.
    pub(super) fn insert(&mut self, cgroup: CgroupId, entry: Container) -> Inserted {
        // A mark stays for ever: none for what needs none.
        if self.containers.get(&cgroup.0, 0).is_ok() {
            return Inserted::Known;
        }
        if self.tell(cgroup.0, 0).is_err() {
            // It could be inserted, and would not be found.
            return Inserted::Full;
        }
        match self.containers.insert(cgroup.0, Value(entry), BPF_NOEXIST) {
            Ok(()) => Inserted::New,
            Err(MapError::SyscallError(error))
                if error.io_error.kind() == io::ErrorKind::AlreadyExists =>
            {
                Inserted::Known
            }
            Err(_) => Inserted::Full,
        }
    }

    /// Lets the programs look a cgroup up, which must come before it can be found, and report chatter.
    fn tell(&self, cgroup: u64, chatter: u64) -> Result<(), ProgramError> {
        let mut programs = self.programs.lock();
        let mut options = RawTracePointRunOptions::default();
        (options.args[0], options.args[1]) = (cgroup, chatter);
        raw_tracepoint(&mut programs, maps::TELL)?.test_run(options).map(drop)
    }

    /// bpf(2) still lets this thread use a map that it has open.
    pub(super) fn answers(&self) -> bool {
        matches!(self.containers.get(&0, 0), Ok(_) | Err(MapError::KeyNotFound))
    }

    pub(super) fn remove(&mut self, cgroup: CgroupId) {
        // Not being there is as good.
        let _ = self.containers.remove(&cgroup.0);
    }

    /// Tells the programs a container's main process, unless they know it.
    pub(super) fn set_main(&mut self, cgroup: CgroupId, main: &Task) {
        let Ok(Value(mut entry)) = self.containers.get(&cgroup.0, 0) else { return };
        if entry.main == 0 {
            entry.main = main.tgid.0;
            if main.ns_pid == Some(1) {
                entry.flags |= CONTAINER_PID_ONE;
            }
            // Gone in the meantime: then so is its main process.
            let _ = self.containers.insert(cgroup.0, Value(entry), BPF_EXIST);
        }
    }

    /// Reports this signal for this cgroup from now on. False: the cgroup is not watched (any more).
    pub(super) fn allow(&mut self, cgroup: CgroupId, signal: u8) -> Result<bool, ProgramError> {
        let bit = signal_bit(u32::from(signal));
        let Ok(Value(mut entry)) = self.containers.get(&cgroup.0, 0) else { return Ok(false) };
        // The programs write to the same value. What this may undo is a count, or a mark that was set in
        // this very moment: the next signal sets it again, but for the one at the main process' exec,
        // without which each signal and exit among its processes is a record.
        entry.signal_mask |= bit;
        self.containers.insert(cgroup.0, Value(entry), BPF_EXIST)?;
        self.tell(0, bit)?;
        Ok(true)
    }

    /// Hands on the programs' diagnostics, if they were asked for.
    pub(super) fn flush_diagnostics(&mut self) {
        if let Some(diagnostics) = &mut self.diagnostics {
            diagnostics.flush();
        }
    }

    pub(super) fn detach(&mut self, hook: &Hook) {
        unload(&mut self.programs.lock(), hook);
    }
}

fn load_programs(
    ebpf: &mut Ebpf,
    hook: &Hook,
    attaches: bool,
    only_second: bool,
) -> Result<(), ProgramError> {
    for name in hook.programs() {
        raw_tracepoint(ebpf, &name)?.load()?;
    }
    for name in hook.attached(only_second).iter().filter(|_| attaches) {
        raw_tracepoint(ebpf, name)?.attach(hook.name)?;
    }
    Ok(())
}

fn unload(ebpf: &mut Ebpf, hook: &Hook) {
    // The second one first: alone it would take every event for one that was skipped.
    for name in hook.programs().iter().rev() {
        if let Ok(program) = raw_tracepoint(ebpf, name) {
            // Unloading drops the links; a program that is not loaded has none.
            let _ = program.unload();
        }
    }
}

fn take<M: TryFrom<Map, Error = MapError>>(ebpf: &mut Ebpf, name: &str) -> anyhow::Result<M> {
    let map = ebpf.take_map(name).with_context(|| {
        format!("the kernel programs have no map {name}; rebuild with `cargo xtask build`")
    })?;
    M::try_from(map).map_err(|error| anyhow!("cannot use a map of the kernel programs: {error}"))
}

/// Tells want of privilege from all else.
fn not_loaded(error: EbpfError) -> anyhow::Error {
    let denied = match &error {
        EbpfError::MapError(MapError::CreateError { io_error, .. }) => is_eperm(io_error),
        EbpfError::MapError(MapError::SyscallError(error)) => is_eperm(&error.io_error),
        EbpfError::ProgramError(error) => is_denied(error),
        _ => false,
    };
    match denied {
        true => not_permitted(&error),
        false => anyhow!("cannot load the kernel programs: {}", crate::chain(&error)),
    }
}

fn not_permitted(error: &impl Display) -> anyhow::Error {
    anyhow!(
        "not permitted to load BPF programs ({error}); run as root or with CAP_BPF and CAP_PERFMON \
         (before Linux 5.11 also CAP_SYS_RESOURCE), in the initial user namespace, with a seccomp \
         profile that allows bpf(2) (see deploy/seccomp)"
    )
}

/// EPERM; not EACCES, which is the verifier's verdict on one program.
fn is_denied(error: &ProgramError) -> bool {
    match error {
        ProgramError::LoadError { io_error, .. } => is_eperm(io_error),
        ProgramError::SyscallError(error) => is_eperm(&error.io_error),
        _ => false,
    }
}

fn is_eperm(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

/// An error with what the verifier said last, which is what counts.
fn describe(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            let last: Vec<_> = log.lines().filter(|line| !line.trim().is_empty()).collect();
            let tail = last[last.len().saturating_sub(4)..].join(" | ");
            format!("{io_error}: {tail}")
        }
        error => error.to_string(),
    }
}
