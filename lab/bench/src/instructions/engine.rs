//! The engine's instructions: valgrind runs `coroner-lab steps`, and only what the engine does with
//! inputs of one kind is counted.

use crate::engine::{
    PODS,
    load::{InputKind, Load},
    measure,
};
use anyhow::{Context as _, ensure};
use coroner_core::{engine::Engine, input::Received};
use coroner_lab_harness::agent::die_with_parent;
use std::{collections::BTreeMap, env, ffi::CStr, fs, path::Path, process::Stdio};
use tokio::process::Command;

/// The sub-command of `coroner-lab` that [`steps`].
pub const COMMAND: &str = "steps";
/// valgrind's counts, in the work directory.
pub(super) const FILE: &str = "callgrind.out";
/// Where the package has valgrind's parts, from the root.
const PARTS: &str = "usr/libexec/valgrind";
/// Rounds that are not counted and rounds that are: valgrind is fifty times slower.
const WARM_UP: u32 = 8;
const ROUNDS: u32 = 4;

/// Has an engine take some rounds; those of one kind by [`take`].
pub fn steps(kind: InputKind) -> anyhow::Result<()> {
    let load = Load::new(PODS)?;
    let mut engine = measure::warm(&load, WARM_UP);
    for number in WARM_UP + 1..=WARM_UP + ROUNDS {
        for received in load.round(number) {
            if InputKind::of(&received.input) == kind {
                take(&mut engine, received);
            } else {
                engine.step(received);
            }
        }
    }
    Ok(())
}

/// Never inlined: valgrind counts while this runs.
#[inline(never)]
fn take(engine: &mut Engine, received: Received) -> usize {
    engine.step(received).reports.len()
}

/// Instructions for each input, by kind, and of the mix.
pub(super) async fn count(program: &Path, work: &Path) -> anyhow::Result<BTreeMap<String, f64>> {
    let mix = Load::new(PODS)?.mix();
    let file = work.join(FILE);
    let (mut counts, mut sum, mut inputs) = (BTreeMap::new(), 0, 0);
    for (kind, number) in mix {
        let instructions = callgrind(program, kind, &file).await?;
        let taken = number * u64::from(ROUNDS);
        counts.insert(kind.name().to_owned(), per_input(instructions, taken));
        sum += instructions;
        inputs += taken;
    }
    counts.insert("input".to_owned(), per_input(sum, inputs));
    Ok(counts)
}

fn per_input(instructions: u64, inputs: u64) -> f64 {
    (instructions as f64 / inputs as f64 * 10.0).round() / 10.0
}

async fn callgrind(program: &Path, kind: InputKind, file: &Path) -> anyhow::Result<u64> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet", "--toggle-collect=*instructions::engine::take*"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args([COMMAND, kind.name()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // The same for everybody: its size moves the stack.
        .env_clear()
        .envs(env::var_os("PATH").map(|path| ("PATH", path)))
        .kill_on_drop(true);
    let unpacked =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/valgrind").join(PARTS);
    if !Path::new("/").join(PARTS).is_dir() && unpacked.is_dir() {
        command.env("VALGRIND_LIB", unpacked);
    }
    die_with_parent(&mut command);
    let output =
        command.output().await.context("cannot start valgrind: `cargo xtask setup` brings it")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "valgrind failed ({}): {said}", output.status);
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    total(&text).with_context(|| format!("{} holds no total", file.display()))
}

/// The sum of callgrind's output.
fn total(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("totals:")?.trim().parse().ok())
}

/// What else the counts depend on: the compiler, and the C library with what it chooses for this
/// CPU.
pub(super) async fn compiler() -> String {
    let rustc = Command::new("rustc").arg("--version").output().await;
    let rustc = rustc.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    // SAFETY: it returns a string constant.
    let libc = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_string_lossy();
    let cpu = if has_avx2() { ", avx2" } else { "" };
    format!("{}, glibc {libc}{cpu}", rustc.unwrap_or_else(|_| "an unknown rustc".to_owned()))
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_from_callgrinds_output() {
        let text =
            "version: 1\ncreator: callgrind-3.19.0\nevents: Ir\nsummary: 9\n\ntotals: 175787250\n";
        assert_eq!(total(text), Some(175_787_250));
        assert_eq!(total("events: Ir\n"), None);
    }

    #[test]
    fn counts_are_kept_to_a_tenth() {
        assert_eq!(per_input(1_000, 3), 333.3);
    }
}
