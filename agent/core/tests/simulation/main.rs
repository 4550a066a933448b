//! An oracle for deaths: random histories of a pod, told by sources that are late, hang, break or begin
//! in the middle. What the engine says is held against the truth, which the generator knows.
//! `cargo xtask simulate` plays more of them.
//!
//! Each of these defects was once in the core, or suspected there. Taken back alone, each is found: "simulation" means
//! by the histories with the fixed seed below, all else is a test of this crate.
//!
//! | defect | found by |
//! |---|---|
//! | A stop signal before the first event with the request does not count | simulation (531 of 1,000 under a late watch) |
//! | A deletion that the watch has not shown yet "did not happen" | simulation, `outages::a_stop_that_nobody_watched_is_no_liveness_kill` |
//! | An outage begins with its error, not with the last event before it | simulation (the floor of causes under hung-relisted) |
//! | A pod is dropped while its report waits for the settle window | simulation, `late_watch::what_a_late_watch_delays_is_reported_and_counted_once` |
//! | A person's signal, or a dead sandbox, is taken for a probe's failure | `stops::a_signal_of_an_administrators_shell_is_an_external_stop`, `stops::f7_sandbox_without_ip` |
//! | "No signal had been sent to it" where another than the stop signal was | `stops::f14_sighup`, `stops::f10_subshell_of_an_exec` |
//! | A first, discarded stop signal counts more than a second, handled one | simulation, `verdicts`: `stop_signal_ignored` |
//! | A probe is taken for the preStop hook of a slow node | `verdicts`: `pre_stop::a_probe_is_not_taken_for_the_hook_on_a_slow_node` |
//! | Hundreds of nested cgroups push out the one with the main process | `main_process::a_main_process_is_not_lost_among_many_cgroups` |
//! | Only children of a container's own cgroup belong to it | `cgroup_tree`: `what_is_below_a_container_is_found_however_deep_and_removed_with_it` |
//! | A container whose sandbox was never listed is neither reported nor counted | `bounds::a_container_whose_sandbox_was_never_listed_counts_as_lost` |
//! | "No SIGKILL before it" where SIGKILL is the stop signal | `stops::f4_stopsignal_sigkill` |
//! | The cost of a list is quadratic in the sandboxes of one pod | `cri::lists`: `an_entry_among_thousands_of_its_parent_costs_little` |
//! | Late evidence without a new milestone is dropped | `lives::late_evidence_is_a_new_revision_and_no_second_count` |
//! | A shortened grace in a list counts from the first request | `stop_reasons::a_shortened_grace_is_raised_to_the_floor` |
//! | A cgroup that is reported again loses its owner, or the bound on what is below it | `main_process::a_program_far_below_its_containers_cgroup_is_followed`, `cgroup_tree`: `a_container_that_is_reported_again_keeps_the_bound_on_what_is_below_it` |
//! | Objects of leaked sandboxes are kept whole | `orphans::little_stays_of_the_object_of_a_leaked_sandbox` |
//! | A tenant's evicted cgroups take the room of other containers | `bounds::evicted_cgroups_of_a_tenant_leave_room_for_other_containers` |
//! | A cgroup that was empty before its program ran has ended | simulation, `main_process::a_cgroup_that_was_empty_before_its_program_ran_has_not_ended` |
//! | The runtime's own word on the stop signal does not count | `stops::f11_sysbox` |
//! | A report that loses its containers is taken for one whose evidence was evicted | `found/containers-leave-their-pods-report.jsonl` |
//! | A container in back-off that is first shown with the deletion was stopped for it | `found/back-off-in-a-list-with-the-deletion.jsonl` |
//! | A SIGKILL without a recorded stop signal dates the stop | `found/changed-image-and-deletion-at-once.jsonl`, `lateness::a_kill_before_the_end_of_the_grace_is_not_for_the_deletion` |
//! | What a resumed watch delivers happened when it came | `late_watch::what_was_queued_in_an_outage_is_not_dated_by_its_delivery` |

#[path = "oracle.rs"]
mod oracle;
#[path = "../random/mod.rs"]
mod random;

use oracle::{FAULTS, FaultTally, judge, read, simulate};
use proptest::test_runner::{Config, RngSeed};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Histories of each fault.
const CASES: u32 = 1_000;

#[test]
fn nothing_contradicts_the_truth_and_enough_is_known() {
    let Config { cases, rng_seed: RngSeed::Fixed(seed), .. } = random::cases(CASES) else {
        panic!("no seed");
    };
    let folder = env::var_os("CORONER_FAILED_DIR").unwrap_or(env!("CARGO_TARGET_TMPDIR").into());
    let folder = PathBuf::from(folder);
    let mut wrong = Vec::new();
    println!("{}", FaultTally::head());
    for fault in FAULTS {
        let outcome = simulate(fault, cases, seed);
        println!("{outcome}");
        if !outcome.is_good() {
            let kept = outcome.keep(&folder).map(|kept| kept.to_string());
            wrong.push(format!("{outcome}{}", kept.unwrap_or_default()));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", FaultTally::head(), wrong.join("\n\n"));
}

/// Histories that `cargo xtask simulate` once found something wrong in.
#[test]
fn what_was_found_stays_fixed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulation/found");
    let mut wrong = Vec::new();
    let files: Vec<_> = fs::read_dir(&folder).expect("the folder").collect();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        let path = file.expect("a file").path();
        let (expected, inputs) = read(&fs::read_to_string(&path).expect("text"));
        let judgement = judge(&expected, &inputs);
        wrong.extend(judgement.wrong.iter().map(|wrong| format!("{}: {wrong:?}", path.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
