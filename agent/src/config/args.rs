//! The flags: what may be said on the command line and in the environment. Nothing is decided
//! here; [`crate::config`] does that.

use crate::outputs::http::addresses;
use clap::{Args, Parser, Subcommand, ValueEnum, builder::BoolishValueParser};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Port of the agent's HTTP server. In the range from which Prometheus exporters take theirs, and
/// claimed by nothing that usually runs on a node (kubelet 10250, etcd 2379, node-exporter 9100).
pub const DEFAULT_PORT: u16 = 9470;

/// Port of the API on the loopback interface.
pub const DEFAULT_API_PORT: u16 = 9471;

/// How long pods take to die on this node, how their containers died, and what proves it.
#[derive(Parser, Debug)]
#[command(
    name = "coroner",
    version,
    max_term_width = 100,
    after_help = "Every flag may be given as an environment variable too (shown with each).\n\
                  Exit status: 0 well, 1 failed (the message says what to do), 64 wrong usage."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How to log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Observe this node until SIGTERM or SIGINT.
    Run(RunArgs),
    /// Check whether `run` would work here, and say what to do where it would not.
    Doctor(DoctorArgs),
    /// List the recent pod terminations that a running agent has seen, newest first.
    Terminations(TerminationsArgs),
    /// Tell what pods have left behind on this node, and why: from a running agent, or by looking
    /// at runtime, apiserver and host itself, without eBPF.
    Leaks(LeaksArgs),
    /// Tell one pod's end step by step: what was asked, what each container did and what proves
    /// it, and where the time went.
    Explain(ExplainArgs),
    /// Say again what the agent said while it made a recording, byte for byte.
    Replay(ReplayArgs),
}

/// How to log: to stderr, always.
#[derive(Args, Debug)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// Form of the log lines.
    #[arg(long, global = true, env = "CORONER_LOG_FORMAT", value_name = "FORMAT")]
    #[arg(default_value = "text")]
    pub log_format: LogFormat,
    /// What to log: a level, or tracing directives such as `info,coroner::sources::cri=debug`. Libraries log only
    /// where a directive names them, such as `info,hyper=debug`. RUST_LOG is taken where this is not given [default: info for `run`, error for the others].
    #[arg(long, global = true, env = "CORONER_LOG_LEVEL", value_name = "FILTER")]
    pub log_level: Option<String>,
}

/// Form of the log lines.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// This node: its name, its runtime, its file systems.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sources of evidence")]
pub struct NodeArgs {
    /// Name of this node, as the apiserver knows it. Where it is not given, NODE_NAME is taken.
    #[arg(long, env = "CORONER_NODE", value_name = "NAME")]
    pub node: Option<String>,
    /// Kubeconfig for the apiserver [default: $KUBECONFIG, ~/.kube/config, or the service account].
    #[arg(long, env = "CORONER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Socket of the container runtime (a path, or unix:///path) [default: the first there is of
    /// containerd's, CRI-O's, cri-dockerd's and k3s'].
    #[arg(long, env = "CORONER_CRI", value_name = "ENDPOINT")]
    pub cri: Option<String>,
    /// Mount point of the cgroup hierarchy that holds the containers [default: found by itself].
    #[arg(long, env = "CORONER_CGROUP_ROOT", value_name = "DIR")]
    pub cgroup_root: Option<PathBuf>,
    /// Where the host's root file system is mounted.
    #[arg(long, env = "CORONER_HOST_ROOT", value_name = "DIR", default_value = "/")]
    pub host_root: PathBuf,
}

/// Where the evidence comes from.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sources of evidence")]
pub struct SourceArgs {
    /// This node.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Do without the apiserver, to try it out: then neither delete requests nor the objects' ends
    /// are known.
    #[arg(long, env = "CORONER_NO_API", value_parser = BoolishValueParser::new())]
    pub no_api: bool,
    /// Size of each of the two ring buffers: bytes, KiB or MiB; a power of two, at least a page.
    #[arg(long, env = "CORONER_RING_BYTES", value_name = "SIZE", default_value = "1MiB")]
    #[arg(value_parser = parse_size)]
    pub ring_bytes: u32,
}

/// Where the API is served on TCP, if it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ApiListen(pub Option<SocketAddr>);

/// Flags that name a running agent.
#[derive(Args, Clone, Debug)]
pub struct AgentArgs {
    /// The running agent's unix socket.
    #[arg(long, env = "CORONER_SOCKET", value_name = "FILE", default_value = addresses::DEFAULT)]
    pub socket: PathBuf,
    /// URL of the running agent, instead of its socket.
    #[arg(long, env = "CORONER_URL", value_name = "URL", value_parser = parse_url)]
    pub url: Option<http::Uri>,
    /// The agent speaks TLS: PEM file of the certificate authority that has signed its certificate
    /// [default: those that this machine trusts].
    #[arg(long, env = "CORONER_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

/// Flags of `coroner run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Address of metrics and health. Port 0 takes a free one and logs it; `[::]` is every address, also of
    /// IPv4.
    #[arg(long, env = "CORONER_LISTEN", value_name = "ADDRESS:PORT")]
    #[arg(default_value = "[::]:9470", value_parser = parse_listen)]
    pub listen: SocketAddr,
    /// Serve HTTPS with this certificate (PEM: the server's own, then those of its issuers). It is
    /// taken anew when the file changes; one that cannot be used leaves the old one in place.
    #[arg(long, env = "CORONER_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM, not encrypted).
    #[arg(long, env = "CORONER_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Unix socket of the API, for this user only: what `coroner terminations`, `leaks` and `explain` ask.
    /// `off`: none.
    #[arg(long, env = "CORONER_SOCKET", value_name = "FILE", default_value = addresses::DEFAULT)]
    pub socket: PathBuf,
    /// Address of the API for `kubectl port-forward`: of the loopback interface, on which with hostNetwork every
    /// user of the node could ask. `off`: none.
    #[arg(long, env = "CORONER_API_LISTEN", value_name = "ADDRESS:PORT")]
    #[arg(default_value = "127.0.0.1:9471", value_parser = parse_api_listen)]
    pub api_listen: ApiListen,
    /// Pod terminations kept for the HTTP API.
    #[arg(long, env = "CORONER_HISTORY", value_name = "N", default_value_t = 256)]
    pub history: usize,
    /// How long to wait for the sources' last word before an account is closed (250ms, 5s, 1m).
    #[arg(long, env = "CORONER_SETTLE", value_name = "DURATION", default_value = "5s")]
    #[arg(value_parser = parse_duration)]
    pub settle: Duration,
    /// Time between full lists from the runtime when nothing is dying.
    #[arg(long, env = "CORONER_CRI_IDLE", value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = parse_duration)]
    pub cri_idle: Duration,
    /// Time between the runtime's filtered lists while a pod is dying.
    #[arg(long, env = "CORONER_CRI_BUSY", value_name = "DURATION", default_value = "250ms")]
    #[arg(value_parser = parse_duration)]
    pub cri_busy: Duration,
    /// Take the runtime's container events as a hint to look, where it sends them to everybody
    /// (containerd from 2.0, CRI-O from 1.28). Little is won, for the kernel tells the same; and a
    /// containerd whose subscriber stands still waits for it.
    #[arg(long, env = "CORONER_CRI_EVENTS", value_parser = BoolishValueParser::new())]
    pub cri_events: bool,
    /// Record all that is learned into this file, for `coroner replay` and bug reports. It holds
    /// no environment variables, command lines, labels or annotations (docs/recording.md). A file
    /// of that name is kept as FILE.old.
    #[arg(long, env = "CORONER_RECORD", value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// The recording ends, and the agent goes on, when its file has this size (at most 4095MiB).
    #[arg(long, env = "CORONER_RECORD_LIMIT", value_name = "SIZE", default_value = "256MiB")]
    #[arg(value_parser = parse_size)]
    pub record_limit: u32,
    /// Where the kernel side cannot start, do not exit: stay, unready, say why on /readyz, and try
    /// again every 30 s. For a DaemonSet, whose pods would only be restarted again and again.
    #[arg(long, env = "CORONER_STAY_UNREADY", value_parser = BoolishValueParser::new())]
    pub stay_unready: bool,
    /// Tell of what an owner of pods should know as Events too: on the pod (StopSignalIgnored,
    /// GraceExceeded, OomKilled, …), and what was left behind on the Node (docs/events.md). Needs
    /// the right to create and patch events of the API group events.k8s.io.
    #[arg(long, env = "CORONER_EVENTS", value_parser = BoolishValueParser::new())]
    pub events: bool,
    /// Log the kernel programs' own diagnostics (debug builds only).
    #[arg(long, env = "CORONER_DEBUG_BPF", value_parser = BoolishValueParser::new())]
    pub debug_bpf: bool,
    /// When something counts as left behind.
    #[command(flatten)] // these two last: their headings hold for what follows
    pub leaks: LeakArgs,
    /// Where the evidence comes from.
    #[command(flatten)]
    pub sources: SourceArgs,
}

/// When something counts as left behind.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "What was left behind")]
pub struct JudgeArgs {
    /// How long something must look like a leak before it is one. Counted only while watch,
    /// runtime and Node object are in sync: an outage pauses it.
    #[arg(long, env = "CORONER_LEAK_THRESHOLD", value_name = "DURATION", default_value = "5m")]
    #[arg(value_parser = parse_duration)]
    pub leak_threshold: Duration,
    /// Name of the kubelet's process, where it has another than any distribution gives it (comm, at
    /// most 15 bytes) [default: kubelet, k3s-server, k3s-agent, kubelite].
    #[arg(long, env = "CORONER_KUBELET_PROCESS", value_name = "NAME")]
    pub kubelet_process: Option<String>,
}

/// When something counts as left behind, and what becomes of that.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "What was left behind")]
pub struct LeakArgs {
    /// When something counts as left behind.
    #[command(flatten)]
    pub judge: JudgeArgs,
    /// Leaked sandboxes that get a metric series with their identity; the others are only counted.
    #[arg(long, env = "CORONER_LEAK_SERIES", value_name = "N", default_value_t = 50)]
    pub leak_series: usize,
    /// Keep here since when leaks are observed, so that a restart of the agent does not begin that
    /// anew. Made if it is not there.
    #[arg(long, env = "CORONER_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// Flags of `coroner doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Form of the answer.
    #[arg(short, long, env = "CORONER_OUTPUT", value_name = "FORM", default_value = "text")]
    pub output: DoctorOutput,
    /// Where the evidence would come from.
    #[command(flatten)]
    pub sources: SourceArgs,
}

/// Forms of doctor's answer.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum DoctorOutput {
    /// For people. CORONER_OUTPUT may name a table for the commands that list.
    #[value(aliases = ["table", "wide"])]
    Text,
    /// One JSON object.
    Json,
}

/// Flags of `coroner terminations`.
#[derive(Args, Clone, Debug)]
pub struct TerminationsArgs {
    /// The agent that is asked.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Only pods of this namespace.
    #[arg(short, long, env = "CORONER_NAMESPACE", value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// At most so many.
    #[arg(long, env = "CORONER_LIMIT", value_name = "N")]
    pub limit: Option<usize>,
    /// Form of the list.
    #[arg(short, long, env = "CORONER_OUTPUT", value_name = "FORM", default_value = "table")]
    pub output: ListOutput,
}

/// Flags of `coroner leaks`.
#[derive(Args, Clone, Debug)]
#[command(after_help = LEAKS_HELP)]
pub struct LeaksArgs {
    /// The agent that is asked. Without --url, and where none answers on the socket, this looks standalone.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Ask no agent, whatever --url says: look at runtime, apiserver and host, without eBPF.
    #[arg(long, env = "CORONER_STANDALONE", value_parser = BoolishValueParser::new())]
    pub standalone: bool,
    /// Only what pods of this namespace left behind.
    #[arg(short, long, env = "CORONER_NAMESPACE", value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Form of the list.
    #[arg(short, long, env = "CORONER_OUTPUT", value_name = "FORM", default_value = "table")]
    pub output: ListOutput,
    /// The same as -o json.
    #[arg(long, env = "CORONER_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    /// Below the table, all that is known of each: evidence, likely cause, what to do.
    #[arg(short, long, env = "CORONER_VERBOSE", value_parser = BoolishValueParser::new())]
    pub verbose: bool,
    /// Wait until it is certain: something must look like a leak for --leak-threshold.
    #[arg(long, env = "CORONER_WAIT", value_parser = BoolishValueParser::new())]
    #[arg(conflicts_with = "watch")]
    pub wait: bool,
    /// Go on until Ctrl-C, and print the list again whenever it changes.
    #[arg(short, long, env = "CORONER_WATCH", value_parser = BoolishValueParser::new())]
    pub watch: bool,
    /// End with status 3 if something was left behind for certain. Implies --wait.
    #[arg(long, env = "CORONER_EXIT_CODE", value_parser = BoolishValueParser::new())]
    #[arg(conflicts_with = "watch")]
    pub exit_code: bool,
    /// When something is certain, standalone.
    #[command(flatten)]
    pub judge: JudgeArgs,
    /// Where to look, standalone.
    #[command(flatten)]
    pub node: NodeArgs,
}

const LEAKS_HELP: &str = "\
Examples:
  coroner leaks                         what the agent on this node is certain of; without an agent,
                                        one look at what seems to be left behind
  coroner leaks --node n1 --wait -v     standalone: what is certain after 5 minutes, with evidence
  coroner leaks --watch                 the list, again whenever it changes
  coroner leaks --exit-code >/dev/null  for scripts

Exit status: 0 it could be judged; 1 it could not (the message says what to do); with --exit-code
3 if something was left behind for certain (candidates do not count); 64 wrong usage.
docs/leaks.md tells what each class means, and how it is known.";

/// Flags of `coroner explain`.
#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    /// The pod: its name, NAMESPACE/NAME or UID. Left out: the only one there is.
    #[arg(value_name = "POD")]
    pub pod: Option<String>,
    /// From this recording (`-`: stdin) instead of a running agent.
    #[arg(long, env = "CORONER_FROM", value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// From the recording that comes with coroner: needs no agent, no node, no privileges. Without
    /// POD it shows one of its pods.
    #[arg(long, env = "CORONER_SAMPLE", value_parser = BoolishValueParser::new())]
    #[arg(conflicts_with = "from")]
    pub sample: bool,
    /// Only pods of this namespace.
    #[arg(short, long, env = "CORONER_NAMESPACE", value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Which life of the pod, for a static pod that came back [default: the last one].
    #[arg(long, env = "CORONER_LIFE", value_name = "N")]
    pub life: Option<u32>,
    /// The agent that is asked.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// Flags of `coroner replay`.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// The recording (`coroner run --record FILE`), compressed or not; `-` is stdin.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Go on for so long after the recording's end, a day at most, as if nothing more had happened:
    /// closes the accounts that were open.
    #[arg(long, env = "CORONER_GO_ON", value_name = "DURATION", default_value = "0s")]
    #[arg(value_parser = parse_duration)]
    pub go_on: Duration,
    /// Form of the answer.
    #[arg(short, long, env = "CORONER_OUTPUT", value_name = "FORM", default_value = "text")]
    pub output: ReplayOutput,
}

/// Forms of replay's answer.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayOutput {
    /// A waterfall a pod.
    Text,
    /// A table.
    Table,
    /// A table with more columns.
    Wide,
    /// A JSON object a line and a pod: what the API of the recorded agent said.
    Json,
}

/// Forms of a list.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListOutput {
    /// A table.
    Table,
    /// A table with more columns.
    Wide,
    /// JSON, as the agent gives it.
    Json,
}

/// `5s`, `250ms`, `1m 30s`: never negative.
fn parse_duration(text: &str) -> Result<Duration, String> {
    const HINT: &str = "give a number with its unit, such as 250ms, 5s or 1m";
    let signed: jiff::SignedDuration = text.parse().map_err(|_| HINT.to_owned())?;
    Duration::try_from(signed).map_err(|_| HINT.to_owned())
}

/// `4096`, `64KiB`, `1MiB`.
fn parse_size(text: &str) -> Result<u32, String> {
    let text = text.trim();
    let (digits, unit) = [("KiB", 1 << 10), ("MiB", 1 << 20), ("B", 1)]
        .into_iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))
        .unwrap_or((text, 1));
    digits
        .trim()
        .parse::<u32>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .ok_or_else(|| "give bytes, KiB or MiB, such as 65536, 64KiB or 1MiB".to_owned())
}

/// `0.0.0.0:9470`, `[::]:9470`; `:9470` is every address.
fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let full = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    full.parse().map_err(|_| {
        format!(
            "give an address and a port, such as 127.0.0.1:{DEFAULT_PORT} or [::]:{DEFAULT_PORT}"
        )
    })
}

/// The same, or `off`.
fn parse_api_listen(text: &str) -> Result<ApiListen, String> {
    match text {
        "off" => Ok(ApiListen(None)),
        text => parse_listen(text).map(|address| ApiListen(Some(address))),
    }
}

/// `http://HOST:PORT` or `https://HOST:PORT`: the paths are our own.
fn parse_url(text: &str) -> Result<http::Uri, String> {
    text.parse::<http::Uri>()
        .ok()
        .filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some())
        .filter(|uri| uri.path() == "/" && uri.query().is_none())
        .ok_or_else(|| format!("give http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:{DEFAULT_PORT}"))
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
        for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
            for arg in sub.get_arguments().filter(|a| a.get_long() != Some("help")) {
                let Some(long) = arg.get_long() else { continue };
                let wanted = format!("CORONER_{}", long.to_uppercase().replace('-', "_"));
                let env = arg.get_env().map(|e| e.to_string_lossy().into_owned());
                assert_eq!(env.as_deref(), Some(&*wanted), "{} --{long}", sub.get_name());
            }
        }
    }

    #[test]
    fn the_default_address_names_the_default_port() {
        let cli = Cli::try_parse_from(["coroner", "run"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(run.listen.port(), DEFAULT_PORT);
        let cli = Cli::try_parse_from(["coroner", "terminations"]).unwrap();
        let Command::Terminations(list) = cli.command else { panic!("not terminations") };
        assert_eq!((list.agent.url, list.agent.socket), (None, addresses::DEFAULT.into()));
    }

    #[test]
    fn durations() {
        for (text, millis) in [("5s", 5000), ("250ms", 250), ("1m 30s", 90_000), ("0s", 0)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "-1s", "soon", "1y"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [("4096", 4096), ("64KiB", 65536), ("1MiB", 1 << 20), ("8 B", 8)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "-1", "4096MiB", "1GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn urls() {
        for text in ["http://h:1", "http://h:1/", "http://[::1]:9470", "https://h"] {
            assert!(parse_url(text).is_ok(), "{text}");
        }
        for text in ["", "h:1", "ftp://h", "http://", "http://a b", "http://h/path", "/x"] {
            assert!(parse_url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses() {
        for (text, address) in [(":80", "[::]:80"), ("[::1]:0", "[::1]:0")] {
            assert_eq!(parse_listen(text), Ok(address.parse().unwrap()), "{text}");
        }
        for text in ["", "80", "localhost:80", "1.2.3.4", "1.2.3.4:65536"] {
            assert!(parse_listen(text).is_err(), "{text}");
        }
    }
}
