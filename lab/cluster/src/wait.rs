//! Waiting for what happens by itself.

use anyhow::bail;
use std::{fmt::Display, time::Duration};

/// How long something may take that happens by itself. It decides nothing but when to give up: no
/// machine on which the lab can be used at all is that slow, and reaching it is a failure.
pub const LIMIT: Duration = Duration::from_secs(120);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Waits for an event.
pub async fn event<T>(what: impl Display, event: impl Future<Output = T>) -> anyhow::Result<T> {
    event_within(LIMIT, what, event).await
}

/// Waits for an event that may take longer than [`LIMIT`].
pub async fn event_within<T>(
    limit: Duration,
    what: impl Display,
    event: impl Future<Output = T>,
) -> anyhow::Result<T> {
    match tokio::time::timeout(limit, event).await {
        Ok(come) => Ok(come),
        Err(_) => bail!("waited {limit:?} in vain: {what}"),
    }
}

/// Looks until there is something to be seen, where nothing tells of it.
pub async fn until<T>(
    what: impl Display,
    look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    until_within(LIMIT, what, look).await
}

/// The same with another limit.
pub async fn until_within<T>(
    limit: Duration,
    what: impl Display,
    mut look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let looking = async {
        loop {
            if let Some(seen) = look()? {
                return Ok(seen);
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    event_within(limit, what, looking).await?
}

/// The same where looking takes its time: asks until there is an answer.
pub async fn asking<T>(
    what: impl Display,
    mut ask: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    #[tokio::test(start_paused = true)]
    async fn what_was_waited_for_is_said() {
        let mut looks = 0;
        let mut third = || {
            looks += 1;
            Ok((looks % 3 == 0).then_some(looks))
        };
        assert_eq!(until("the third look", &mut third).await.unwrap(), 3);
        assert_eq!(asking("the sixth", async || third()).await.unwrap(), 6);
        let never = until::<()>("a pig flies", || Ok(None)).await.unwrap_err();
        assert_eq!(never.to_string(), "waited 120s in vain: a pig flies");
        let never = event::<()>("another does", pending()).await.unwrap_err();
        assert!(never.to_string().ends_with("another does"), "{never}");
        let failed = until::<()>("nothing", || bail!("blind")).await.unwrap_err();
        assert_eq!(failed.to_string(), "blind");
    }
}
