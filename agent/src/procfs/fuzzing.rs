//! The parsers of /proc: for the fuzz targets (`fuzz/`), and compiled for them alone.

use super::parse;
use crate::domain::input::TaskState;

/// /proc/PID/stat: name, state, parent, start in clock ticks.
pub fn stat(text: &str) -> Option<(String, TaskState, u32, u64)> {
    parse::stat(text).map(|stat| (stat.comm, stat.state, stat.parent, stat.started))
}

/// /proc/PID/wchan.
pub fn wchan(text: &str) -> Option<String> {
    parse::wchan(text)
}

/// /proc/PID/stack.
pub fn stack(text: &str) -> Vec<String> {
    parse::stack(text)
}

/// `cgroup.events` and `freezer.state`.
pub fn frozen(text: &str) -> (Option<bool>, Option<bool>) {
    (parse::events_frozen(text), parse::freezer_frozen(text))
}
