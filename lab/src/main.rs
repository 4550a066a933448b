//! `coroner-lab`: the lab's command line.

use clap::{Args, Parser, Subcommand};
use coroner_lab::{
    bench,
    chaos::{self, fault, plan::Length, soak},
    containerd, scenario,
    tour::{self, Interrupted, Options, RealNode},
};
use std::{
    env,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// `EX_USAGE` of sysexits.h.
const USAGE: u8 = 64;
/// As a shell reports a process that SIGINT ended.
const INTERRUPTED: u8 = 130;

#[global_allocator]
static ALLOCATOR: bench::heap::Counting = bench::heap::Counting;

/// A one-node cluster on this machine, in which containers die for real.
#[derive(Parser)]
#[command(name = "coroner-lab", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
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
enum Bench {
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
struct InstructionsArgs {
    /// Keep the counts as they are now: write them to lab/src/bench/instructions/kept.json
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    outcome: Outcome,
    #[command(flatten)]
    files: Files,
}

#[derive(Args)]
struct EngineArgs {
    /// Terminations after which its memory is compared with that after 10,000
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(10_000..))]
    terminations: u64,
    #[command(flatten)]
    outcome: Outcome,
    /// It needs none of them: they are those of every benchmark.
    #[command(flatten)]
    _files: Files,
}

#[derive(Args)]
struct AccuracyArgs {
    /// How many deaths, half of them under CPU load
    #[arg(long, value_name = "N", default_value_t = bench::accuracy::DEATHS)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    deaths: u32,
    /// Of the order of the ways to die, and of the moments
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    outcome: Outcome,
    #[command(flatten)]
    files: Files,
}

#[derive(Args)]
struct StormArgs {
    /// How long each of the four runs of the load takes, seconds
    #[arg(long, value_name = "N", default_value_t = bench::storm::SECONDS)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    #[command(flatten)]
    outcome: Outcome,
    #[command(flatten)]
    files: Files,
}

#[derive(Args)]
struct NodeArgs {
    /// How many pods the node has, of two containers each
    #[arg(long, value_name = "N", default_value_t = bench::node::PODS)]
    #[arg(value_parser = clap::value_parser!(u32).range(10..=2_000))]
    pods: u32,
    /// How long the idle node is watched, and again while pods die, seconds
    #[arg(long, value_name = "N", default_value_t = bench::node::SECONDS)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    #[command(flatten)]
    outcome: Outcome,
    #[command(flatten)]
    files: Files,
}

#[derive(Args)]
struct KernelArgs {
    /// How many rounds, of whose figures the median counts
    #[arg(long, value_name = "N", default_value_t = bench::kernel::ROUNDS)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    #[command(flatten)]
    outcome: Outcome,
    #[command(flatten)]
    files: Files,
}

/// What every benchmark's figures lead to.
#[derive(Args)]
struct Outcome {
    /// Write one JSON object per figure to stdout (bench, figure, value, unit, goal, bound, ok,
    /// beside), and everything else to stderr
    #[arg(long)]
    json: bool,
    /// Exit with 0 even if a goal is missed
    #[arg(long)]
    no_fail: bool,
}

/// What the lab is made of, and where it is.
#[derive(Args)]
struct Files {
    /// The agent's binary [default: `coroner` beside this one]
    #[arg(long, value_name = "FILE", env = "CORONER_LAB_AGENT")]
    agent: Option<PathBuf>,
    /// The workload's binary, static [default: where `cargo xtask build` puts it]
    #[arg(long, value_name = "FILE", env = "CORONER_LAB_WORKLOAD")]
    workload: Option<PathBuf>,
    /// Where the lab keeps its files
    #[arg(long, value_name = "DIR", default_value = "/tmp/coroner-lab")]
    work: PathBuf,
    /// The container runtime: a version of containerd that `cargo xtask setup` brought (1.6, 1.7,
    /// 2), or the path of a daemon with its ctr and shim beside it [default: the machine's own]
    #[arg(long, value_name = "VERSION|PATH")]
    containerd: Option<String>,
}

impl Files {
    fn agent(&self) -> PathBuf {
        self.agent.clone().unwrap_or_else(|| beside("coroner"))
    }

    fn workload(&self) -> PathBuf {
        self.workload.clone().unwrap_or_else(|| {
            // Not the one beside this: that is linked dynamically, and the image has no libraries.
            beside(&format!("../static/{}-unknown-linux-gnu/release/workload", env::consts::ARCH))
        })
    }
}

impl Files {
    /// What the lab is started with.
    fn lab(&self) -> anyhow::Result<containerd::Options> {
        let mut options = containerd::Options::new(&self.work, self.workload());
        if let Some(wanted) = &self.containerd {
            options.containerd = containerd::find(wanted, &beside("../tools"))?;
        }
        Ok(options)
    }
}

/// A path in this program's own directory.
fn beside(name: &str) -> PathBuf {
    let program = env::current_exe().ok();
    program.as_deref().and_then(Path::parent).map_or_else(|| name.into(), |dir| dir.join(name))
}

#[derive(Args)]
struct ChaosArgs {
    /// Only this fault (may be repeated)
    #[arg(long = "fault", value_name = "NAME")]
    faults: Vec<String>,
    /// List the faults and do nothing else
    #[arg(long)]
    list: bool,
    /// How many rounds of all the faults; the first is in the list's order, the others are shuffled
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Go on for so long instead (90s, 30m, 2h); the round under way is finished
    #[arg(long = "for", value_name = "DURATION", conflicts_with = "rounds")]
    #[arg(value_parser = parse_duration)]
    long: Option<Duration>,
    /// Of the order of the faults, the ways to die and the moments
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write one JSON object per round to stdout, and everything else to stderr
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    files: Files,
}

#[derive(Args)]
struct SoakArgs {
    /// For how long (10m, 2h); the round under way is finished
    #[arg(long = "for", value_name = "DURATION", default_value = "2h")]
    #[arg(value_parser = parse_duration)]
    long: Duration,
    /// Of the order of the faults, the ways to die and the moments
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write one JSON object per round to stdout, and everything else to stderr
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    files: Files,
}

const SOAK_HELP: &str = "\
A line per round: RssAnon, descriptors, threads, series, losses, terminations, wrong verdicts and
false leaks, measured when all has settled. Faults that start the agent anew are left out.

Flat is: the first quarter of the time warms up and does not count; over the rest the median of the
slopes between all pairs of measurements (Theil and Sen) makes at most 2 MiB of RssAnon and 2
descriptors. It fails if that is more, or if any round falls short of what `chaos` demands.";

#[derive(Args)]
struct TourArgs {
    /// Play only this scenario (may be repeated)
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<String>,
    /// Play the scenarios of this group: deaths, causes, faults or leaks [default: deaths, and the
    /// first of the leaks]
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Play all scenarios
    #[arg(long, conflicts_with_all = ["scenarios", "group"])]
    all: bool,
    /// List the scenarios and do nothing else
    #[arg(long)]
    list: bool,
    /// Write one JSON object per scenario to stdout, and everything else to stderr
    #[arg(long)]
    json: bool,
    /// Leave the lab and the agent up until Ctrl-C, and say where they are
    #[arg(long, conflicts_with = "cri")]
    keep: bool,
    /// Where the agent listens, for a Prometheus that is to scrape it [default: a free port of
    /// 127.0.0.1]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    files: Files,
    /// Watch a real node instead: its container runtime's socket
    #[arg(long, value_name = "ENDPOINT", requires_all = ["kubeconfig", "node"],
          conflicts_with_all = ["scenarios", "group", "all", "list", "containerd"])]
    cri: Option<String>,
    /// A kubeconfig for the real node's apiserver
    #[arg(long, value_name = "FILE", requires = "cri")]
    kubeconfig: Option<PathBuf>,
    /// The real node's name
    #[arg(long, value_name = "NAME", requires = "cri")]
    node: Option<String>,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    // Under chaos the lab's kubelet complains all the time, and rightly.
    let quiet = match cli.command {
        Command::Chaos(_) | Command::Soak(_) => "coroner_lab=warn,coroner_lab::kubelet=off",
        _ => "coroner_lab=warn",
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(quiet)),
        )
        .init();
    match cli.command {
        Command::Tour(args) => tour(args),
        Command::Bench(Bench::Accuracy(args)) => accuracy(args),
        Command::Bench(Bench::Storm(args)) => storm(args),
        Command::Bench(Bench::Node(args)) => node(args),
        Command::Relist { endpoint } => relist(&endpoint),
        Command::Bench(Bench::Kernel(args)) => kernel(args),
        Command::Bench(Bench::Engine(args)) => engine(&args),
        Command::Bench(Bench::Instructions(args)) => instructions(args),
        Command::Steps { kind } => {
            exit_code(bench::instructions::engine::steps(kind).map(|()| true))
        }
        Command::Chaos(args) => chaos(args),
        Command::Soak(args) => soak(args),
        Command::Spin => bench::load::spin(),
        Command::Events => events(),
        Command::StormLoad => bench::storm::load::serve(),
    }
}

fn accuracy(args: AccuracyArgs) -> ExitCode {
    let lab = match args.files.lab() {
        Ok(lab) => lab,
        Err(error) => return wrong_usage(&error),
    };
    let program = match this_program() {
        Ok(program) => program,
        Err(code) => return code,
    };
    let options = bench::accuracy::Options {
        deaths: usize::try_from(args.deaths).unwrap_or(usize::MAX),
        seed: args.seed,
        json: args.outcome.json,
        agent: args.files.agent(),
        lab,
        program,
    };
    as_root(async { bench::accuracy::run(&options).await.map(|met| met || args.outcome.no_fail) })
}

fn storm(args: StormArgs) -> ExitCode {
    let lab = match args.files.lab() {
        Ok(lab) => lab,
        Err(error) => return wrong_usage(&error),
    };
    let program = match this_program() {
        Ok(program) => program,
        Err(code) => return code,
    };
    let options = bench::storm::Options {
        lasting: Duration::from_secs(args.seconds),
        json: args.outcome.json,
        agent: args.files.agent(),
        lab,
        program,
    };
    as_root(async { bench::storm::run(&options).await.map(|met| met || args.outcome.no_fail) })
}

fn node(args: NodeArgs) -> ExitCode {
    let program = match this_program() {
        Ok(program) => program,
        Err(code) => return code,
    };
    let options = bench::node::Options {
        pods: usize::try_from(args.pods).unwrap_or(usize::MAX),
        window: Duration::from_secs(args.seconds),
        json: args.outcome.json,
        agent: args.files.agent(),
        workload: args.files.workload(),
        work: args.files.work,
        program,
    };
    as_root(async { bench::node::run(&options).await.map(|met| met || args.outcome.no_fail) })
}

fn relist(endpoint: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(bench::node::relist::relist(endpoint)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn kernel(args: KernelArgs) -> ExitCode {
    let program = match this_program() {
        Ok(program) => program,
        Err(code) => return code,
    };
    let options = bench::kernel::Options {
        rounds: args.rounds,
        json: args.outcome.json,
        agent: args.files.agent(),
        work: args.files.work.clone(),
        program,
    };
    as_root(async { bench::kernel::run(&options).await.map(|met| met || args.outcome.no_fail) })
}

fn events() -> ExitCode {
    match bench::kernel::actor::play() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Where this program is.
fn this_program() -> Result<PathBuf, ExitCode> {
    env::current_exe().map_err(|error| {
        eprintln!("cannot tell where this program is: {error}");
        ExitCode::FAILURE
    })
}

fn instructions(args: InstructionsArgs) -> ExitCode {
    let program = match this_program() {
        Ok(program) => program,
        Err(code) => return code,
    };
    let options = bench::instructions::Options {
        keep: args.keep,
        json: args.outcome.json,
        agent: args.files.agent(),
        object: beside("../bpf/coroner-bpf.o"),
        work: args.files.work,
        program,
    };
    as_root(async {
        bench::instructions::run(&options).await.map(|met| met || args.outcome.no_fail)
    })
}

fn engine(args: &EngineArgs) -> ExitCode {
    let EngineArgs { terminations, ref outcome, .. } = *args;
    let options = bench::engine::Options { terminations, json: outcome.json };
    exit_code(bench::engine::run(&options).map(|met| met || outcome.no_fail))
}

/// `90s`, `30m`, `1h30m`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = |why: String| format!("{why}; such as 90s, 30m or 2h");
    let long: jiff::SignedDuration = text.parse().map_err(|e: jiff::Error| wrong(e.to_string()))?;
    Duration::try_from(long).map_err(|error| wrong(error.to_string()))
}

fn chaos(args: ChaosArgs) -> ExitCode {
    if args.list {
        print!("{}", fault::list());
        return ExitCode::SUCCESS;
    }
    let faults = match fault::choose(&args.faults) {
        Ok(faults) => faults,
        Err(unknown) => {
            eprint!("{unknown}");
            return USAGE.into();
        }
    };
    let lab = match args.files.lab() {
        Ok(lab) => lab,
        Err(error) => return wrong_usage(&error),
    };
    let options = chaos::Options {
        faults,
        length: args.long.map_or(Length::Rounds(args.rounds), Length::For),
        seed: args.seed,
        json: args.json,
        agent: args.files.agent(),
        lab,
    };
    as_root(chaos::run(&options))
}

fn soak(args: SoakArgs) -> ExitCode {
    let lab = match args.files.lab() {
        Ok(lab) => lab,
        Err(error) => return wrong_usage(&error),
    };
    let options = chaos::Options {
        faults: soak::faults(),
        length: Length::For(args.long),
        seed: args.seed,
        json: args.json,
        agent: args.files.agent(),
        lab,
    };
    as_root(soak::run(&options, args.long))
}

fn tour(args: TourArgs) -> ExitCode {
    let chosen = args.all || args.list || args.group.is_some() || !args.scenarios.is_empty();
    let scenarios = if chosen {
        match scenario::choose(&args.scenarios, args.group.as_deref()) {
            Ok(scenarios) => scenarios,
            Err(unknown) => {
                eprint!("{unknown}");
                return USAGE.into();
            }
        }
    } else {
        scenario::tour()
    };
    if args.list {
        print!("{}", tour::list(&scenarios));
        return ExitCode::SUCCESS;
    }
    let lab = match args.files.lab() {
        Ok(lab) => lab,
        Err(error) => return wrong_usage(&error),
    };
    let real = match (args.cri, args.kubeconfig, args.node) {
        (Some(cri), Some(kubeconfig), Some(node)) => Some(RealNode { cri, kubeconfig, node }),
        _ => None,
    };
    let options = Options {
        scenarios,
        json: args.json,
        keep: args.keep,
        agent: args.files.agent(),
        listen: args.listen,
        lab,
        real,
    };
    as_root(tour::run(&options))
}

fn wrong_usage(error: &anyhow::Error) -> ExitCode {
    eprintln!("{error:#}");
    USAGE.into()
}

/// Runs it, if this is root; whether all is well becomes the exit code.
fn as_root(what: impl Future<Output = anyhow::Result<bool>>) -> ExitCode {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "the lab needs root: it runs a container runtime of its own and loads kernel programs; \
             run it with sudo"
        );
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    exit_code(runtime.block_on(what))
}

fn exit_code(outcome: anyhow::Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.is::<Interrupted>() => INTERRUPTED.into(),
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
