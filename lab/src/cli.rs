//! What can be asked of `coroner-lab`.

use clap::{Args, Parser, Subcommand};
use coroner_lab::{bench, chaos, containerd};
use std::{
    env,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// A one-node cluster on this machine, in which containers die for real.
#[derive(Parser)]
#[command(name = "coroner-lab", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Play scenarios in the lab with the real agent watching, and compare what it says with what
    /// must come out; or watch a real node
    Tour(TourArgs),
    /// Measure
    #[command(subcommand)]
    Bench(Bench),
    /// Have the engine take inputs of one kind: what valgrind looks at
    #[command(name = bench::instructions::engine::COMMAND, hide = true)]
    Steps {
        /// Of this kind
        #[arg(value_parser = kind)]
        kind: bench::engine::load::Kind,
    },
    /// Break what the agent stands on, again and again, while pods come and go, and judge what it
    /// says after each fault: docs/chaos.md. Exits with 1 if anything that is demanded does not hold
    Chaos(ChaosArgs),
    /// Go through random faults for hours with one agent, and watch what it takes of the machine:
    /// flat or it fails
    #[command(after_help = SOAK_HELP)]
    Soak(SoakArgs),
    /// Use up a CPU until killed: the load of a benchmark
    #[command(name = bench::load::COMMAND, hide = true)]
    Spin,
    /// Send signals and fork as stdin says: the load of a benchmark
    #[command(name = bench::storm::load::COMMAND, hide = true)]
    StormLoad,
    /// List all that a runtime has, once a second until killed: what stands beside the agent in a
    /// benchmark
    #[command(name = bench::node::relist::COMMAND, hide = true)]
    Relist {
        /// The runtime's socket
        endpoint: String,
    },
    /// Make events to order: the load of a benchmark
    #[command(name = bench::kernel::actor::COMMAND, hide = true)]
    Events,
}

fn kind(name: &str) -> Result<bench::engine::load::Kind, String> {
    let mut all = bench::engine::load::Kind::ALL.into_iter();
    all.find(|kind| kind.name() == name).ok_or_else(|| "there is no such kind".to_owned())
}

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// How far from the truth are the agent's times of deaths and signals, and how far are the
    /// runtime's, a relist's and the apiserver's? Exits with 1 if a goal is missed
    Accuracy(AccuracyArgs),
    /// What do coroner, sigsnoop and exitsnoop, and bpftrace cost in a storm of signals and exits, and
    /// what do they lose? Exits with 1 if a goal is missed
    Storm(StormArgs),
    /// What does the agent cost a full node: memory, CPU when nothing happens and when pods die,
    /// series, scrapes? Exits with 1 if a goal is missed
    Node(NodeArgs),
    /// What do the kernel programs cost whom they run in? Nanoseconds for each event, beside an
    /// empty program. Exits with 1 if a goal is missed
    Kernel(KernelArgs),
    /// How many inputs a second does the engine take on one core, and does its memory grow with
    /// what it has seen? Exits with 1 if a goal is missed
    Engine(EngineArgs),
    /// What does it cost in instructions, beside the counts that are kept in the repository? Exits
    /// with 1 if it costs more
    Instructions(InstructionsArgs),
}

#[derive(Args)]
pub(crate) struct InstructionsArgs {
    /// Keep the counts as they are now: write them to lab/src/bench/instructions/kept.json
    #[arg(long)]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) outcome: Outcome,
    #[command(flatten)]
    pub(crate) files: Files,
}

#[derive(Args)]
pub(crate) struct EngineArgs {
    /// Terminations after which its memory is compared with that after 10,000
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(10_000..))]
    pub(crate) terminations: u64,
    #[command(flatten)]
    pub(crate) outcome: Outcome,
    /// It needs none of them: they are those of every benchmark.
    #[command(flatten)]
    pub(crate) _files: Files,
}

#[derive(Args)]
pub(crate) struct AccuracyArgs {
    /// How many deaths, half of them under CPU load
    #[arg(long, value_name = "N", default_value_t = bench::accuracy::DEATHS)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) deaths: u32,
    /// Of the order of the ways to die, and of the moments
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) outcome: Outcome,
    #[command(flatten)]
    pub(crate) files: Files,
}

#[derive(Args)]
pub(crate) struct StormArgs {
    /// How long each of the four runs of the load takes, seconds
    #[arg(long, value_name = "N", default_value_t = bench::storm::SECONDS)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) seconds: u64,
    #[command(flatten)]
    pub(crate) outcome: Outcome,
    #[command(flatten)]
    pub(crate) files: Files,
}

#[derive(Args)]
pub(crate) struct NodeArgs {
    /// How many pods the node has, of two containers each
    #[arg(long, value_name = "N", default_value_t = bench::node::PODS)]
    #[arg(value_parser = clap::value_parser!(u32).range(10..=2_000))]
    pub(crate) pods: u32,
    /// How long the idle node is watched, and again while pods die, seconds
    #[arg(long, value_name = "N", default_value_t = bench::node::SECONDS)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) seconds: u64,
    #[command(flatten)]
    pub(crate) outcome: Outcome,
    #[command(flatten)]
    pub(crate) files: Files,
}

#[derive(Args)]
pub(crate) struct KernelArgs {
    /// How many rounds, of whose figures the median counts
    #[arg(long, value_name = "N", default_value_t = bench::kernel::ROUNDS)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) outcome: Outcome,
    #[command(flatten)]
    pub(crate) files: Files,
}

/// What every benchmark's figures lead to.
#[derive(Args)]
pub(crate) struct Outcome {
    /// Write one JSON object per figure to stdout (bench, figure, value, unit, goal, bound, ok,
    /// beside), and everything else to stderr
    #[arg(long)]
    pub(crate) json: bool,
    /// Exit with 0 even if a goal is missed
    #[arg(long)]
    pub(crate) no_fail: bool,
}

/// What the lab is made of, and where it is.
#[derive(Args)]
pub(crate) struct Files {
    /// The agent's binary [default: `coroner` beside this one]
    #[arg(long, value_name = "FILE", env = "CORONER_LAB_AGENT")]
    pub(crate) agent: Option<PathBuf>,
    /// The workload's binary, static [default: `workload` beside this one]
    #[arg(long, value_name = "FILE", env = "CORONER_LAB_WORKLOAD")]
    pub(crate) workload: Option<PathBuf>,
    /// Where the lab keeps its files
    #[arg(long, value_name = "DIR", default_value = "/tmp/coroner-lab")]
    pub(crate) work: PathBuf,
    /// The container runtime: a version of containerd that `cargo xtask setup` brought (1.6, 1.7,
    /// 2), or the path of a daemon with its ctr and shim beside it [default: the oldest of these]
    #[arg(long, value_name = "VERSION|PATH")]
    pub(crate) containerd: Option<String>,
}

/// Where failures are kept.
#[derive(Args)]
pub(crate) struct KeepFailures {
    /// Keep what a failure leaves (the agent's logs and API answers, the kubelet's record) in this
    /// directory, in a folder named by what failed [default: `failed` in the target directory of this
    /// build, else in the work directory]
    #[arg(long, value_name = "DIR", env = "CORONER_FAILED_DIR")]
    pub(crate) keep_failures: Option<PathBuf>,
}

impl Files {
    pub(crate) fn agent(&self) -> PathBuf {
        self.agent.clone().unwrap_or_else(|| beside("coroner"))
    }

    pub(crate) fn workload(&self) -> PathBuf {
        self.workload.clone().unwrap_or_else(|| beside("workload"))
    }
}

impl Files {
    /// What the lab is started with.
    pub(crate) fn lab(&self) -> anyhow::Result<containerd::Options> {
        let mut options = containerd::Options::new(&self.work, self.workload());
        if let Some(wanted) = &self.containerd {
            options.containerd = containerd::find(wanted, &containerd::tools())?;
        }
        Ok(options)
    }
}

/// A path in this program's own directory.
pub(crate) fn beside(name: &str) -> PathBuf {
    let program = env::current_exe().ok();
    program.as_deref().and_then(Path::parent).map_or_else(|| name.into(), |dir| dir.join(name))
}

#[derive(Args)]
pub(crate) struct ChaosArgs {
    /// Only this fault (may be repeated)
    #[arg(long = "fault", value_name = "NAME")]
    pub(crate) faults: Vec<String>,
    /// List the faults and do nothing else
    #[arg(long)]
    pub(crate) list: bool,
    /// How many rounds of all the faults; the first is in the list's order, the others are shuffled
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Go on for so long instead (90s, 30m, 2h); the round under way is finished
    #[arg(long = "for", value_name = "DURATION", conflicts_with = "rounds")]
    #[arg(value_parser = parse_duration)]
    pub(crate) long: Option<Duration>,
    /// Decides the order of the faults, the ways to die and the moments
    #[arg(long, value_name = "N", default_value_t = chaos::SEED)]
    pub(crate) seed: u64,
    /// Write one JSON object per round to stdout, and everything else to stderr
    #[arg(long)]
    pub(crate) json: bool,
    /// A missed goal fails a round too: memory, descriptors, and the time to be ready again, which
    /// depend on the machine as well
    #[arg(long)]
    pub(crate) goals: bool,
    #[command(flatten)]
    pub(crate) failures: KeepFailures,
    #[command(flatten)]
    pub(crate) files: Files,
}

#[derive(Args)]
pub(crate) struct SoakArgs {
    /// For how long (10m, 2h); the round under way is finished
    #[arg(long = "for", value_name = "DURATION", default_value = "2h")]
    #[arg(value_parser = parse_duration)]
    pub(crate) long: Duration,
    /// Decides the order of the faults, the ways to die and the moments
    #[arg(long, value_name = "N", default_value_t = chaos::SEED)]
    pub(crate) seed: u64,
    /// Write one JSON object per round to stdout, and everything else to stderr
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) failures: KeepFailures,
    #[command(flatten)]
    pub(crate) files: Files,
}

const SOAK_HELP: &str = "\
A line per round: RssAnon, descriptors, threads, series, losses, terminations, wrong verdicts and
false leaks, measured when all has settled. Faults that start the agent anew are left out.

Flat is: the first quarter of the time warms up and does not count; over the rest the median of the
slopes between all pairs of measurements (Theil and Sen) makes at most 2 MiB of RssAnon and 2
descriptors. It fails if that is more, or if any round falls short of what `chaos` demands.";

#[derive(Args)]
pub(crate) struct TourArgs {
    /// Play only this scenario (may be repeated)
    #[arg(long = "scenario", value_name = "NAME")]
    pub(crate) scenarios: Vec<String>,
    /// Play the scenarios of this group: deaths, causes, faults or leaks [default: deaths, and the
    /// first of the leaks]
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Play all scenarios
    #[arg(long, conflicts_with_all = ["scenarios", "group"])]
    pub(crate) all: bool,
    /// List the scenarios and do nothing else
    #[arg(long)]
    pub(crate) list: bool,
    /// Write one JSON object per scenario to stdout, and one for each leak that is of none; everything
    /// else goes to stderr
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) failures: KeepFailures,
    /// Leave the lab and the agent up until Ctrl-C, and say where they are
    #[arg(long, conflicts_with = "cri")]
    pub(crate) keep: bool,
    /// The apiserver's answers reach the agent so late, such as 9s
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0s")]
    pub(crate) delay_apiserver: Duration,
    /// The container runtime's answers reach the agent so late
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0s")]
    pub(crate) delay_runtime: Duration,
    /// Where the agent listens, for a Prometheus that is to scrape it [default: a free port of
    /// 127.0.0.1]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) files: Files,
    /// Watch a real node instead: its container runtime's socket
    #[arg(long, value_name = "ENDPOINT", requires_all = ["kubeconfig", "node"],
          conflicts_with_all = ["scenarios", "group", "all", "list", "containerd"])]
    pub(crate) cri: Option<String>,
    /// A kubeconfig for the real node's apiserver
    #[arg(long, value_name = "FILE", requires = "cri")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The real node's name
    #[arg(long, value_name = "NAME", requires = "cri")]
    pub(crate) node: Option<String>,
}

/// `90s`, `30m`, `1h30m`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = |why: String| format!("{why}; such as 90s, 30m or 2h");
    let long: jiff::SignedDuration = text.parse().map_err(|e: jiff::Error| wrong(e.to_string()))?;
    Duration::try_from(long).map_err(|error| wrong(error.to_string()))
}
