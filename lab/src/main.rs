//! `coroner-lab`: the lab's command line.

mod cli;

use clap::Parser as _;
use cli::{
    AccuracyArgs, Bench, ChaosArgs, Cli, Command, EngineArgs, InstructionsArgs, KernelArgs,
    NodeArgs, SoakArgs, StormArgs, TourArgs,
};
use coroner_lab_bench as bench;
use coroner_lab_chaos::{self as chaos, fault, plan::Length, soak};
use coroner_lab_cluster::{containerd::target_directory, delay::Delays};
use coroner_lab_harness::{
    run::{self, Options, RealNode, report},
    work::Interrupted,
};
use coroner_lab_scenarios as scenarios;
use std::{
    env,
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
        Command::Chaos(_) | Command::Soak(_) => "coroner_lab=warn,coroner_lab_cluster::kubelet=off",
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

/// Where xtask puts the kernel programs: in the target directory that this program is in.
fn kernel_programs(program: &Path) -> PathBuf {
    target_directory(program).unwrap_or(Path::new("target")).join("bpf/coroner-bpf.o")
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
        object: kernel_programs(&program),
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
        goals: args.goals,
        failed: args.failures.keep_failures,
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
        goals: true,
        failed: args.failures.keep_failures,
        json: args.json,
        agent: args.files.agent(),
        lab,
    };
    as_root(soak::run(&options, args.long))
}

fn tour(args: TourArgs) -> ExitCode {
    let chosen = args.all || args.list || args.group.is_some() || !args.scenarios.is_empty();
    let scenarios = if chosen {
        match scenarios::choose(&args.scenarios, args.group.as_deref()) {
            Ok(scenarios) => scenarios,
            Err(unknown) => {
                eprint!("{unknown}");
                return USAGE.into();
            }
        }
    } else {
        scenarios::tour()
    };
    if args.list {
        print!("{}", report::list(&scenarios));
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
        failed: args.failures.keep_failures,
        delays: Delays { apiserver: args.delay_apiserver, runtime: args.delay_runtime },
        real,
    };
    as_root(run::run(&options))
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
