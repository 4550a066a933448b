//! The kubelet adapter: reads the kubelet's own log, from the systemd journal's files, a plain file or standard
//! input, and hands out what it says of pods.
//!
//! **Invariant.** Only the fields that `entry.rs` names are kept of a line: no command line, no output of a probe or
//! hook, no patch, no annotation. A line that is not read is counted.

mod budget;
mod entry;
mod field;
mod file;
#[doc(hidden)]
pub mod fuzzing;
mod journal;
mod klog;
mod lines;
mod parser;
mod reading;
mod run;
mod scrub;
mod stream;
pub mod table;
mod time;

pub use parser::{LineResult, event};
pub use reading::LineCounters;
pub use run::{FoundLog, KubeletLogOptions, LogSource, MAX_MIB, PersonsLog, probe, read_all, run};
