//! The programs' own diagnostics (aya-log) into tracing. Debug builds of the programs only.

use super::StartError;
use aya::Ebpf;
use aya_log::EbpfLogger;
use std::io;

/// The diagnostics; whoever has it flushes it now and then.
pub(super) struct Diagnostics(EbpfLogger<ToTracing>);

impl Diagnostics {
    pub(super) fn of(ebpf: &mut Ebpf) -> Result<Self, StartError> {
        EbpfLogger::init_with_logger(ebpf, ToTracing)
            .map(Self)
            .map_err(|error| StartError::Diagnostics(io::Error::other(error)))
    }

    /// Hands on what the programs have said.
    pub(super) fn flush(&mut self) {
        self.0.flush();
    }
}

struct ToTracing;

impl log::Log for ToTracing {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let program = record.target();
        match record.level() {
            log::Level::Error => tracing::error!(program, "{}", record.args()),
            log::Level::Warn => tracing::warn!(program, "{}", record.args()),
            log::Level::Info => tracing::info!(program, "{}", record.args()),
            log::Level::Debug | log::Level::Trace => tracing::debug!(program, "{}", record.args()),
        }
    }

    fn flush(&self) {}
}
