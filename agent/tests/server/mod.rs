//! What serves a fake, and can be killed as hard as a process; and waiting for what comes.

use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Ends a test that would wait for ever; nothing is measured by it.
pub(crate) const STUCK: Duration = Duration::from_secs(60);
/// Between two looks at what is waited for. No test depends on it.
pub(crate) const LOOK: Duration = Duration::from_millis(1);

/// Serves until it is killed or dropped.
pub(crate) struct Server(Option<Runtime>);

impl Server {
    pub(crate) fn start<T: Send + 'static>(
        serve: impl Future<Output = T> + Send + 'static,
    ) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.spawn(serve);
        Self(Some(runtime))
    }

    /// Ends everything at once, connections included: when this returns, nobody serves.
    pub(crate) fn kill(mut self) {
        let runtime = self.0.take().expect("it runs");
        // In a thread of its own: no runtime may wait for another's end.
        let killer = std::thread::spawn(move || runtime.shutdown_timeout(STUCK));
        killer.join().expect("the runtime ends");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Waits until this is so.
pub(crate) async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(STUCK, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}
