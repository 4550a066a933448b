//! The recording, from the flag to the thread that writes.

use crate::{
    outputs::{
        http::SharedState,
        recording::{self, Recorder},
    },
    sources::kernel,
};
use anyhow::Context;
use coroner_core::engine::Settings;
use std::sync::Arc;
use tracing::info;

/// A recording whose file exists. Created before anything is attached, so that a wrong path fails early.
pub(super) struct OpenRecording {
    options: recording::RecorderOptions,
    file: std::fs::File,
}

impl OpenRecording {
    pub(super) fn prepare(options: recording::RecorderOptions) -> anyhow::Result<Self> {
        let path = options.file.display();
        let file = recording::create(&options.file).with_context(|| {
            format!(
                "cannot record to {path}; create its directory, or choose another file with \
                 --record"
            )
        })?;
        info!(file = %path, limit = options.limit, "recording");
        Ok(Self { options, file })
    }

    pub(super) fn start(
        self,
        settings: &Settings,
        kernel: &kernel::StartReport,
        shared: &SharedState,
    ) -> anyhow::Result<Recorder> {
        let host = rustix::system::uname();
        let node = recording::NodeFacts {
            kernel: host.release().to_string_lossy().into_owned(),
            machine: host.machine().to_string_lossy().into_owned(),
            hooks: kernel.hooks.iter().map(|(hook, how)| ((*hook).into(), how.is_ok())).collect(),
        };
        let header = recording::Header::new(settings, node);
        let counters = Arc::new(recording::RecorderCounters::default());
        shared.metrics.watch_recording(counters.clone());
        Recorder::start(self.file, header, self.options.limit, counters)
            .context("cannot start the thread that writes the recording")
    }
}
