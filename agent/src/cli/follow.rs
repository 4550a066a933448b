//! Follows a list of a running agent for as long as the user wants.

use super::print_note;
use crate::config::args::AgentArgs;
use coroner_report::{List, ListQuery};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::time::sleep;

const EVERY: Duration = Duration::from_secs(1);

/// Passes the list to `each`, and then every second what has changed. An agent that does not answer may be restarting; an
/// error if there is none at first.
pub(super) async fn follow<T: DeserializeOwned>(
    agent: &AgentArgs,
    path: &str,
    query: &ListQuery,
    mut each: impl FnMut(List<T>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (mut query, mut is_silent) = (query.clone(), false);
    loop {
        match agent.list(path, &query).await {
            Ok(list) => {
                is_silent = false;
                query.after = Some(list.cursor.clone());
                each(list)?;
            }
            Err(error) if query.after.is_none() => return Err(error),
            Err(error) => {
                if !std::mem::replace(&mut is_silent, true) {
                    print_note(&format!("{}; retrying every second", crate::chain(error.as_ref())));
                }
            }
        }
        sleep(EVERY).await;
    }
}
