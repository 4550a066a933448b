//! Blocking calls with a timeout, because a call may hang on a dead file system or on a kernel lock. Each call has
//! its own thread. After the timeout the caller continues; the thread ends when the call returns.

use std::{sync::Arc, time::Duration};
use tokio::{
    sync::Semaphore,
    task::{JoinError, spawn_blocking},
    time::timeout,
};

/// Runs blocking calls with a timeout, with a limit on concurrent calls.
#[derive(Clone, Debug)]
pub(crate) struct BlockingPool {
    limit: Duration,
    threads: Arc<Semaphore>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("timed out")]
    TimedOut,
    /// The call was not started: too many earlier calls are still blocked.
    #[error("too many earlier calls are still blocked")]
    Saturated,
    #[error("the call panicked")]
    Panicked(#[source] JoinError),
}

impl BlockingPool {
    /// `limit`: the timeout. `most`: the number of concurrent calls, including calls that timed out.
    pub(crate) fn new(limit: Duration, most: usize) -> Self {
        Self { limit, threads: Arc::new(Semaphore::new(most)) }
    }

    /// Runs `call` and returns its result if it returns within the timeout.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CallError> {
        let threads = Arc::clone(&self.threads);
        let thread = threads.try_acquire_owned().map_err(|_| CallError::Saturated)?;
        let calling = spawn_blocking(move || {
            let _thread = thread; // held until the call returns, also after the timeout
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
    async fn a_panic_is_an_error_and_releases_its_permit() {
        let pool = BlockingPool::new(Duration::from_secs(60), 1);
        let broke = pool.call(|| panic!("on purpose")).await;
        assert!(matches!(broke, Err(CallError::Panicked(_))), "{broke:?}");
        assert_eq!(pool.call(|| 7).await.unwrap(), 7);
    }
}
