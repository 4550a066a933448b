use coroner_core::{
    output::Outputs,
    testkit::{ANCHOR, BootTime, Checks, Engine, Input, Received, Settings},
};
use std::time::Duration;

/// More inputs than this make an execution slow, and reach nothing new.
const MAX_INPUTS: usize = 400;
/// Seconds between the ticks at the end: past the settle window, each timeout, and what is kept how long.
const LAST_TICKS: [u64; 14] = [1, 1, 2, 3, 5, 5, 5, 5, 10, 30, 60, 300, 600, 3_600];
/// Short, so that few ticks make a leak certain.
const LEAK_THRESHOLD: Duration = Duration::from_secs(20);

/// The engine: the lines of a recording as inputs, whatever they contradict. It reports nothing that does not add up,
/// counts nothing twice, and reports the same again when it is given the same.
pub fn engine(bytes: &[u8]) {
    let outputs = outputs(bytes);
    // A check that costs as much as the rest: for some executions.
    if bytes.len().is_multiple_of(8) {
        assert_eq!(outputs, self::outputs(bytes), "the same inputs, other outputs");
    }
}

/// What the engine emits for these inputs, checked.
pub fn outputs(bytes: &[u8]) -> Outputs {
    let settings = Settings { leak_threshold: LEAK_THRESHOLD, ..Settings::new(ANCHOR) };
    let (mut engine, mut checks) = (Engine::new(settings), Checks::default());
    let (mut outputs, mut at) = (Outputs::default(), BootTime(0));
    let mut step = |received: Received| {
        let emitted = engine.step(received);
        emitted.reports.iter().for_each(|report| checks.report(report));
        outputs.append(emitted);
    };
    let lines = bytes.split(|byte| *byte == b'\n').take(MAX_INPUTS);
    for received in lines.filter_map(|line| serde_json::from_slice::<Received>(line).ok()) {
        at = received.at;
        step(received);
    }
    for seconds in LAST_TICKS {
        at = at + Duration::from_secs(seconds);
        step(Received { at, input: Input::Tick });
    }
    outputs
}
