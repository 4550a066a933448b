//! The simulation with as many histories as are asked for: what `cargo xtask simulate` runs.
//!
//! Arguments: how many histories of each fault, the seed, the fault (or `all`), the folder for what goes
//! wrong, and `text` or `json`.

#[path = "../tests/simulation/oracle.rs"]
mod oracle;

use oracle::{FAULTS, FaultTally, Hidden, Kept, Kind, simulate};
use serde_json::{Value, json};
use std::{
    env,
    path::Path,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("simulate: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether all is well.
fn run() -> Result<bool, String> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [cases, seed, fault, folder, form] = &arguments[..] else {
        return Err("arguments: CASES SEED FAULT FOLDER text|json".into());
    };
    let cases: u32 = cases.parse().map_err(|error| format!("{cases}: {error}"))?;
    let seed: u64 = seed.parse().map_err(|error| format!("{seed}: {error}"))?;
    let faults: Vec<_> = FAULTS.into_iter().filter(|one| fault == "all" || fault == one).collect();
    if faults.is_empty() {
        return Err(format!("there is no fault `{fault}`; there are: {}", FAULTS.join(", ")));
    }
    let print = |outcome: &FaultTally| {
        let kept = outcome.keep(Path::new(folder));
        match form.as_str() {
            "json" => println!("{}", line(outcome, kept)),
            _ => println!("{outcome}{}", kept.map(|kept| kept.to_string()).unwrap_or_default()),
        }
    };
    if form == "text" {
        println!("seed {seed}\n{}", FaultTally::head());
    }
    let (queue, good) = (Mutex::new(faults.into_iter()), AtomicBool::new(true));
    let work = || {
        loop {
            let next = queue.lock().expect("nobody panics with it").next();
            let Some(fault) = next else { return };
            let outcome = simulate(fault, cases, seed);
            good.fetch_and(outcome.is_good(), Ordering::Relaxed);
            print(&outcome);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    Ok(good.into_inner())
}

fn line(outcome: &FaultTally, kept: Option<Kept>) -> Value {
    let ((verdicts, causes), floor) = (outcome.known.known(), outcome.floor());
    let (decidable, decided) = outcome.known.decidable();
    let why = |hidden: Hidden| {
        let (percent, tally) = outcome.known.hidden(hidden);
        let why = json!({
            "percent": percent,
            "ceiling_percent": outcome.ceiling(hidden),
            "reported_right": tally.right,
            "reported_other": tally.other,
        });
        (hidden.as_str().to_owned(), why)
    };
    let hidden: serde_json::Map<_, _> = Hidden::ALL.into_iter().map(why).collect();
    let count = |kind: Kind| outcome.kinds[kind as usize];
    json!({
        "fault": outcome.fault,
        "seed": outcome.seed,
        "histories": outcome.histories,
        "wrong_histories": outcome.wrong,
        "contradictions": count(Kind::Contradiction),
        "lost": count(Kind::Lost),
        "twice": count(Kind::Twice),
        "disagreements": count(Kind::Disagreement),
        "deaths": outcome.known.deaths(),
        "verdicts_percent": verdicts,
        "verdicts_floor_percent": floor.0,
        "causes_percent": causes,
        "decidable_percent": decidable,
        "known_of_decidable_percent": decided,
        "known_of_decidable_floor_percent": floor.1,
        "not_decidable": hidden,
        "ok": outcome.is_good(),
        "example": kept.map(|kept| json!({ "file": kept.file, "text": kept.text })),
    })
}
