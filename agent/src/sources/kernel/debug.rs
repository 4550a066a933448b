//! The programs' own diagnostics (aya-log) into tracing. Debug builds of the programs only.

use super::StartError;
use aya::Ebpf;
use aya_log::EbpfLogger;
use std::io;

/// The diagnostics; its owner flushes it now and then.
pub(super) type Diagnostics = EbpfLogger<ToTracing>;

pub(super) fn diagnostics(ebpf: &mut Ebpf) -> Result<Diagnostics, StartError> {
    EbpfLogger::init_with_logger(ebpf, ToTracing)
        .map_err(|error| StartError::Diagnostics(io::Error::other(error)))
}

pub(super) struct ToTracing;

impl log::Log for ToTracing {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let program = record.target();
        tracing::debug!(program, level = %record.level(), "{}", record.args());
    }

    fn flush(&self) {}
}
