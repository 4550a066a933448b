//! Every response to the stop signal × every end × every loss: one table, `table.txt`.

use super::script::Script;
use coroner_core::{testkit::*, verdict::assess};
use std::{env, fmt::Write as _, fs, path::Path};

type Build = fn(Script) -> Script;

/// What the container did with the stop signal, at 1 s.
const RESPONSES: [(&str, Build); 10] = [
    ("nothing sent", |s| s),
    ("handled", |s| s.term(ms(1000), |s| s.handler()).handler_runs(ms(1001))),
    ("handler, not run", |s| s.term(ms(1000), |s| s.handler())),
    ("default action", |s| s.term(ms(1000), |s| s.fatal())),
    ("PID 1, no handler", |s| s.term(ms(1000), |s| s.ignored())),
    ("SIG_IGN", |s| s.term(ms(1000), |s| s.sig_ign())),
    ("blocked", |s| s.term(ms(1000), |s| s.blocked())),
    ("consumed", |s| s.term(ms(1000), |s| s.blocked())),
    ("dying already", |s| s.kill(ms(900), |s| s).term(ms(1000), |s| s.dying())),
    ("not recorded", |s| s.term(ms(1000), |s| s.unrecorded())),
];

/// How it ended, at the deadline of 10 s or before.
const ENDS: [(&str, Build); 9] = [
    ("code 0", |s| s.exit(ms(3000), ExitStatus::Code(0))),
    ("code 1", |s| s.exit(ms(3000), ExitStatus::Code(1))),
    ("SIGTERM", |s| s.exit(ms(3000), by(15))),
    ("SIGKILL", |s| s.kill(ms(11_000), |s| s).exit(ms(11_001), by(9))),
    ("SIGKILL, no state", |s| s.kill(ms(11_000), |s| s.unrecorded()).exit(ms(11_001), by(9))),
    ("SIGKILL, unseen", |s| s.exit(ms(11_001), by(9))),
    ("OOM killer", |s| s.kernel_kill(ms(3000)).oom(ms(3001)).exit(ms(3002), by(9))),
    ("SIGSEGV", |s| s.exit(ms(3000), by(11))),
    ("unseen", |s| s),
];

const LOSSES: [(&str, Option<LossKind>); 3] = [
    ("none", None),
    ("detail", Some(LossKind::DetailRingFull)),
    ("deciding", Some(LossKind::DecidingRingFull)),
];

fn by(signal: u8) -> ExitStatus {
    ExitStatus::Signal { signal, core: false }
}

fn verdict(response: (&str, Build), end: (&str, Build), loss: Option<LossKind>) -> String {
    let mut script = end.1(response.1(Script::new().init()));
    // A signal that is still pending shows when SIGKILL comes.
    if response.0 == "blocked" && end.0 == "SIGKILL" {
        script = response.1(Script::new().init());
        script = script.kill(ms(11_000), |s| s.pending(15)).exit(ms(11_001), by(9));
    }
    if let Some(loss) = loss {
        script.processes.record_gap(ms(1000), loss);
    }
    let judgement = assess(script.inputs());
    assert!(judgement.proof.message.ends_with('.'), "{}", judgement.proof.message);
    assert!(judgement.stop.is_none() || judgement.unproven.is_none(), "{judgement:?}");
    judgement.verdict.to_string()
}

#[test]
fn every_response_end_and_loss() {
    let mut table = String::new();
    writeln!(
        table,
        "{:<18} {:<18} {:<22} {:<22} deciding lost",
        "response", "end", "nothing lost", "detail lost"
    )
    .unwrap();
    for response in RESPONSES {
        for end in ENDS {
            let [none, detail, deciding] = LOSSES.map(|(_, loss)| verdict(response, end, loss));
            for lossy in [&detail, &deciding] {
                assert!(*lossy == none || lossy == "unknown", "never wrong: {lossy} for {none}");
            }
            writeln!(table, "{:<18} {:<18} {none:<22} {detail:<22} {deciding}", response.0, end.0)
                .unwrap();
        }
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verdicts/table.txt");
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&golden, &table).unwrap();
    }
    let expected = fs::read_to_string(&golden).unwrap_or_default();
    assert!(table == expected, "table.txt differs; UPDATE_GOLDEN=1 accepts this:\n{table}");
}
