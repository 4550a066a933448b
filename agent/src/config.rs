//! Validates flags and environment and returns a [`Config`]. Facts about the host are passed as a value, so that the
//! rules are pure. Nothing binds or attaches before validation.

pub mod args;

use crate::{
    config::args::{
        KubeletArgs, LeakArgs, LeaksArgs, NodeArgs, RunArgs, SourceArgs, TrafficCounting,
    },
    outputs::{events, http::tls, recording},
    sources::{cri, host, kernel, kube, traffic::Attachment},
};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// Bounds the memory; a report takes some kilobytes.
const MAX_HISTORY: usize = 100_000;
/// A shorter threshold would report the kubelet's normal cleanup as a leak.
const MIN_THRESHOLD: Duration = Duration::from_secs(1);
/// A longer threshold would report practically no leak.
const MAX_THRESHOLD: Duration = Duration::from_secs(7 * 24 * 3600);
/// Bounds the load on a Prometheus that scrapes all nodes.
const MAX_SERIES: usize = 10_000;
/// Likewise, of each metric by workload.
const MAX_WORKLOAD_SERIES: usize = 2_000;
/// Maximum length of a process name in /proc (`TASK_COMM_LEN` − 1).
const MAX_COMM: usize = 15;
/// A longer window would report terminations too late to be useful.
const MAX_SETTLE: Duration = Duration::from_secs(600);
/// A shorter interval would only load the runtime, because times come from the kernel.
const MIN_POLL: Duration = Duration::from_millis(10);
/// A cluster has thousands of agents.
const MIN_LOOKUP: Duration = Duration::from_secs(1);
/// The kernel refuses bigger rings than this on some versions, and no node needs them.
const MAX_RING: u32 = 1 << 30;

/// Configuration of `coroner run`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address of the HTTP server.
    pub listen: SocketAddr,
    /// Certificate and key of the HTTP server; `None`: no TLS.
    pub tls: Option<tls::TlsFiles>,
    /// The unix socket of the API, if there is one.
    pub socket: Option<PathBuf>,
    /// Address of the API on TCP, if there is one.
    pub api_listen: Option<SocketAddr>,
    /// Terminations kept for the HTTP API.
    pub history: usize,
    /// Series of each metric by workload; 0: by namespace only.
    pub workload_series: usize,
    /// The engine's settle window.
    pub settle: Duration,
    /// Stay unready if the kernel side cannot start.
    pub stay_unready: bool,
    /// The recording; `None`: disabled.
    pub record: Option<recording::RecorderOptions>,
    /// Leak detection.
    pub leaks: Leaks,
    /// Kubernetes Events; `None`: disabled.
    pub events: Option<events::EventOptions>,
    /// The sources.
    pub sources: Sources,
}

/// Configuration of leak detection.
#[derive(Clone, Debug)]
pub struct Leaks {
    /// How long a candidate must be observed before it is confirmed.
    pub threshold: Duration,
    /// Leaked sandboxes with a series of their own.
    pub series: usize,
    /// Directory for first-seen times.
    pub state_dir: Option<PathBuf>,
    /// Names of the kubelet's process.
    pub kubelet: Vec<String>,
}

/// The sources of evidence.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The kernel side.
    pub kernel: kernel::KernelOptions,
    /// The container runtime.
    pub cri: cri::CriOptions,
    /// The apiserver; `None`: run without it.
    pub kube: Option<kube::KubeOptions>,
    /// When the programs that count connections are attached.
    pub traffic: Attachment,
    /// The kubelet's Events; `None`: not looked up.
    pub events_lookup: Option<kube::EventsOptions>,
}

/// Configuration of a standalone `coroner leaks`, and of `coroner doctor`.
#[derive(Clone, Debug)]
pub struct StandaloneConfig {
    /// How long to observe, and how long a candidate must be observed before it is confirmed.
    pub threshold: Duration,
    /// Names of the kubelet's process.
    pub kubelet: Vec<String>,
    /// Mount point of cgroup2; `None`: detected.
    pub cgroup_root: Option<PathBuf>,
    /// The container runtime.
    pub cri: cri::CriOptions,
    /// The apiserver; `None`: observe without it.
    pub kube: Option<kube::KubeOptions>,
}

/// Facts about the host that validation needs.
#[derive(Clone, Debug)]
pub struct HostDefaults {
    /// `NODE_NAME`, the customary variable of a DaemonSet's downward API.
    pub node_name: Option<String>,
    /// Size of a page, bytes.
    pub page_size: u32,
    /// This is a debug build.
    pub debug_build: bool,
}

impl HostDefaults {
    /// Reads the facts of this host.
    pub fn probe() -> Self {
        Self {
            node_name: std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty()),
            page_size: u32::try_from(rustix::param::page_size()).unwrap_or(4096),
            debug_build: cfg!(debug_assertions),
        }
    }
}

/// An invalid configuration. Each message has the remedy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// No node name.
    #[error(
        "the node's name is unknown; set --node NAME (in a DaemonSet: NODE_NAME from \
         spec.nodeName), or use --no-api to run without the apiserver"
    )]
    NoNode,
    /// The same, where nothing can be done without the apiserver.
    #[error(
        "the node's name is unknown; set --node NAME (see `kubectl get nodes`). Only the \
         apiserver knows which of this node's pods exist"
    )]
    NoNodeToLookAt,
    /// Not a name that a Node object can have.
    #[error(
        "--node {0:?} is not a valid node name (at most 253 lower-case letters, digits, '-' and \
         '.'); see `kubectl get nodes`"
    )]
    BadNode(String),
    /// Not a socket's address.
    #[error("--runtime-endpoint: {0}")]
    Cri(#[from] cri::EndpointError),
    /// Contradiction.
    #[error("--no-api and --kubeconfig are mutually exclusive; remove one")]
    ApiAndNot,
    /// Contradiction.
    #[error(
        "--events and --no-api are mutually exclusive (Events are written to the apiserver); \
         remove one"
    )]
    EventsWithoutApi,
    /// A certificate without a key, or the other way round.
    #[error("--{given} requires --{missing}: HTTPS needs both")]
    HalfTls {
        /// The flag that was given.
        given: &'static str,
        /// The flag that was not.
        missing: &'static str,
    },
    /// A path that is not absolute.
    #[error("--{flag} {path:?} must be an absolute path")]
    Relative {
        /// The flag.
        flag: &'static str,
        /// What was given.
        path: PathBuf,
    },
    /// A ring size that the kernel would refuse.
    #[error(
        "--ring-bytes {given}: must be a power of two from {page_size} (one page) to {MAX_RING}; \
         try {nearest}"
    )]
    Ring {
        /// What was given.
        given: u32,
        /// Size of a page.
        page_size: u32,
        /// A size that would do.
        nearest: u32,
    },
    /// Programs are built without diagnostics.
    #[error(
        "--debug-bpf requires a debug build; the kernel programs of this build have no diagnostics"
    )]
    DebugBpf,
    /// Out of bounds.
    #[error("--{flag} {given:?}: must be between {MIN_THRESHOLD:?} and 7 days")]
    Threshold {
        /// The flag.
        flag: &'static str,
        /// What was given.
        given: Duration,
    },
    /// Out of bounds.
    #[error("--leak-series {0}: must be at most {MAX_SERIES}")]
    Series(usize),
    /// Not a process' name.
    #[error("--kubelet-process {0:?}: use the name from /proc/PID/comm, at most {MAX_COMM} bytes")]
    Kubelet(String),
    /// Too often.
    #[error("--events-lookup {0:?}: must be at least {MIN_LOOKUP:?}, or off")]
    Lookup(Duration),
    /// Out of bounds.
    #[error("--workload-metrics {0}: must be at most {MAX_WORKLOAD_SERIES}")]
    WorkloadSeries(usize),
    /// Out of bounds.
    #[error("--history-limit {0}: must be at most {MAX_HISTORY}")]
    History(usize),
    /// Out of bounds.
    #[error("--settle-window {0:?}: must be at most {MAX_SETTLE:?}")]
    Settle(Duration),
    /// Out of bounds.
    #[error(
        "--cri-poll-interval-active {busy:?} and --cri-poll-interval {idle:?}: both must be at least {MIN_POLL:?}, and \
         --cri-poll-interval-active no longer than --cri-poll-interval"
    )]
    Polls {
        /// What was given.
        busy: Duration,
        /// What was given.
        idle: Duration,
    },
}

impl Config {
    /// Validates the flags of `coroner run`.
    pub fn validate(args: &RunArgs, host: &HostDefaults) -> Result<Self, ConfigError> {
        let mut sources = Sources::validate(&args.sources, host)?;
        if args.debug_bpf && !host.debug_build {
            return Err(ConfigError::DebugBpf);
        }
        if args.history > MAX_HISTORY {
            return Err(ConfigError::History(args.history));
        }
        if args.workload_metrics > MAX_WORKLOAD_SERIES {
            return Err(ConfigError::WorkloadSeries(args.workload_metrics));
        }
        if args.settle > MAX_SETTLE {
            return Err(ConfigError::Settle(args.settle));
        }
        let (busy, idle) = (args.cri_busy, args.cri_idle);
        if busy < MIN_POLL || busy > idle {
            return Err(ConfigError::Polls { busy, idle });
        }
        let events = match (args.events, &sources.kube) {
            (true, Some(api)) => Some(events::EventOptions::new(api)),
            (true, None) => return Err(ConfigError::EventsWithoutApi),
            (false, _) => None,
        };
        let leaks = Leaks::validate(&args.leaks)?;
        let socket = Some(args.socket.clone()).filter(|path| path != Path::new("off"));
        if let Some(path) = socket.clone().filter(|path| path.is_relative()) {
            return Err(ConfigError::Relative { flag: "socket", path });
        }
        sources.events_lookup = match (args.events_lookup.0, &sources.kube) {
            (Some(every), _) if every < MIN_LOOKUP => return Err(ConfigError::Lookup(every)),
            (Some(every), Some(api)) => {
                let (kubeconfig, node) = (api.kubeconfig.clone(), api.node.clone());
                Some(kube::EventsOptions { kubeconfig, every, node })
            }
            _ => None,
        };
        sources.kernel.debug_bpf = args.debug_bpf;
        sources.traffic = args.traffic.into();
        sources.kernel.counts_traffic = sources.traffic != Attachment::Off;
        sources.cri.busy = busy;
        sources.cri.idle = idle;
        sources.cri.events = args.cri_events;
        Ok(Self {
            listen: args.listen,
            tls: tls_files(args)?,
            socket,
            api_listen: args.api_listen.0,
            history: args.history,
            workload_series: args.workload_metrics,
            settle: args.settle,
            stay_unready: args.stay_unready,
            record: args
                .record
                .clone()
                .map(|file| recording::RecorderOptions { file, limit: args.record_limit.into() }),
            leaks,
            events,
            sources,
        })
    }
}

fn tls_files(args: &RunArgs) -> Result<Option<tls::TlsFiles>, ConfigError> {
    let (cert, key) = (args.tls_cert.clone(), args.tls_key.clone());
    let half = |given, missing| Err(ConfigError::HalfTls { given, missing });
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(tls::TlsFiles { cert, key })),
        (Some(_), None) => half("tls-cert", "tls-key"),
        (None, Some(_)) => half("tls-key", "tls-cert"),
        (None, None) => Ok(None),
    }
}

impl From<TrafficCounting> for Attachment {
    fn from(given: TrafficCounting) -> Self {
        match given {
            TrafficCounting::OnDemand => Self::OnDemand,
            TrafficCounting::Always => Self::Always,
            TrafficCounting::Off => Self::Off,
        }
    }
}

impl Leaks {
    fn validate(args: &LeakArgs) -> Result<Self, ConfigError> {
        let threshold = threshold("leak-threshold", args.leak_threshold)?;
        if args.leak_series > MAX_SERIES {
            return Err(ConfigError::Series(args.leak_series));
        }
        let (state_dir, kubelet) = (args.state_dir.clone(), kubelet(&args.kubelet)?);
        Ok(Self { threshold, series: args.leak_series, state_dir, kubelet })
    }
}

fn threshold(flag: &'static str, given: Duration) -> Result<Duration, ConfigError> {
    match (MIN_THRESHOLD..=MAX_THRESHOLD).contains(&given) {
        true => Ok(given),
        false => Err(ConfigError::Threshold { flag, given }),
    }
}

/// The names of the kubelet's process.
fn kubelet(args: &KubeletArgs) -> Result<Vec<String>, ConfigError> {
    match &args.kubelet_process {
        None => Ok(host::HostView::KUBELETS.map(str::to_owned).to_vec()),
        Some(name) if name.is_empty() || name.len() > MAX_COMM => {
            Err(ConfigError::Kubelet(name.clone()))
        }
        Some(name) => Ok(vec![name.clone()]),
    }
}

impl StandaloneConfig {
    /// Validates the flags of a standalone `coroner leaks`.
    pub fn validate(args: &LeaksArgs, host: &HostDefaults) -> Result<Self, ConfigError> {
        let kube = apiserver(&args.node, host)?.ok_or(ConfigError::NoNodeToLookAt)?;
        Ok(Self {
            threshold: threshold("for", args.observe_for)?,
            kubelet: kubelet(&args.kubelet)?,
            cgroup_root: args.node.cgroup_root.clone(),
            cri: runtime(&args.node)?,
            kube: Some(kube),
        })
    }
}

impl Sources {
    /// Validates the flags that `run` and `doctor` share.
    pub fn validate(args: &SourceArgs, host: &HostDefaults) -> Result<Self, ConfigError> {
        let ring = args.ring_bytes;
        if !ring.is_power_of_two() || ring < host.page_size || ring > MAX_RING {
            let nearest = ring.clamp(host.page_size, MAX_RING).next_power_of_two();
            return Err(ConfigError::Ring { given: ring, page_size: host.page_size, nearest });
        }
        Ok(Self {
            kernel: kernel::KernelOptions {
                cgroup_root: args.node.cgroup_root.clone(),
                ring_bytes: ring,
                ..kernel::KernelOptions::default()
            },
            cri: runtime(&args.node)?,
            events_lookup: None,
            kube: api(args, host)?,
            traffic: Attachment::default(),
        })
    }
}

/// The container runtime, and the host's file systems.
fn runtime(args: &NodeArgs) -> Result<cri::CriOptions, ConfigError> {
    absolute("host-root", &args.host_root)?;
    if let Some(root) = &args.cgroup_root {
        absolute("cgroup-root", root)?;
    }
    let endpoint = args.cri.as_deref().map(cri::parse_endpoint).transpose()?;
    Ok(cri::CriOptions { host_root: args.host_root.clone(), ..cri::CriOptions::new(endpoint) })
}

fn absolute(flag: &'static str, path: &Path) -> Result<(), ConfigError> {
    if path.is_absolute() {
        return Ok(());
    }
    Err(ConfigError::Relative { flag, path: path.to_owned() })
}

fn api(args: &SourceArgs, host: &HostDefaults) -> Result<Option<kube::KubeOptions>, ConfigError> {
    if args.no_api {
        if args.node.kubeconfig.is_some() {
            return Err(ConfigError::ApiAndNot);
        }
        return Ok(None);
    }
    apiserver(&args.node, host)?.ok_or(ConfigError::NoNode).map(Some)
}

/// `None`: the node's name is unknown.
fn apiserver(
    args: &NodeArgs,
    host: &HostDefaults,
) -> Result<Option<kube::KubeOptions>, ConfigError> {
    let Some(node) = args.node.as_ref().or(host.node_name.as_ref()) else { return Ok(None) };
    if !is_node_name(node) {
        return Err(ConfigError::BadNode(node.clone()));
    }
    Ok(Some(kube::KubeOptions {
        kubeconfig: args.kubeconfig.clone(),
        ..kube::KubeOptions::new(node)
    }))
}

/// A DNS subdomain (RFC 1123), as `ValidateNodeName` has it
/// (kubernetes `pkg/apis/core/validation/validation.go`).
fn is_node_name(name: &str) -> bool {
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.len() <= 253
        && name.split('.').all(|part| {
            let bytes = part.as_bytes();
            bytes.first().is_some_and(|b| letter(*b))
                && bytes.last().is_some_and(|b| letter(*b))
                && bytes.iter().all(|b| letter(*b) || *b == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::args::{Cli, Command};
    use clap::Parser;
    use coroner_core::{engine::Settings, time::Anchor};

    /// A host on which everything works.
    fn host() -> HostDefaults {
        HostDefaults { node_name: None, page_size: 4096, debug_build: true }
    }

    fn validate(flags: &str, host: &HostDefaults) -> Result<Config, ConfigError> {
        let words = ["coroner", "run"].into_iter().chain(flags.split_whitespace());
        match Cli::try_parse_from(words).expect("the flags parse").command {
            Command::Run(args) => Config::validate(&args, host),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_defaults_need_only_a_node() {
        let config = validate("--node n1", &host()).unwrap();
        assert_eq!(config.sources.cri.endpoint, None, "found at run time");
        assert_eq!(config.sources.cri.idle, Duration::from_secs(10));
        assert_eq!(config.sources.kernel.ring_bytes, 1 << 20);
        assert_eq!(config.sources.kube.unwrap().node, "n1");
        assert!(config.events.is_none());
        assert_eq!(config.history, 256);
        // Recordings without settings are replayed with the core's.
        let core = Settings::new(Anchor { boot_ns: 0, wall_ns: 0 });
        assert_eq!((config.settle, config.leaks.threshold), (core.settle, core.leak_threshold));
    }

    #[test]
    fn the_flag_comes_before_the_environment() {
        let host = HostDefaults { node_name: Some("env".into()), ..host() };
        let node = |flags| validate(flags, &host).unwrap().sources.kube.unwrap().node;
        assert_eq!(node(""), "env");
        assert_eq!(node("--node flag"), "flag");
    }

    #[test]
    fn both_forms_of_an_endpoint_are_one() {
        for given in ["/run/x.sock", "unix:///run/x.sock"] {
            let config =
                validate(&format!("--no-api --runtime-endpoint {given}"), &host()).unwrap();
            assert_eq!(config.sources.cri.endpoint.as_deref(), Some(Path::new("/run/x.sock")));
            assert!(config.sources.kube.is_none());
        }
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let bare = HostDefaults { debug_build: false, ..host() };
        let ms = Duration::from_millis;
        let cases = [
            ("", &host(), ConfigError::NoNode),
            ("--node Node_1", &host(), ConfigError::BadNode("Node_1".into())),
            ("--node a..b", &host(), ConfigError::BadNode("a..b".into())),
            ("--no-api --kubeconfig /k", &host(), ConfigError::ApiAndNot),
            ("--no-api --events", &host(), ConfigError::EventsWithoutApi),
            (
                "--no-api --runtime-endpoint tcp://h:1",
                &bare,
                cri::EndpointError::Scheme("tcp://h:1".into()).into(),
            ),
            (
                "--no-api --runtime-endpoint run/x.sock",
                &bare,
                cri::EndpointError::Relative("run/x.sock".into()).into(),
            ),
            ("--no-api --runtime-endpoint /x --debug-bpf", &bare, ConfigError::DebugBpf),
            (
                "--no-api --host-root host",
                &host(),
                ConfigError::Relative { flag: "host-root", path: "host".into() },
            ),
            (
                "--no-api --cgroup-root cg",
                &host(),
                ConfigError::Relative { flag: "cgroup-root", path: "cg".into() },
            ),
            (
                "--no-api --ring-bytes 5000",
                &host(),
                ConfigError::Ring { given: 5000, page_size: 4096, nearest: 8192 },
            ),
            (
                "--no-api --ring-bytes 2048",
                &host(),
                ConfigError::Ring { given: 2048, page_size: 4096, nearest: 4096 },
            ),
            (
                "--no-api --ring-bytes 4095MiB",
                &host(),
                ConfigError::Ring { given: 4095 << 20, page_size: 4096, nearest: 1 << 30 },
            ),
            (
                "--no-api --leak-threshold 999ms",
                &host(),
                ConfigError::Threshold { flag: "leak-threshold", given: ms(999) },
            ),
            (
                "--no-api --tls-cert /c",
                &host(),
                ConfigError::HalfTls { given: "tls-cert", missing: "tls-key" },
            ),
            (
                "--no-api --tls-key /k",
                &host(),
                ConfigError::HalfTls { given: "tls-key", missing: "tls-cert" },
            ),
            (
                "--no-api --events-lookup 10ms",
                &host(),
                ConfigError::Lookup(Duration::from_millis(10)),
            ),
            ("--no-api --leak-series 10001", &host(), ConfigError::Series(10_001)),
            (
                "--no-api --kubelet-process a-name-of-16-chars",
                &host(),
                ConfigError::Kubelet("a-name-of-16-chars".into()),
            ),
            ("--no-api --history-limit 100001", &host(), ConfigError::History(100_001)),
            ("--no-api --workload-metrics 2001", &host(), ConfigError::WorkloadSeries(2_001)),
            (
                "--no-api --settle-window 601s",
                &host(),
                ConfigError::Settle(Duration::from_secs(601)),
            ),
            (
                "--no-api --cri-poll-interval-active 1ms",
                &host(),
                ConfigError::Polls { busy: ms(1), idle: ms(10_000) },
            ),
            (
                "--no-api --cri-poll-interval-active 2s --cri-poll-interval 1s",
                &host(),
                ConfigError::Polls { busy: ms(2000), idle: ms(1000) },
            ),
        ];
        for (flags, host, wanted) in cases {
            assert_eq!(validate(flags, host).unwrap_err(), wanted, "{flags}");
        }
    }

    #[test]
    fn where_the_api_is_served() {
        let config = validate("--no-api", &host()).unwrap();
        assert_eq!(config.socket.as_deref(), Some(Path::new("/run/coroner/coroner.sock")));
        assert_eq!(config.api_listen, Some("127.0.0.1:9471".parse().unwrap()));
        let config = validate("--no-api --socket off --api-listen off", &host()).unwrap();
        assert_eq!((config.socket, config.api_listen), (None, None));
        let wanted = ConfigError::Relative { flag: "socket", path: "a.sock".into() };
        assert_eq!(validate("--no-api --socket a.sock", &host()).unwrap_err(), wanted);
    }

    #[test]
    fn the_smallest_and_the_biggest_are_taken() {
        let flags = "--no-api --ring-bytes 4096 --history-limit 0 --settle-window 0s --cri-poll-interval-active 10ms \
                     --cri-poll-interval 10ms";
        assert!(validate(flags, &host()).is_ok());
        assert!(validate("--no-api --ring-bytes 1024MiB --history-limit 100000", &host()).is_ok());
    }
}
