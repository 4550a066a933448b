use crate::checks::plain;
use coroner::outputs::report::{self, Style};
use coroner_api::{leaks, terminations::Termination};
use coroner_core::{leak::Leak, report::PodTermination, time::WallTime};
use coroner_fuzz_core::odd;
use serde_json::Value;

/// Whole answers of an agent; of a leak the last two.
const ANSWERS: [&str; 4] = [
    include_str!("../../../agent/api/tests/golden/termination.json"),
    include_str!("../../../agent/api/tests/golden/unfinished.json"),
    include_str!("../../../agent/api/tests/golden/leak.json"),
    include_str!("../../../agent/api/tests/golden/stuck.json"),
];

/// Values of an answer that are replaced.
const MAX_VALUES: usize = 16;

/// What an agent answers, with odd values in it → what the command line prints. The first byte chooses the
/// answer, then three bytes each replace a value.
pub fn report(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let which = usize::from(*which) % ANSWERS.len();
    let mut answer: Value = serde_json::from_str(ANSWERS[which]).expect("JSON");
    for [low, high, how] in bytes.as_chunks().0.iter().take(MAX_VALUES) {
        odd(&mut answer, u16::from_le_bytes([*low, *high]).into(), *how);
    }
    if which < 2 {
        let Ok(answer) = serde_json::from_value::<Termination>(answer) else { return };
        let termination = PodTermination::from(answer);
        printed(&termination);
        let json = serde_json::to_vec(&Termination::from(&termination)).expect("it is JSON");
        serde_json::from_slice::<Termination>(&json).expect("it is read");
    } else {
        let Ok(answer) = serde_json::from_value::<leaks::Leak>(answer) else { return };
        let Some(leak) = Option::<Leak>::from(answer) else { return };
        for now in [WallTime(i64::MIN), WallTime(0), WallTime(i64::MAX)] {
            plain(&report::leak(&leak, now, &Style::default()));
        }
    }
}

/// No text that came from outside controls the terminal.
pub(crate) fn printed(termination: &PodTermination) {
    for width in [20, 100] {
        let style = Style { width, color: false };
        plain(&report::termination(termination, &style));
        plain(&report::explain(termination, &[termination], &style));
    }
    report::log_line(termination);
}
