//! `coroner version`.

use super::{output::document, print};
use crate::config::args::{TextOutput, VersionArgs};
use serde::Serialize;

#[derive(Serialize)]
struct VersionInfo {
    version: &'static str,
    /// Of the sources; `unknown` in a development build.
    commit: &'static str,
    /// The platform it was built for.
    target: &'static str,
    /// `release` or `debug`.
    profile: &'static str,
}

pub(super) fn main(args: &VersionArgs) -> anyhow::Result<()> {
    let version = VersionInfo {
        version: env!("CARGO_PKG_VERSION"),
        commit: env!("CORONER_COMMIT"),
        target: env!("CORONER_TARGET"),
        profile: if cfg!(debug_assertions) { "debug" } else { "release" },
    };
    print(&match args.output {
        TextOutput::Text => format!(
            "coroner {} (commit {}, {}, {})\n",
            version.version, version.commit, version.target, version.profile
        ),
        form => document(&version, form == TextOutput::Yaml)?,
    })
}
