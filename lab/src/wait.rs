//! Waiting for events of which nothing else tells.

use anyhow::{Result, bail};
use std::{fmt::Display, time::Duration};

/// When to give up. It decides nothing else: no machine on which the lab can be used at all is that slow.
pub const LIMIT: Duration = Duration::from_secs(120);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Waits for an event.
pub async fn event<T>(what: impl Display, event: impl Future<Output = T>) -> Result<T> {
    event_within(LIMIT, what, event).await
}

pub async fn event_within<T>(
    limit: Duration,
    what: impl Display,
    event: impl Future<Output = T>,
) -> Result<T> {
    match tokio::time::timeout(limit, event).await {
        Ok(come) => Ok(come),
        Err(_) => bail!("waited {limit:?} in vain: {what}"),
    }
}

/// Looks until there is something.
pub async fn until<T>(
    what: impl Display,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    // A loop of its own: a future with an async closure in it cannot be spawned.
    let looking = async {
        loop {
            if let Some(seen) = look()? {
                return Ok(seen);
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    event(what, looking).await?
}

/// Asks until there is an answer.
pub async fn asking<T>(
    what: impl Display,
    mut ask: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let asking = async {
        loop {
            if let Some(answer) = ask().await? {
                return Ok(answer);
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    event(what, asking).await?
}
