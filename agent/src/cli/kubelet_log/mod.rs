//! The kubelet's log, which a person gives to `explain` and `leaks`. It decides nothing: `explain` shows the kubelet's
//! stages as a lane, `leaks` quotes the lines that state why something is not removed.

mod lane;
mod line;
mod quotes;
mod reading;
pub mod table;
#[cfg(test)]
mod tests;
mod zone;

pub(super) use lane::lane;
pub(super) use quotes::{LeakQuotes, quotes};
