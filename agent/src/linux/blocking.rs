//! Blocking calls that may hang: on a dead file system, or on a lock that somebody holds who does.
//! Each has a thread of its own and is given up after a while; its thread ends when the call does.

use std::{sync::Arc, time::Duration};
use tokio::{
    sync::Semaphore,
    task::{JoinError, spawn_blocking},
    time::timeout,
};

/// How long one waits, and how many may hang.
#[derive(Clone, Debug)]
pub(crate) struct BlockingPool {
    limit: Duration,
    threads: Arc<Semaphore>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// It takes longer than one waits.
    #[error("timed out")]
    TimedOut,
    /// It was not begun: earlier ones still hang.
    #[error("too many earlier calls are still blocked")]
    Saturated,
    /// It panicked.
    #[error("the call panicked")]
    Panicked(#[source] JoinError),
}

impl BlockingPool {
    /// Waits for `limit`; has `most` calls under way at a time, those given up included.
    pub(crate) fn new(limit: Duration, most: usize) -> Self {
        Self { limit, threads: Arc::new(Semaphore::new(most)) }
    }

    /// The call's answer, if it comes in time.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CallError> {
        let threads = Arc::clone(&self.threads);
        let thread = threads.try_acquire_owned().map_err(|_| CallError::Saturated)?;
        let calling = spawn_blocking(move || {
            let _thread = thread; // until the call has ended, waited for or not
            call()
        });
        match timeout(self.limit, calling).await {
            Ok(answer) => answer.map_err(CallError::Panicked),
            Err(_) => Err(CallError::TimedOut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn what_hangs_is_given_up_and_counts_until_it_ends() {
        const AMPLE: Duration = Duration::from_secs(60);
        let mut pool = BlockingPool::new(AMPLE, 1);
        assert_eq!(pool.call(|| 7).await.unwrap(), 7);
        let (release, held) = mpsc::channel::<()>();
        pool.limit = Duration::from_millis(20);
        let hung = pool.call(move || held.recv()).await;
        assert!(matches!(hung, Err(CallError::TimedOut)), "{hung:?}");
        assert!(matches!(pool.call(|| 7).await, Err(CallError::Saturated)));
        drop(release);
        pool.limit = AMPLE;
        while pool.call(|| 7).await.is_err() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_panic_is_told_and_gives_its_place_back() {
        let pool = BlockingPool::new(Duration::from_secs(60), 1);
        let broke = pool.call(|| panic!("on purpose")).await;
        assert!(matches!(broke, Err(CallError::Panicked(_))), "{broke:?}");
        assert_eq!(pool.call(|| 7).await.unwrap(), 7);
    }
}
