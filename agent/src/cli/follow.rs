//! Follows a watch of a running agent for as long as the user wants.

use super::print_note;
use coroner_api::{Event, ListQuery, client::AgentAddress};
use futures::{Stream, StreamExt as _, stream};
use serde::de::DeserializeOwned;
use std::{pin::Pin, time::Duration};
use tokio::time::sleep;

/// Time between two attempts to reach an agent that has gone.
const RETRY: Duration = Duration::from_secs(1);

type WatchLines<T> = dyn Stream<Item = anyhow::Result<Event<T>>>;

struct Following<T> {
    lines: Option<Pin<Box<WatchLines<T>>>>,
    /// No watch has come as far as its first heartbeat.
    is_first: bool,
    is_silent: bool,
}

/// The lines of a watch, which is begun again whenever it ends: an agent that does not answer may be restarting. `None`
/// comes before the lines of each watch. An error if there is no agent at first.
pub(super) fn follow<'a, T: DeserializeOwned + 'static>(
    agent: &'a AgentAddress,
    path: &'a str,
    query: &'a ListQuery,
) -> impl Stream<Item = anyhow::Result<Option<Event<T>>>> + 'a {
    let state = Following { lines: None, is_first: true, is_silent: false };
    stream::try_unfold(state, async move |mut state: Following<T>| {
        loop {
            let failure = match &mut state.lines {
                None => match agent.watch::<T>(path, query).await {
                    Ok(lines) => {
                        state.lines = Some(Box::pin(lines));
                        return Ok(Some((None, state)));
                    }
                    Err(error) if state.is_first => return Err(error),
                    Err(error) => Some(error),
                },
                Some(lines) => match lines.next().await {
                    Some(Ok(event)) => {
                        if matches!(event, Event::Heartbeat(_)) {
                            (state.is_first, state.is_silent) = (false, false);
                        }
                        return Ok(Some((Some(event), state)));
                    }
                    Some(Err(error)) => Some(error),
                    None => None,
                },
            };
            state.lines = None;
            if let (Some(error), false) = (failure, state.is_silent) {
                print_note(&format!("{}; retrying every second", crate::chain(error.as_ref())));
                state.is_silent = true;
            }
            sleep(RETRY).await;
        }
    })
}
