//! How long the runtime takes to answer.

use crate::sources::windowed_max::WindowedMax;
use parking_lot::Mutex;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// How long calls to the runtime take, those that wait for an answer included.
#[derive(Debug, Default)]
pub struct Latency(Mutex<Calls>);

#[derive(Debug, Default)]
struct Calls {
    /// When each call that waits for an answer was made.
    under_way: BTreeMap<u64, Instant>,
    made: u64,
    /// Of those that were answered or given up, in ms.
    slowest: Option<WindowedMax>,
}

/// A call that waits for its answer, until this is dropped.
pub(super) struct Waiting<'a> {
    latency: &'a Latency,
    call: u64,
}

impl Latency {
    pub(super) fn begin(&self) -> Waiting<'_> {
        let mut calls = self.0.lock();
        let call = calls.made;
        calls.made += 1;
        calls.under_way.insert(call, Instant::now());
        Waiting { latency: self, call }
    }

    /// The longest that a call of the last minute or two took, or waits now.
    pub fn slowest(&self) -> Duration {
        let now = Instant::now();
        let mut calls = self.0.lock();
        let waits = calls.under_way.values().next().map(|made| now.duration_since(*made));
        let took = calls.slowest.as_mut().map_or(0, |slowest| slowest.observe(now, 0));
        waits.unwrap_or_default().max(Duration::from_millis(took))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut calls = self.latency.0.lock();
        if let Some(made) = calls.under_way.remove(&self.call) {
            let took = u64::try_from(now.duration_since(made).as_millis()).unwrap_or(u64::MAX);
            calls.slowest.get_or_insert_with(|| WindowedMax::new(now)).observe(now, took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_call_counts_while_it_waits_and_for_a_while_after() {
        let seconds = Duration::from_secs;
        let latency = Latency::default();
        assert_eq!(latency.slowest(), Duration::ZERO);
        let slow = latency.begin();
        advance(seconds(10)).await;
        let fast = latency.begin();
        advance(seconds(5)).await;
        assert_eq!(latency.slowest(), seconds(15), "the older one, not answered yet");
        drop(slow);
        drop(fast);
        assert_eq!(latency.slowest(), seconds(15));
        advance(seconds(130)).await;
        assert_eq!(latency.slowest(), Duration::ZERO);
    }
}
