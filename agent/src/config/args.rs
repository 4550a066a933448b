//! Command-line flags and their environment variables. What contradicts itself is refused in [`crate::config`].

use super::parse::{self, OrOff};
use crate::outputs::{http::DEFAULT_SOCKET, log::LogFormat, metrics, otlp::Endpoint};
use crate::sources::{cri::parse_endpoint, traffic::Attachment};
use clap::{
    Args, Parser, Subcommand, ValueEnum,
    builder::{BoolishValueParser, RangedU64ValueParser},
};
use coroner_report::{Cause, FindingKind, LeakCause, SortBy, StopResponse, Verdict};

use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// With the commit of the sources (`unknown` in a development build) and the platform it was built for.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("CORONER_COMMIT"),
    ", ",
    env!("CORONER_TARGET"),
    ")"
);

/// Measure pod terminations on this node: how long they take, how containers died, and the evidence.
#[derive(Parser, Debug)]
#[command(
    name = "coroner",
    version,
    long_version = LONG_VERSION,
    max_term_width = 100,
    after_help = "Each flag can also be set by the environment variable shown with it.\n\
                  Exit status: 0 success, 1 error, 64 usage error."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Observe this node until SIGTERM or SIGINT.
    Run(RunArgs),
    /// Check whether `run` works on this node, and how to fix what does not.
    Doctor(DoctorArgs),
    /// List recent pod terminations from a running agent, newest first.
    Terminations(ListArgs),
    /// List recent container deaths from a running agent, newest first, including those in pods that still run.
    Deaths(ListArgs),
    /// List leaked pod resources on this node and why they leaked (from the agent, or --standalone).
    Leaks(LeaksArgs),
    /// List how the main process of each running container will respond to its stop signal, and what to change.
    Audit(AuditArgs),
    /// Explain one pod's termination: the request, each container's exit with its evidence, and the time per
    /// phase.
    Explain(ExplainArgs),
    /// Replay a recording and print the agent's original output.
    Replay(ReplayArgs),
    /// Print a completion script for a shell, for example `source <(coroner completion bash)`.
    Completion(CompletionArgs),
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// Log format.
    #[arg(long, global = true, env = "CORONER_LOG_FORMAT", value_name = "FORMAT")]
    #[arg(default_value = "text")]
    pub log_format: LogFormat,
    /// Log level, or tracing directives such as `info,coroner::sources::cri=debug`. Libraries log only if a
    /// directive names them, such as `info,hyper=debug`. Falls back to RUST_LOG [default: info for `run`, error
    /// for the others].
    #[arg(long, global = true, env = "CORONER_LOG_LEVEL", value_name = "FILTER")]
    pub log_level: Option<String>,
}

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sources of evidence")]
pub struct NodeArgs {
    /// Name of this node's Node object [default: $NODE_NAME].
    #[arg(long, env = "CORONER_NODE", value_name = "NAME", value_parser = parse::node_name)]
    pub node: Option<String>,
    /// Kubeconfig for the apiserver [default: $KUBECONFIG, ~/.kube/config, or the service account].
    #[arg(long, env = "CORONER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Socket of the container runtime: a path on the host (below --host-root), or unix:///path [default:
    /// found; the known sockets of containerd, CRI-O, cri-dockerd, k3s, RKE2, k0s, MicroK8s and others are
    /// tried, and of several runtimes the one that runs this node's pods is taken].
    #[arg(long = "runtime-endpoint", env = "CORONER_RUNTIME_ENDPOINT", value_name = "ENDPOINT")]
    #[arg(value_parser = parse_endpoint)]
    pub cri: Option<PathBuf>,
    /// Mount point of cgroup v2 [default: detected].
    #[arg(long, env = "CORONER_CGROUP_ROOT", value_name = "DIR", value_parser = parse::absolute)]
    pub cgroup_root: Option<PathBuf>,
    /// Mount point of the host's root file system.
    #[arg(long, env = "CORONER_HOST_ROOT", value_name = "DIR", default_value = "/")]
    #[arg(value_parser = parse::absolute)]
    pub host_root: PathBuf,
}

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sources of evidence")]
pub struct SourceArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// Run without the apiserver, for a trial: deletion requests and the removal of pod objects are then
    /// unknown.
    #[arg(long, env = "CORONER_NO_API", value_parser = BoolishValueParser::new())]
    pub no_api: bool,
    /// Size of each of the two ring buffers in bytes, KiB or MiB: a power of two, at least one page.
    #[arg(long, env = "CORONER_RING_BYTES", value_name = "SIZE", default_value = "1MiB")]
    #[arg(value_parser = parse::ring_bytes)]
    pub ring_bytes: u32,
}

#[derive(Args, Clone, Debug)]
pub struct AgentArgs {
    /// Unix socket of the running agent.
    #[arg(long, env = "CORONER_SOCKET", value_name = "FILE", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
}

/// As kubectl has it; all namespaces are the default.
#[derive(Args, Clone, Debug)]
pub struct Namespaces {
    /// Only pods of this namespace.
    #[arg(short, long, env = "CORONER_NAMESPACE", value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Pods of all namespaces: the default, unless CORONER_NAMESPACE is set.
    #[arg(short = 'A', long, env = "CORONER_ALL_NAMESPACES", value_parser = BoolishValueParser::new())]
    pub all_namespaces: bool,
}

impl Namespaces {
    /// `None`: all.
    pub fn chosen(&self) -> Option<&str> {
        self.namespace.as_deref().filter(|_| !self.all_namespaces)
    }
}

#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Address of the metrics and health endpoints. Port 0 selects a free port and logs it; `[::]` listens on
    /// all IPv6 and IPv4 addresses.
    #[arg(long, env = "CORONER_LISTEN", value_name = "ADDRESS:PORT")]
    #[arg(default_value = "[::]:9470", value_parser = parse::address)]
    pub listen: SocketAddr,
    /// Serve HTTPS with this certificate (PEM: the server's certificate, then its intermediates). Reloaded
    /// when the file changes; if the new certificate is invalid, the agent keeps the current one.
    #[arg(long, env = "CORONER_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM, unencrypted).
    #[arg(long, env = "CORONER_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Unix socket of the API, accessible to this user only. `coroner terminations`, `leaks` and `explain` use
    /// it. Its folder must exist, unless it is the default. `off` disables it.
    #[arg(long, env = "CORONER_SOCKET", value_name = "FILE", default_value = DEFAULT_SOCKET)]
    #[arg(value_parser = |text: &str| parse::or_off(text, parse::absolute))]
    pub socket: OrOff<PathBuf>,
    /// Address of the API for `kubectl port-forward`, on the loopback interface. With hostNetwork, every user on
    /// the node can connect to it. `off` disables it.
    #[arg(long, env = "CORONER_API_LISTEN", value_name = "ADDRESS:PORT")]
    #[arg(default_value = "127.0.0.1:9471")]
    #[arg(value_parser = |text: &str| parse::or_off(text, parse::address))]
    pub api_listen: OrOff<SocketAddr>,
    /// How long terminations, deaths and leaks are kept in the state directory. 0 keeps nothing there: the agent then has
    /// the latest in memory.
    #[arg(long, env = "CORONER_HISTORY_AGE", value_name = "DURATION", default_value = "7d")]
    #[arg(value_parser = parse::age)]
    pub history_age: Duration,
    /// Maximum size of the history on disk, at least 1MiB. The oldest entries make room.
    #[arg(long, env = "CORONER_HISTORY_SIZE", value_name = "SIZE", default_value = "64MiB")]
    #[arg(value_parser = parse::history_size)]
    pub history_size: u32,
    /// Interval of full lists from the runtime while no pod is terminating, at least 10ms.
    #[arg(long, env = "CORONER_CRI_POLL_INTERVAL", value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = |text: &str| parse::duration_from(text, Duration::from_millis(10)))]
    pub cri_poll_interval: Duration,
    /// Record all inputs to this file, for `coroner replay` and bug reports. It contains no environment
    /// variables and no command lines, and only the labels and annotations that docs/recording.md lists. An
    /// existing file is renamed to FILE.old.
    #[arg(long, env = "CORONER_RECORD", value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Maximum size of the recording. At this size recording stops and the agent continues.
    #[arg(long, env = "CORONER_RECORD_LIMIT", value_name = "SIZE", default_value = "256MiB")]
    #[arg(value_parser = parse::size)]
    pub record_limit: u32,
    /// If the kernel programs cannot be attached, do not exit: stay unready, show the reason on /readyz, and retry
    /// every 30 s. Avoids a crash loop in a DaemonSet.
    #[arg(long, env = "CORONER_KEEP_RUNNING_UNREADY", value_parser = BoolishValueParser::new())]
    pub keep_running_unready: bool,
    /// Create Kubernetes Events for notable deaths (on the pod: StopSignalIgnored, GraceExceeded, OomKilled, …)
    /// and for leaks (on the Node); see docs/events.md. Requires create and patch of events in the API group
    /// events.k8s.io.
    #[arg(long, env = "CORONER_EVENTS", value_parser = BoolishValueParser::new())]
    pub events: bool,
    /// How often, on average and at most once a second, the Events of one pod are listed to prove why the kubelet stopped its container. Requires
    /// list of events, which the chart grants. `off` does without.
    #[arg(long, env = "CORONER_EVENTS_LOOKUP", value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = |text: &str| parse::or_off(text, |text| parse::duration_from(text, Duration::from_secs(1))))]
    pub events_lookup: OrOff<Duration>,
    /// When to count the connections of pods: while a pod terminates, always (which adds a small cost to each
    /// connection of the node), or never. Without the apiserver, on-demand misses processes that exit within 20 ms of
    /// their stop signal.
    #[arg(long, env = "CORONER_TRAFFIC", value_name = "WHEN", default_value = "on-demand")]
    pub traffic: Attachment,
    /// Number of series in each metric by workload; the series that was counted least recently makes room for a new one.
    /// 0 counts by namespace only; at most 2000.
    #[arg(long, env = "CORONER_WORKLOAD_METRICS", value_name = "N", default_value_t = metrics::SERIES)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(..=2_000))]
    pub workload_metrics: usize,
    /// Send each termination as a trace and a log record to this receiver of OTLP: http://HOST:PORT or https://HOST:PORT
    /// [default: $OTEL_EXPORTER_OTLP_ENDPOINT; without it, nothing is sent]. docs/export.md lists the other variables.
    #[arg(long, env = "CORONER_OTLP_ENDPOINT", value_name = "URL", hide_env_values = true)]
    pub otlp_endpoint: Option<Endpoint>,
    /// How often the main process of each running container is read in /proc, to report how it will respond to its stop
    /// signal (`coroner audit`). 0 reads nothing of the kind.
    #[arg(long, env = "CORONER_AUDIT_INTERVAL", value_name = "DURATION", default_value = "5m")]
    #[arg(value_parser = parse::age)]
    pub audit_interval: Duration,
    /// How old a container must be for that.
    #[arg(long, env = "CORONER_AUDIT_AGE", value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = parse::age)]
    pub audit_age: Duration,
    #[command(flatten)] // these two last: a heading applies to all flags after it
    pub leaks: LeakArgs,
    #[command(flatten)]
    pub sources: SourceArgs,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Leaks")]
pub struct KubeletArgs {
    /// Process name of the kubelet (comm, at most 15 bytes) [default: kubelet, k3s-server, k3s-agent, kubelite,
    /// microshift].
    #[arg(long, env = "CORONER_KUBELET_PROCESS", value_name = "NAME", value_parser = parse::comm)]
    pub kubelet_process: Option<String>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Leaks")]
pub struct LeakArgs {
    /// How long a candidate must be observed before it is a confirmed leak. Counts only while pod watch,
    /// runtime and Node object are in sync; an outage pauses it.
    #[arg(long, env = "CORONER_LEAK_THRESHOLD", value_name = "DURATION", default_value = "5m")]
    #[arg(value_parser = parse::threshold)]
    pub leak_threshold: Duration,
    #[command(flatten)]
    pub kubelet: KubeletArgs,
    /// Directory of the history: terminations, deaths, and leaks with the times since which they have been observed, so
    /// that they survive a restart of the agent. Created if missing. Without it the history is in memory.
    #[arg(long, env = "CORONER_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Output format.
    #[arg(short, long, env = "CORONER_OUTPUT", value_name = "FORM", default_value = "text")]
    pub output: TextOutput,
    #[command(flatten)]
    pub sources: SourceArgs,
}

/// What every list is filtered by.
#[derive(Args, Clone, Debug)]
pub struct TimeArgs {
    /// Only what ended since then: within this time (30m, 1h, 2d), or since 2026-11-28T02:00:00Z. Of leaks, what was
    /// confirmed since then, and also what was resolved.
    #[arg(long, env = "CORONER_SINCE", value_name = "TIME", value_parser = parse::time)]
    pub since: Option<String>,
    /// Only what ended before then, given in the same ways.
    #[arg(long, env = "CORONER_UNTIL", value_name = "TIME", value_parser = parse::time)]
    pub until: Option<String>,
    /// Only of this workload, as web or Deployment/web.
    #[arg(long, env = "CORONER_WORKLOAD", value_name = "WORKLOAD")]
    pub workload: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Only pods of this name.
    #[arg(value_name = "POD")]
    pub pod: Option<String>,
    #[command(flatten)]
    pub namespaces: Namespaces,
    #[command(flatten)]
    pub time: TimeArgs,
    /// Only of this container.
    #[arg(long, env = "CORONER_CONTAINER", value_name = "NAME")]
    pub container: Option<String>,
    /// Only with this verdict; of pods, with a container that has it.
    #[arg(long, env = "CORONER_VERDICT", hide_possible_values = true, value_parser = parse::labels(Verdict::ALL, Verdict::as_str))]
    pub verdict: Option<Verdict>,
    /// Only with this cause.
    #[arg(long, env = "CORONER_CAUSE", hide_possible_values = true, value_parser = parse::labels(Cause::ALL, Cause::as_str))]
    pub cause: Option<Cause>,
    /// Only with this finding.
    #[arg(long, env = "CORONER_FINDING", hide_possible_values = true, value_parser = parse::labels(FindingKind::ALL, FindingKind::as_str))]
    pub finding: Option<FindingKind>,
    /// Only what took longer than this (60s, 2m); of a death, from the start of its stop.
    #[arg(long, env = "CORONER_OVER", value_name = "DURATION", value_parser = parse::duration)]
    pub over: Option<Duration>,
    /// What comes first: what ended last, or what took longest [default: ended].
    #[arg(long, env = "CORONER_SORT_BY", conflicts_with = "watch")]
    #[arg(value_parser = parse::labels(SortBy::ALL, SortBy::as_str))]
    pub sort_by: Option<SortBy>,
    /// Maximum number of entries to show [default: 500].
    #[arg(long, env = "CORONER_LIMIT", value_name = "N", conflicts_with = "watch")]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub limit: Option<usize>,
    /// Run until Ctrl-C: print the existing entries, oldest first, then each new one and each update.
    #[arg(short, long, env = "CORONER_WATCH", value_parser = BoolishValueParser::new())]
    pub watch: bool,
    /// Output format.
    #[arg(short, long, env = "CORONER_OUTPUT", value_name = "FORM", default_value = "table")]
    pub output: ListOutput,
}

#[derive(Args, Clone, Debug)]
pub struct AuditArgs {
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Only pods of this name.
    #[arg(value_name = "POD")]
    pub pod: Option<String>,
    #[command(flatten)]
    pub namespaces: Namespaces,
    /// Only pods of this workload, as `web` or `Deployment/web`.
    #[arg(long, env = "CORONER_WORKLOAD", value_name = "WORKLOAD")]
    pub workload: Option<String>,
    /// Only of this container.
    #[arg(long, env = "CORONER_CONTAINER", value_name = "NAME")]
    pub container: Option<String>,
    /// Only containers with this response.
    #[arg(long, env = "CORONER_RESPONSE", value_parser = parse::labels(StopResponse::ALL, StopResponse::as_str))]
    pub response: Option<StopResponse>,
    /// Output format.
    #[arg(short, long, env = "CORONER_OUTPUT", value_name = "FORM", default_value = "table")]
    pub output: AuditOutput,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuditOutput {
    /// A table: one line for each workload and container.
    #[value(alias = "text")]
    Table,
    /// A table with the reason, the warnings and what to change.
    Wide,
    /// One JSON document, in the form of the API: one item for each container.
    Json,
    /// The same as YAML; control characters in names are escaped.
    Yaml,
    /// One name per line.
    Name,
    /// One `kubectl patch` for each workload of which a change of the pod's spec is known to help.
    Patch,
}

#[derive(Args, Clone, Debug)]
pub struct CompletionArgs {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = LEAKS_HELP)]
pub struct LeaksArgs {
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Do not query an agent: observe runtime, apiserver and host for --for, without eBPF. What looked leaked for all
    /// of this time is a leak, the rest are candidates.
    #[arg(long, env = "CORONER_STANDALONE", value_parser = BoolishValueParser::new())]
    #[arg(conflicts_with_all = ["until", "workload", "cause"])]
    pub standalone: bool,
    /// How long --standalone observes. An outage of a source pauses it.
    #[arg(long = "for", env = "CORONER_FOR", value_name = "DURATION", default_value = "2m")]
    #[arg(value_parser = parse::threshold)]
    pub observe_for: Duration,
    #[command(flatten)]
    pub namespaces: Namespaces,
    /// Output format.
    #[arg(short, long, env = "CORONER_OUTPUT", value_name = "FORM", default_value = "table")]
    pub output: ListOutput,
    #[command(flatten)]
    pub time: TimeArgs,
    /// Only with this cause.
    #[arg(long, env = "CORONER_CAUSE", hide_possible_values = true, value_parser = parse::labels(LeakCause::ALL, LeakCause::as_str))]
    pub cause: Option<LeakCause>,
    /// Show details of each leak below the table: evidence, likely cause, remedy.
    #[arg(short, long, env = "CORONER_VERBOSE", value_parser = BoolishValueParser::new())]
    pub verbose: bool,
    /// The kubelet's log (`-` for stdin), in klog's text or JSON, also as journalctl prints it: its lines that state why
    /// something is not removed are quoted below each leak. Implies --verbose, decides nothing.
    #[arg(long, env = "CORONER_KUBELET_LOG", value_name = "FILE")]
    pub kubelet_log: Option<PathBuf>,
    /// Exit with status 3 if any leak is confirmed, and with 1 if the agent has not observed for long enough to know.
    #[arg(long, env = "CORONER_EXIT_CODE", value_parser = BoolishValueParser::new())]
    pub exit_code: bool,
    #[command(flatten)]
    pub kubelet: KubeletArgs,
    #[command(flatten)]
    pub node: NodeArgs,
}

const LEAKS_HELP: &str = "\
Examples:
  coroner leaks -v                             leaks of the agent on this node, with evidence
  coroner leaks --standalone --node n1 -v      without an agent, after two minutes
  coroner leaks --exit-code >/dev/null         for scripts

Exit status: 0 success; 1 error, or leak detection is suspended; 3 with --exit-code if any leak is
confirmed (candidates do not count); 64 usage error.
docs/leaks.md describes each class and its evidence.";

#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    /// The pod: NAME, NAMESPACE/NAME or UID. Optional if only one pod terminated.
    #[arg(value_name = "POD")]
    pub pod: Option<String>,
    /// Read this recording (`-` for stdin) instead of querying an agent.
    #[arg(long, env = "CORONER_FROM", value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Read the built-in sample recording: needs no agent, no node and no privileges. Without POD it shows one
    /// of its pods.
    #[arg(long, env = "CORONER_SAMPLE", value_parser = BoolishValueParser::new())]
    #[arg(conflicts_with = "from")]
    pub sample: bool,
    #[command(flatten)]
    pub namespaces: Namespaces,
    /// The kubelet's log around the termination (`-` for stdin), in klog's text or JSON, also as journalctl prints it:
    /// shows the kubelet's stages, and quotes why something was not removed. Decides nothing.
    #[arg(long, env = "CORONER_KUBELET_LOG", value_name = "FILE")]
    pub kubelet_log: Option<PathBuf>,
    /// Show every step with its evidence, and the connections.
    #[arg(short, long, env = "CORONER_VERBOSE", value_parser = BoolishValueParser::new())]
    pub verbose: bool,
    /// Which instance of the pod, for a static pod that was created again [default: the last one].
    #[arg(long, env = "CORONER_LIFE", value_name = "N")]
    pub life: Option<u32>,
    /// Output format.
    #[arg(short, long, env = "CORONER_OUTPUT", value_name = "FORM", default_value = "text")]
    pub output: TextOutput,
    #[command(flatten)]
    pub agent: AgentArgs,
}

#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// The recording (`coroner run --record FILE`), compressed or not; `-` for stdin.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Output format.
    #[arg(short, long, env = "CORONER_OUTPUT", value_name = "FORM", default_value = "text")]
    pub output: ReplayOutput,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayOutput {
    /// One waterfall per pod.
    Text,
    /// A table.
    Table,
    /// A table with more columns.
    Wide,
    /// One JSON object per line and pod, as the API of the recorded agent returned it.
    Json,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListOutput {
    /// A table.
    Table,
    /// A table with more columns.
    Wide,
    /// One JSON document, in the form of the API; with --watch one line per item.
    Json,
    /// The same as YAML; control characters in names are escaped.
    Yaml,
    /// One name per line.
    Name,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextOutput {
    /// Human-readable text. The formats of lists are accepted because CORONER_OUTPUT is shared by all commands.
    #[value(aliases = ["table", "wide", "name"])]
    Text,
    /// One JSON document.
    Json,
    /// The same as YAML.
    Yaml,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent_and_each_has_its_variable() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        let mut flags = std::collections::BTreeSet::new();
        for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
            for arg in sub.get_arguments().filter(|a| a.get_long() != Some("help")) {
                let Some(long) = arg.get_long() else { continue };
                let wanted = format!("CORONER_{}", long.to_uppercase().replace('-', "_"));
                let env = arg.get_env().map(|e| e.to_string_lossy().into_owned());
                assert_eq!(env.as_deref(), Some(&*wanted), "{} --{long}", sub.get_name());
                flags.insert(long.to_owned());
            }
        }
        assert!(flags.len() <= 59, "{}: {flags:?}", flags.len());
    }

    #[test]
    fn all_namespaces_are_more_than_one() {
        for (args, chosen) in [("-n shop", Some("shop")), ("-A -n shop", None), ("", None)] {
            let cli = Cli::try_parse_from(
                ["coroner", "deaths"].into_iter().chain(args.split_whitespace()),
            );
            let Command::Deaths(args) = cli.unwrap().command else { panic!() };
            assert_eq!(args.namespaces.chosen(), chosen);
        }
    }
}
