//! The recording, from the flag to the thread that writes.

use crate::{
    outputs::recording::{self, Recorder},
    sources::kernel,
};
use anyhow::Context;
use coroner_core::engine::Settings;
use std::{fs::File, path::Path};
use tracing::info;

/// Makes the file, before anything is attached, so that a wrong path fails early.
pub(super) fn prepare(file: &Path, limit: u64) -> anyhow::Result<File> {
    let path = file.display();
    let made = recording::create(file).with_context(|| {
        format!(
            "cannot record to {path}; create its directory, or choose another file with --record"
        )
    })?;
    info!(file = %path, limit, "recording");
    Ok(made)
}

pub(super) fn start(
    file: File,
    limit: u64,
    settings: &Settings,
    kernel: &kernel::StartReport,
) -> anyhow::Result<Recorder> {
    let host = rustix::system::uname();
    let node = recording::NodeFacts {
        kernel: host.release().to_string_lossy().into_owned(),
        machine: host.machine().to_string_lossy().into_owned(),
        hooks: kernel.hooks.iter().map(|(hook, how)| ((*hook).into(), how.is_ok())).collect(),
    };
    let header = recording::Header::new(settings, node);
    Recorder::start(file, header, limit)
        .context("cannot start the thread that writes the recording")
}
