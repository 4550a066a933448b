//! From flags and environment to what is run: single values are checked as they are parsed, here what contradicts each
//! other. Nothing binds or attaches before.

pub mod args;
pub mod parse;

use crate::{
    outputs::{events, http::tls},
    sources::{cri, host, kernel, kube, traffic::Attachment},
};
use args::{KubeletArgs, LeaksArgs, NodeArgs, RunArgs, SourceArgs};
use std::{path::PathBuf, time::Duration};

#[derive(Clone, Debug)]
pub struct Config {
    pub args: RunArgs,
    pub events: Option<events::EventOptions>,
    /// The kubelet's Events; `None`: not looked up.
    pub events_lookup: Option<kube::EventsOptions>,
    pub sources: Sources,
}

#[derive(Clone, Debug)]
pub struct Sources {
    pub kernel: kernel::KernelOptions,
    pub cri: cri::CriOptions,
    /// `None`: run without the apiserver.
    pub kube: Option<kube::KubeOptions>,
}

/// What a standalone `coroner leaks`, and `coroner doctor`, observe.
#[derive(Clone, Debug)]
pub struct StandaloneConfig {
    /// How long to observe, and how long a candidate must be observed before it is confirmed.
    pub threshold: Duration,
    pub kubelet: Vec<String>,
    /// Mount point of cgroup2; `None`: detected.
    pub cgroup_root: Option<PathBuf>,
    pub cri: cri::CriOptions,
    /// `None`: observe without the apiserver.
    pub kube: Option<kube::KubeOptions>,
}

// Contradictions, with the remedy.
const NO_NODE: &str = "the node's name is unknown; set --node NAME (in a DaemonSet: NODE_NAME from spec.nodeName), or use --no-api to run \
     without the apiserver";
const NO_NODE_TO_OBSERVE: &str = "the node's name is unknown; set --node NAME (see `kubectl get nodes`). Only the apiserver knows which of this node's \
     pods exist";
const NO_API_TO_READ: &str = "--no-api and --kubeconfig are mutually exclusive; remove one";
const NO_API_FOR_EVENTS: &str = "--events and --no-api are mutually exclusive (Events are written to the apiserver); remove one";

impl Config {
    pub fn of(args: RunArgs) -> Result<Self, &'static str> {
        let mut sources = Sources::of(&args.sources)?;
        let events = match (args.events, &sources.kube) {
            (true, None) => return Err(NO_API_FOR_EVENTS),
            (true, Some(api)) => Some(events::EventOptions::new(api)),
            (false, _) => None,
        };
        let lookup = args.events_lookup.0.zip(sources.kube.as_ref());
        let events_lookup = lookup.map(|(every, api)| kube::EventsOptions {
            kubeconfig: api.kubeconfig.clone(),
            every,
            node: api.node.clone(),
        });
        sources.kernel.counts_traffic = args.traffic != Attachment::Off;
        sources.cri.images = !args.audit_interval.is_zero();
        sources.cri.idle = args.cri_poll_interval;
        sources.cri.busy = sources.cri.busy.min(args.cri_poll_interval);
        Ok(Self { args, events, events_lookup, sources })
    }

    /// Certificate and key of the HTTP server; `None`: no TLS.
    pub fn tls(&self) -> Option<tls::TlsFiles> {
        let (cert, key) = (self.args.tls_cert.clone()?, self.args.tls_key.clone()?);
        Some(tls::TlsFiles { cert, key })
    }
}

impl StandaloneConfig {
    pub fn of(args: &LeaksArgs) -> Result<Self, &'static str> {
        Ok(Self {
            threshold: args.observe_for,
            kubelet: args.kubelet.names(),
            cgroup_root: args.node.cgroup_root.clone(),
            cri: runtime(&args.node),
            kube: Some(apiserver(&args.node).ok_or(NO_NODE_TO_OBSERVE)?),
        })
    }
}

impl KubeletArgs {
    pub fn names(&self) -> Vec<String> {
        match &self.kubelet_process {
            None => host::HostView::KUBELETS.map(str::to_owned).to_vec(),
            Some(name) => vec![name.clone()],
        }
    }
}

impl Sources {
    /// Those that `run` and `doctor` share.
    pub fn of(args: &SourceArgs) -> Result<Self, &'static str> {
        let kube = match (args.no_api, &args.node.kubeconfig) {
            (true, Some(_)) => return Err(NO_API_TO_READ),
            (true, None) => None,
            (false, _) => Some(apiserver(&args.node).ok_or(NO_NODE)?),
        };
        Ok(Self {
            kernel: kernel::KernelOptions {
                cgroup_root: args.node.cgroup_root.clone(),
                ring_bytes: args.ring_bytes,
                ..kernel::KernelOptions::default()
            },
            cri: runtime(&args.node),
            kube,
        })
    }
}

fn runtime(args: &NodeArgs) -> cri::CriOptions {
    cri::CriOptions { host_root: args.host_root.clone(), ..cri::CriOptions::new(args.cri.clone()) }
}

/// `None`: the node's name is unknown. NODE_NAME is the customary variable of a DaemonSet's downward API.
fn apiserver(args: &NodeArgs) -> Option<kube::KubeOptions> {
    let node_name = || std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    let node = args.node.clone().or_else(node_name)?;
    Some(kube::KubeOptions { kubeconfig: args.kubeconfig.clone(), ..kube::KubeOptions::new(&node) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use args::{Cli, Command};
    use clap::Parser;
    use coroner_core::{engine::Settings, time::Anchor};

    fn config(flags: &str) -> Result<Config, &'static str> {
        let words = ["coroner", "run"].into_iter().chain(flags.split_whitespace());
        match Cli::try_parse_from(words).expect("the flags parse").command {
            Command::Run(args) => Config::of(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_defaults_need_only_a_node() {
        let config = config("--node n1").unwrap();
        assert_eq!(config.sources.kube.unwrap().node, "n1");
        // Recordings without settings are replayed with the core's.
        let core = Settings::new(Anchor { boot_ns: 0, wall_ns: 0 });
        assert_eq!(config.args.leaks.leak_threshold, core.leak_threshold);
    }

    #[test]
    fn contradictions_are_refused() {
        for (flags, wanted) in [
            ("", NO_NODE),
            ("--no-api --kubeconfig /k", NO_API_TO_READ),
            ("--no-api --events", NO_API_FOR_EVENTS),
        ] {
            assert_eq!(config(flags).unwrap_err(), wanted, "{flags}");
        }
        for flags in ["--tls-cert /c", "--tls-key /k"] {
            let words = ["coroner", "run"].into_iter().chain(flags.split_whitespace());
            assert!(Cli::try_parse_from(words).is_err(), "HTTPS needs both: {flags}");
        }
    }
}
