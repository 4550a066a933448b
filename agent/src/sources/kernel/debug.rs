//! The programs' own diagnostics (aya-log) into tracing. Debug builds of the programs only.

use anyhow::anyhow;
use aya::Ebpf;
use aya_log::EbpfLogger;

/// The diagnostics; its owner flushes it now and then.
pub(super) type Diagnostics = EbpfLogger<ToTracing>;

pub(super) fn diagnostics(ebpf: &mut Ebpf) -> anyhow::Result<Diagnostics> {
    let logger = EbpfLogger::init_with_logger(ebpf, ToTracing);
    logger.map_err(|error| anyhow!("cannot read the diagnostics of the kernel programs: {error}"))
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
