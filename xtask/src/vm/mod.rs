//! The kernel programs on foreign kernels: a test binary, alone in a guest with a kernel of Debian's and cgroup v2.

mod initramfs;
mod kernel;
mod qemu;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::{Result, ensure};

pub(crate) use self::kernel::{Kernel, choose};
use crate::{
    host::{Arch, X86_64},
    steps::at_once,
    test::{Tally, TestBinary, programs_for},
    workspace::Workspace,
};

/// What the gate runs in a guest: the self-test of each hook, the privileges, exact records of each kind, the second
/// programs, connections, and the AppArmor profile. All tests take an emulated guest five times as long.
const OF_GATE: &[&str] = &[
    "agent::the_agent_goes_on_with_the_privileges_that_it_keeps",
    "agent::two_capabilities_suffice_and_before_5_11_a_third",
    "apparmor::guest_the_profile_denies_a_file_in_another_place",
    "apparmor::guest_the_profile_denies_nothing_that_is_needed",
    "a_blocked_signal_is_pending_at_sigkill",
    "a_full_ring_is_counted",
    "a_handler_runs_when_its_process_is_thawed",
    "injected_processes_are_told_and_own_children_are_not",
    "nested_cgroups_belong_to_their_container_and_a_monitor_is_none",
    "what_a_target_does_with_a_signal_is_its_disposition",
    "the_end_of_an_init_kills_its_namespace_visibly",
    "the_scan_finds_what_was_there_before",
    "the_shortest_life_is_told_whole_and_in_order",
    "what_runc_executes_before_the_containers_program_is_not_its_main_process",
    "connections::ipv6_and_mapped_addresses_and_the_nodes_own",
    "connections::the_programs_notice_the_stop",
    "connections::what_the_exit_of_a_process_costs_a_client",
    "namespaces::a_signal_that_an_init_passes_on_to_its_children_is_counted",
    "oom::the_oom_killers_choice_is_told_after_its_sigkill",
    "preemption::the_second_programs_report_what_the_first_have_not_seen",
    "senders::a_signal_to_the_dying_says_so",
    "senders::the_way_a_signal_was_sent_is_told",
    "threads::a_process_ends_with_its_last_thread",
    "threads::an_exec_by_a_thread_ends_nobody",
];

/// Which tests a guest runs.
#[derive(Debug, Clone, Default)]
pub(crate) enum Which {
    All,
    #[default]
    OfGate,
    /// Those whose names contain this.
    Like(String),
}

/// Runs `test` on each of `kernels`, as many guests at once as this machine has CPUs for.
///
/// # Errors
/// The guests' file system cannot be made.
pub(crate) fn run(
    workspace: &Workspace,
    kernels: &[&'static Kernel],
    which: &Which,
    test: &TestBinary,
    suffix: &str,
) -> Result<Tally> {
    ensure!(*Arch::host()? == X86_64, "foreign kernels are set up for x86_64 only");
    fs::create_dir_all(workspace.target("vm"))?;
    let (arguments, least) = match which {
        Which::All => (Vec::new(), 1),
        Which::OfGate => ([&["--exact"], OF_GATE].concat(), OF_GATE.len() as u64),
        Which::Like(name) => (vec![name.as_str()], 1),
    };
    let mut systems: BTreeMap<&str, PathBuf> = BTreeMap::new();
    for arch in kernels.iter().map(|kernel| kernel.arch) {
        if !systems.contains_key(arch.debian) {
            let foreign = (!arch.is_host()).then(|| programs_for(arch)).transpose()?;
            let test = foreign.as_ref().unwrap_or(test);
            // The parser that loads the profile is of the machine's architecture.
            let skipped: &[&str] = if arch.is_host() { &[] } else { &["--skip", "apparmor"] };
            let arguments = [&arguments, skipped].concat();
            let system = initramfs::pack(workspace, arch, &test.executable, &arguments)?;
            systems.insert(arch.debian, system);
        }
    }
    let tally = Mutex::new(Tally::default());
    // Most of the time one of a guest's two CPUs is busy.
    at_once(kernels, |kernel| {
        let run = boot(workspace, kernel, least, &systems[kernel.arch.debian], suffix);
        tally.lock().unwrap_or_else(PoisonError::into_inner).add(run);
    });
    Ok(tally.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// One guest. What does not come to its end is a failed test, and keeps no other guest from running.
fn boot(
    workspace: &Workspace,
    kernel: &Kernel,
    least: u64,
    initramfs: &Path,
    suffix: &str,
) -> Tally {
    let name = format!("vm-{}{suffix}", kernel.name);
    let run = kernel.image(workspace).and_then(|image| {
        let machine = qemu::Machine {
            arch: kernel.arch,
            kernel: &image,
            initramfs,
            log: workspace.target("vm").join(format!("{name}.log")),
        };
        qemu::boot(workspace, &machine, |line| println!("{name}: {line}"))
    });
    let run = run
        .map_or_else(|error| (false, format!("{error:#}")), |(status, text)| (status == 0, text));
    Tally::of_run(workspace, &name, &run, least)
}
