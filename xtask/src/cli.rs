//! The command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    bare::Suite,
    setup::{self, Need},
    vm::{self, CgroupVersion, Guest},
};

/// Installs the required tools, builds, runs and tests coroner.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub(crate) struct Cli {
    /// Also use tools that are installed on this machine: if there is no apt, or to try other versions
    #[arg(long, global = true)]
    pub(crate) system_tools: bool,
    #[command(subcommand)]
    pub(crate) command: XtaskCommand,
}

/// Whether tools may be installed.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Install {
    /// Only list missing tools, and fail if there are any
    #[arg(long)]
    pub(crate) no_install: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum XtaskCommand {
    /// Install all tools for building, running and testing (the other commands install theirs themselves)
    Setup {
        /// List each tool with its version, its checksum and where it came from; fail if one is missing
        #[arg(long)]
        check: bool,
        /// Also install the tools of `test --long`: cargo-fuzz, and the alternatives that the benchmarks measure
        #[arg(long)]
        long: bool,
        #[command(flatten)]
        install: Install,
    },
    /// Run a command on a bare machine: in a root with a distribution's minimal base, git and a C compiler
    #[command(after_help = BARE_HELP)]
    Bare {
        /// The distribution
        #[arg(long, value_name = "SUITE", default_value = "bookworm")]
        suite: Suite,
        /// Packages to add to the base
        #[arg(long, value_name = "PACKAGE", value_delimiter = ',')]
        with: Vec<String>,
        /// Create the base again instead of reusing the previous one
        #[arg(long)]
        fresh: bool,
        /// The command and its arguments
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            required = true,
            value_name = "COMMAND"
        )]
        command: Vec<OsString>,
    },
    /// Build the kernel programs, the lab's workload, the agent and the lab
    Build {
        /// Optimised binaries
        #[arg(long)]
        release: bool,
        #[command(flatten)]
        install: Install,
    },
    /// Build the agent's container image for amd64 and arm64, one static binary in an empty image, without a Docker daemon
    #[command(after_help = IMAGE_HELP)]
    Image {
        /// Path of the archive [default: target/image/coroner.tar]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Build for these architectures only: amd64, arm64 [default: both]
        #[arg(long, value_name = "ARCH", value_delimiter = ',')]
        arch: Vec<String>,
        #[command(flatten)]
        install: Install,
    },
    /// Package the Helm chart: an equal commit gives an equal archive
    Chart {
        #[command(flatten)]
        install: Install,
    },
    /// Watch real containers die, explained: the lab's tour; all further arguments are the tour's own
    Run {
        #[command(flatten)]
        install: Install,
        /// Optimised binaries
        #[arg(long)]
        release: bool,
        /// --scenario NAME, --group GROUP, --list, --json, --keep, --containerd VERSION|PATH, --oci-runtime runc|crun, --cgroup v2|v1, --cgroup-driver cgroupfs|systemd, --nested; --cri ENDPOINT, --kubeconfig FILE, --node NAME
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "TOUR ARGUMENTS")]
        tour: Vec<OsString>,
    },
    /// Run the tests: all layers, or the named ones
    Test {
        #[command(flatten)]
        install: Install,
        /// The layers to run [default: all of the gate: lint, unit, programs, lab, deploy, vm, arm64]
        layers: Vec<Layer>,
        /// Also run the tests that take hours: random seeds, all faults, all kernels, fuzzing, the soak, the benchmarks and their goals, the release image
        #[arg(long)]
        long: bool,
        /// Run the tests this many times and report all runs, to find tests that depend on chance
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        repeat: u32,
        #[command(flatten)]
        kernels: Kernels,
        #[command(flatten)]
        times: Times,
    },
    /// Write the generated files again: docs/metrics.md from the catalogue of metrics, the dashboards from their code, and
    /// the files that are generated from the alert rules
    Docs {
        #[command(flatten)]
        install: Install,
    },
    /// Measure coroner and its alternatives, with optimised binaries; exits with 1 if a goal is missed
    Bench {
        #[command(flatten)]
        install: Install,
        /// The subjects to measure [default: all, one after the other]
        subject: Option<Subject>,
        /// Write one JSON object per figure to stdout (bench, figure, value, unit, goal, bound, ok, beside), and everything else to stderr
        #[arg(long)]
        json: bool,
        /// Exit with 0 even if a goal is missed
        #[arg(long)]
        no_fail: bool,
        /// Only compare the engine with that of an earlier commit, in alternating runs
        #[arg(long, value_name = "COMMIT")]
        baseline: Option<String>,
        /// Arguments of the subject: `cargo xtask bench SUBJECT -- --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<OsString>,
    },
    /// Feed random bytes to all parsers of external data, and odd values to the engine (cargo-fuzz, libFuzzer); exits with 1 if a target fails
    #[command(after_help = FUZZ_HELP)]
    Fuzz {
        #[command(flatten)]
        install: Install,
        /// The targets, by the names of their files in fuzz/fuzz_targets [default: all]
        targets: Vec<String>,
        /// Time for each target: 90s, 5m, 1h
        #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = duration)]
        time: Duration,
        /// Repeat each target until a run of this time reaches no new edge, and 1,000,000 inputs were executed
        #[arg(long)]
        until_quiet: bool,
        /// Only replay this input, with which the target failed before
        #[arg(long, value_name = "FILE", conflicts_with_all = ["keep", "until_quiet"])]
        input: Option<PathBuf>,
        /// Afterwards pack the minimal set of inputs with the same coverage into fuzz/corpus
        #[arg(long)]
        keep: bool,
    },
    /// Feed random histories of pods to the core, and compare its reports with the ground truth; exits with 1 if a report contradicts it, is missing or repeated, or if too many are `unknown`
    #[command(after_help = SIMULATE_HELP)]
    Simulate {
        /// Number of histories per fault; 25,000 of all faults take some minutes
        #[arg(long, value_name = "N", default_value_t = 25_000, value_parser = clap::value_parser!(u32).range(1..))]
        cases: u32,
        /// The seed: equal seeds give equal histories [default: random, and printed]
        #[arg(long, value_name = "S")]
        seed: Option<u64>,
        /// Only this fault of the sources [default: all]
        #[arg(long)]
        fault: Option<Fault>,
        /// Write one JSON object per fault to stdout
        #[arg(long)]
        json: bool,
    },
    /// Inject faults while pods come and go, and compare the agent's reports with the ground truth (docs/chaos.md)
    Chaos {
        #[command(flatten)]
        install: Install,
        /// --fault NAME, --rounds N, --for DURATION, --seed N, --list, --json
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "CHAOS ARGUMENTS")]
        arguments: Vec<OsString>,
    },
    /// Inject random faults for hours with one agent; fails if its memory or descriptors grow (docs/chaos.md)
    Soak {
        #[command(flatten)]
        install: Install,
        /// --for DURATION (2h), --seed N, --json
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "SOAK ARGUMENTS")]
        arguments: Vec<OsString>,
    },
    /// Run the tests of the kernel programs on foreign kernels, in QEMU
    Vm {
        #[command(flatten)]
        install: Install,
        #[command(flatten)]
        kernels: Kernels,
        /// Only the tests whose names contain this
        #[arg(long = "test", value_name = "NAME")]
        only: Option<String>,
    },
}

const IMAGE_HELP: &str = "\
The archive is an OCI layout with an index of both architectures. It also has the files that `docker save` writes,
which hold one architecture: `docker load` without containerd's image store loads that of this machine, or the
first of --arch.
  ctr --namespace k8s.io images import target/image/coroner.tar   on a node with containerd
  k3s ctr images import target/image/coroner.tar                  on a node of k3s
  docker load --input target/image/coroner.tar                    also podman load
  skopeo copy --all oci-archive:target/image/coroner.tar docker://REGISTRY/coroner:v0.1.0
Equal sources and compilers give an equal digest. SOURCE_DATE_EPOCH is its time, or else that of the
last commit.";

const BARE_HELP: &str = "\
From the machine come the checkout, rustup's toolchain, cargo's registry and how packages are fetched;
nothing that is installed on it. target/bare/SUITE/target is the target folder inside. It needs root, perl
and util-linux. `.ci/run` is `cargo xtask bare cargo xtask test`.";

const FUZZ_HELP: &str = "\
As many targets run at once as there are cores. Inputs that were found go to target/fuzz/corpus, those
that broke something to target/fuzz/crashes. CONTRIBUTING.md says what becomes of them.";

const SIMULATE_HELP: &str = "\
Columns: histories in which something was wrong; reports that contradict the truth, terminations that were
not reported (or too late), or more than once, containers whose own report differs from their pod's; of how many
deaths verdict and cause are known in the last report; of how many something that was delivered decides the cause
(`decidable`), and of how many of these it is known; and why the others are not decidable, with what was reported of
them. Floors and ceilings are in agent/core/tests/simulation/floors.txt; they hold for 1,000 histories and more.
The first history of each fault that goes wrong is simplified and printed, and kept as
target/failed/simulation/FAULT-SEED.jsonl: copied to agent/core/tests/simulation/found, it is a test. The gate
plays 1,500 histories of each fault with a fixed seed.
  cargo xtask simulate --fault late --seed 7 --cases 1000";

/// A fault of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// Nothing
    Nothing,
    /// The watch delivers up to 120 s late
    Late,
    /// The watch breaks, and resumes where it was
    Resumed,
    /// The watch breaks, and the pods are listed again
    Relisted,
    /// The watch hangs, its error comes late, and it resumes
    HungResumed,
    /// The watch hangs, its error comes late, and the pods are listed again
    HungRelisted,
    /// The runtime answers up to 60 s late
    LateRuntime,
    /// Lists of the runtime lack one entry once
    ListLacksOne,
    /// The runtime answers nothing for up to 90 s
    RuntimeHangs,
    /// The runtime is killed and started again
    RuntimeKilled,
    /// The kernel's ring for deciding records is full
    DecidingRing,
    /// The kernel's ring for detail records is full
    DetailRing,
    /// The kernel skips programs for exits and execs
    Skipped,
    /// The apiserver's clock and the node's are wrong by hours
    Clocks,
    /// The agent starts in the middle
    AgentStarts,
}

/// A time as a person writes it.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().map_err(|error| error.to_string())?;
    let duration = Duration::try_from(parsed).map_err(|error| error.to_string())?;
    if duration < Duration::from_secs(1) { Err("at least 1s".to_owned()) } else { Ok(duration) }
}

/// How long a soak lasts.
fn soak_time(text: &str) -> Result<Duration, String> {
    let least = Duration::from_secs(300);
    let time = duration(text)?;
    if time < least {
        return Err("at least 5m: fewer rounds show no trend".to_owned());
    }
    Ok(time)
}

/// How long the layers take whose time is a choice.
#[derive(Debug, Clone, Args)]
pub(crate) struct Times {
    /// How long the layer fuzz runs each target: 30s, 5m, 1h
    #[arg(long, value_name = "TIME", default_value = FUZZ_FOR, value_parser = duration)]
    pub(crate) fuzz_for: Duration,
    /// How long the layer soak lasts, at least 5m
    #[arg(long, value_name = "TIME", default_value = SOAK_FOR, value_parser = soak_time)]
    pub(crate) soak_for: Duration,
    /// Run each benchmark of the layer bench in its shortest form, without goals, to check that it works
    #[arg(long)]
    pub(crate) bench_briefly: bool,
}

const FUZZ_FOR: &str = "5m";
const SOAK_FOR: &str = "30m";

impl Default for Times {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        Self { fuzz_for: minutes(5), soak_for: minutes(30), bench_briefly: false }
    }
}

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    /// Accuracy of the times of deaths and signals. docs/accuracy.md; five minutes
    Accuracy,
    /// Cost and losses in a storm of signals and exits, with coroner, sigsnoop and exitsnoop, and
    /// bpftrace. docs/performance.md; three minutes
    Storm,
    /// Cost of the agent on a full node: memory, CPU, series, scrapes. docs/performance.md; four minutes
    Node,
    /// Overhead of the kernel programs for the processes in which they run. docs/performance.md; half a minute
    Kernel,
    /// Inputs per second of the pure core, and growth of its memory. docs/performance.md; three minutes
    Engine,
    /// Instruction counts, compared with the kept counts. docs/performance.md; two minutes
    Instructions,
}

impl Subject {
    /// Its name, here and in the lab.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::Storm => "storm",
            Self::Node => "node",
            Self::Kernel => "kernel",
            Self::Engine => "engine",
            Self::Instructions => "instructions",
        }
    }

    /// The arguments of its shortest form, which shows that it works and not whether a goal is met.
    pub(crate) fn brief(self) -> &'static [&'static str] {
        match self {
            Self::Accuracy => &["--no-fail", "--deaths", "24"],
            Self::Storm => &["--no-fail", "--seconds", "2"],
            Self::Node => &["--no-fail", "--pods", "20", "--seconds", "10"],
            Self::Kernel => &["--no-fail", "--rounds", "1"],
            Self::Engine => &["--no-fail", "--terminations", "10000"],
            Self::Instructions => &["--no-fail"],
        }
    }

    /// What it takes beyond the lab: the alternatives, mostly.
    pub(crate) fn needs(self) -> &'static [Need] {
        match self {
            Self::Accuracy | Self::Node | Self::Engine => &[],
            Self::Kernel | Self::Storm => setup::STORM,
            Self::Instructions => setup::INSTRUCTIONS,
        }
    }
}

/// Which foreign kernels.
#[derive(Debug, Clone, Args)]
pub(crate) struct Kernels {
    /// Foreign kernels to boot: 5.10, 6.1, 6.12 or 7 (Debian's bullseye, bookworm, trixie, sid), 5.10-arm64 or 7-arm64-16k [default: all; in `test` without --long 5.10 and 7, and the connections on 6.1 and 6.12]
    #[arg(long = "kernel", value_name = "VERSION", value_delimiter = ',')]
    pub(crate) kernels: Vec<String>,
    /// What each of them has for cgroups: a guest for v2 and one for v1 by default
    #[arg(long = "cgroup", value_name = "VERSION", value_delimiter = ',')]
    pub(crate) cgroups: Vec<CgroupVersion>,
}

impl Kernels {
    /// The machines to boot; `all`: of every kernel of the table, unless some are named, and not only of the
    /// oldest and the newest of this machine's architecture.
    ///
    /// # Errors
    /// On a kernel that is not in the table.
    pub(crate) fn guests(&self, all: bool) -> anyhow::Result<Vec<Guest>> {
        let cgroups = if self.cgroups.is_empty() { &CgroupVersion::ALL[..] } else { &self.cgroups };
        if self.kernels.is_empty() && !all {
            return Ok(vm::of_gate(cgroups));
        }
        Ok(vm::matrix(&vm::choose(&self.kernels)?, cgroups))
    }
}

/// A layer of the tests, from the cheapest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Layer {
    /// rustfmt and clippy, of the host's crates and of the kernel programs
    Lint,
    /// Everything that needs neither root nor a kernel of its own
    Unit,
    /// The kernel programs on this machine's kernel
    Programs,
    /// The lab: real containerd (1.6, 1.7, 2.x), small apiserver, catalogue of deaths
    Lab,
    /// Alert rules, manifests, dashboards, and the agent as a pod of its DaemonSet
    Deploy,
    /// The kernel programs on foreign kernels (5.10 and 7, connections also on 6.1 and 6.12; with --long all on each, and two for arm64) with cgroup v2 and v1, in QEMU
    Vm,
    /// The agent and its image for arm64: cross-built, and started in a user-space emulator
    Arm64,
    /// Parsers of external data with random bytes: --fuzz-for (5m) per fuzz target
    Fuzz,
    /// Random faults with one agent, --soak-for (30m)
    Soak,
    /// All benchmarks against their goals
    Bench,
}

impl Layer {
    /// What the gate runs.
    pub(crate) const GATE: [Self; 7] =
        [Self::Lint, Self::Unit, Self::Programs, Self::Lab, Self::Deploy, Self::Vm, Self::Arm64];

    /// All, in the order in which they are reported.
    pub(crate) const ALL: [Self; 10] = [
        Self::Lint,
        Self::Unit,
        Self::Programs,
        Self::Lab,
        Self::Deploy,
        Self::Vm,
        Self::Arm64,
        Self::Fuzz,
        Self::Soak,
        Self::Bench,
    ];

    /// What it may take on two cores, minutes: shown beside what it took, and asserted by nothing.
    pub(crate) fn budget(self) -> u32 {
        match self {
            Self::Lint => 4,
            Self::Unit => 4,
            Self::Programs => 2,
            Self::Lab => 9,
            Self::Deploy => 3,
            Self::Vm => 6,
            Self::Arm64 => 4,
            Self::Fuzz => 25,
            Self::Soak => 35,
            Self::Bench => 30,
        }
    }

    /// It loads kernel programs, or starts containers.
    pub(crate) fn needs_root(self) -> bool {
        match self {
            Self::Lint | Self::Unit | Self::Vm | Self::Arm64 | Self::Fuzz => false,
            Self::Programs | Self::Lab | Self::Deploy | Self::Soak | Self::Bench => true,
        }
    }

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lint => "lint",
            Self::Unit => "unit",
            Self::Programs => "programs",
            Self::Lab => "lab",
            Self::Deploy => "deploy",
            Self::Vm => "vm",
            Self::Arm64 => "arm64",
            Self::Fuzz => "fuzz",
            Self::Soak => "soak",
            Self::Bench => "bench",
        }
    }
}

const OWN_FLAGS: [&str; 3] = ["--no-install", "--release", "--system-tools"];

/// Takes xtask's own flags out of the tour's arguments: nobody should have to know who reads which first.
pub(crate) fn split_own_flags(arguments: Vec<OsString>) -> (Vec<OsString>, Vec<OsString>) {
    arguments.into_iter().partition(|argument| OWN_FLAGS.iter().any(|own| argument == own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tour_s_flags_pass_through() {
        let cli =
            Cli::try_parse_from(["xtask", "run", "--no-install", "--scenario", "x", "--json"])
                .expect("parses");
        let XtaskCommand::Run { install, tour, .. } = cli.command else {
            panic!("not run: {cli:?}");
        };
        assert!(install.no_install);
        assert_eq!(tour, ["--scenario", "x", "--json"]);
    }

    #[test]
    fn the_flags_of_chaos_and_soak_pass_through() {
        let line = ["xtask", "chaos", "--fault", "none", "--no-install", "--for", "10m"];
        let XtaskCommand::Chaos { arguments, .. } =
            Cli::try_parse_from(line).expect("parses").command
        else {
            panic!("not chaos");
        };
        assert_eq!(arguments, ["--fault", "none", "--no-install", "--for", "10m"]);
        let line = ["xtask", "soak", "--for", "2h"];
        let XtaskCommand::Soak { arguments, .. } =
            Cli::try_parse_from(line).expect("parses").command
        else {
            panic!("not soak");
        };
        assert_eq!(arguments, ["--for", "2h"]);
    }

    #[test]
    fn a_benchmark_is_named_and_its_flags_pass_through() {
        let line = ["xtask", "bench", "accuracy", "--deaths", "24", "--json", "--no-install"];
        let cli = Cli::try_parse_from(line).expect("parses");
        let XtaskCommand::Bench { subject, arguments, .. } = cli.command else {
            panic!("not bench: {cli:?}");
        };
        assert_eq!(subject, Some(Subject::Accuracy));
        assert_eq!(arguments, ["--deaths", "24", "--json", "--no-install"]);
    }

    #[test]
    fn the_engine_is_compared_with_a_commit() {
        for line in [
            ["bench", "engine", "--baseline", "37febd0"],
            ["bench", "--baseline", "37febd0", "engine"],
        ] {
            let cli = Cli::try_parse_from(["xtask"].iter().chain(&line)).expect("parses");
            let XtaskCommand::Bench { subject, baseline, arguments, .. } = cli.command else {
                panic!("not bench: {cli:?}");
            };
            assert_eq!((subject, arguments.len()), (Some(Subject::Engine), 0));
            assert_eq!(baseline.as_deref(), Some("37febd0"));
        }
    }

    #[test]
    fn without_a_subject_all_are_measured_with_the_common_flags() {
        for (line, objects) in
            [(vec!["xtask", "bench"], false), (vec!["xtask", "bench", "--json"], true)]
        {
            let cli = Cli::try_parse_from(line).expect("parses");
            let XtaskCommand::Bench { subject: None, json, arguments, .. } = cli.command else {
                panic!("not all: {cli:?}");
            };
            assert!(json == objects && arguments.is_empty());
        }
        for subject in Subject::value_variants() {
            assert_eq!(Subject::from_str(subject.name(), false), Ok(*subject));
        }
    }

    #[test]
    fn the_times_of_the_long_layers_can_be_chosen() {
        let times = |line: &[&str]| {
            let line = ["xtask", "test", "--long"].iter().chain(line);
            let XtaskCommand::Test { times, .. } =
                Cli::try_parse_from(line).expect("parses").command
            else {
                panic!("not test");
            };
            (times.fuzz_for.as_secs(), times.soak_for.as_secs(), times.bench_briefly)
        };
        let default = Times::default();
        let default = (default.fuzz_for.as_secs(), default.soak_for.as_secs(), false);
        assert_eq!(times(&[]), default);
        let chosen = ["--fuzz-for", "10s", "--soak-for", "5m", "--bench-briefly"];
        assert_eq!(times(&chosen), (10, 300, true));
        let too_short = ["xtask", "test", "--long", "--soak-for", "4m"];
        assert!(Cli::try_parse_from(too_short).is_err());
    }

    #[test]
    fn a_fuzz_target_runs_for_as_long_as_is_said() {
        let time = |line: &[&str]| {
            let cli = Cli::try_parse_from(["xtask", "fuzz"].iter().chain(line)).ok()?;
            let XtaskCommand::Fuzz { targets, time, .. } = cli.command else { panic!("not fuzz") };
            Some((targets, time.as_secs()))
        };
        assert_eq!(time(&[]), Some((vec![], 60)));
        assert_eq!(time(&["btf", "--for", "5m"]), Some((vec!["btf".to_owned()], 300)));
        for bad in ["", "5", "0s", "-1m", "soon"] {
            assert_eq!(time(&["--for", bad]), None, "{bad:?}");
        }
    }

    #[test]
    fn a_simulation_has_a_floor_for_each_fault() {
        let floors = include_str!("../../agent/core/tests/simulation/floors.txt");
        let rows = floors.lines().filter(|line| !line.starts_with('#'));
        let rows: Vec<_> = rows.filter_map(|row| row.split_whitespace().next()).collect();
        let named: Vec<_> = Fault::value_variants()
            .iter()
            .filter_map(|fault| Some(fault.to_possible_value()?.get_name().to_owned()))
            .collect();
        assert_eq!(named, rows);
    }

    #[test]
    fn our_own_flag_is_ours_wherever_it_stands() {
        let (ours, theirs) = split_own_flags(["--json", "--no-install"].map(OsString::from).into());
        assert_eq!(ours, ["--no-install"]);
        assert_eq!(theirs, ["--json"]);
    }

    #[test]
    fn the_help_names_the_kernels_of_the_table() {
        let command = <Cli as clap::CommandFactory>::command();
        let vm = command.find_subcommand("vm").expect("is there");
        let flag = vm.get_arguments().find(|flag| flag.get_id() == "kernels").expect("is there");
        let help = flag.get_help().expect("is there").to_string();
        for kernel in vm::choose(&[]).expect("all") {
            assert!(help.split([' ', ',']).any(|word| word == kernel.name), "{help}");
        }
    }

    #[test]
    fn guests_are_chosen_by_kernel_and_cgroups() {
        let guests = |line: &[&str]| {
            let cli = Cli::try_parse_from(["xtask", "vm"].iter().chain(line)).expect("parses");
            let XtaskCommand::Vm { kernels, .. } = cli.command else { panic!("not vm: {cli:?}") };
            (
                kernels.guests(true).expect("known").len(),
                kernels.guests(false).expect("known").len(),
            )
        };
        assert_eq!(guests(&[]), (12, 6));
        assert_eq!(guests(&["--cgroup", "v1"]), (6, 2));
        assert_eq!(guests(&["--kernel", "5.10,6.1,6.12"]), (6, 6));
        assert_eq!(guests(&["--cgroup", "v1", "--kernel", "6.12"]), (1, 1));
    }

    #[test]
    fn layers_are_named_as_they_are_parsed() {
        for layer in Layer::ALL {
            assert_eq!(Layer::from_str(layer.name(), false), Ok(layer));
        }
    }
}
