//! The programs that try what is deployed: `cargo xtask setup` brings them, `cargo xtask test deploy`
//! names them.

use anyhow::{Result, bail};
use std::{
    env,
    path::{Path, PathBuf},
};

/// A program that a test of what is deployed needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tool {
    /// Checks alert rules and runs their unit tests.
    Promtool,
    /// Scrapes and answers queries.
    Prometheus,
    /// Renders manifests, and asks the lab's apiserver.
    Kubectl,
    /// Reads AppArmor profiles.
    ApparmorParser,
    /// Renders the chart, and installs it.
    Helm,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::Promtool => "promtool",
            Self::Prometheus => "prometheus",
            Self::Kubectl => "kubectl",
            Self::ApparmorParser => "apparmor_parser",
            Self::Helm => "helm",
        }
    }

    /// The variable that names it, such as `CORONER_PROMTOOL`.
    pub(crate) fn variable(self) -> String {
        format!("CORONER_{}", self.name().to_uppercase())
    }

    /// Where it is: where its variable says, or where set-up has put it. Never the machine's own by
    /// chance: that may be of any version.
    pub(crate) fn find(self) -> Result<PathBuf> {
        let (name, variable) = (self.name(), self.variable());
        let named = env::var_os(&variable).filter(|path| !path.is_empty()).map(PathBuf::from);
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools");
        // PyPI's tools have folders of their own.
        let folder = if self == Self::Helm { "helm/bin" } else { "bin" };
        let path = named.unwrap_or_else(|| tools.join(folder).join(name));
        if !path.is_file() {
            bail!(
                "{} is not there: `cargo xtask setup` brings {name}, or name one in {variable}",
                path.display()
            );
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_named_after_their_programs() {
        assert_eq!(Tool::Kubectl.variable(), "CORONER_KUBECTL");
    }
}
