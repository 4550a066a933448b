//! The command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{bench, fuzz};

/// Installs the required tools, builds, runs and tests coroner.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: XtaskCommand,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum XtaskCommand {
    /// Install all tools for building, running and testing (the other commands install theirs themselves)
    Setup {
        /// Also install the tools of `test --long`
        #[arg(long)]
        long: bool,
    },
    /// Run a command on a bare machine: in a root with Debian's minimal base, git and a C compiler
    #[command(after_help = BARE_HELP)]
    Bare {
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
    },
    /// Package the Helm chart: an equal commit gives an equal archive
    Chart,
    /// Watch real containers die, explained: the lab's demo; further arguments are the lab's own
    Run {
        /// Optimised binaries
        #[arg(long)]
        release: bool,
        /// `cargo xtask run -- --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<OsString>,
    },
    /// Run the tests: all layers, or the named ones
    Test {
        /// The layers to run [default: all of the gate: lint, unit, programs, lab, deploy, vm]
        layers: Vec<Layer>,
        /// Also run the tests that take hours: random seeds, all variants of the lab, all kernels, arm64, fuzzing, the soak, the benchmarks, the release image
        #[arg(long)]
        long: bool,
        /// Run the tests this many times and report all runs, to find tests that depend on chance
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        repeat: u32,
        #[command(flatten)]
        times: Times,
    },
    /// Write the generated files again
    Docs,
    /// Print how large the repository is, beside the goals
    Size,
    /// Measure coroner and its alternatives, with optimised binaries
    Bench {
        /// The subject to measure [default: all, one after the other]
        #[arg(value_parser = bench::SUBJECTS)]
        subject: Option<String>,
        /// In the shortest form, which only shows that the benchmarks work
        #[arg(long)]
        brief: bool,
    },
    /// Feed random bytes to the parsers of what a tenant writes, and random inputs to the engine (cargo-fuzz, libFuzzer); exits with 1 if a target fails
    #[command(after_help = FUZZ_HELP)]
    Fuzz {
        /// The targets [default: all]
        #[arg(value_parser = fuzz::TARGETS)]
        targets: Vec<String>,
        /// Time for each target: 90s, 5m, 1h
        #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = duration)]
        time: Duration,
        /// Only run this input, with which the target failed before
        #[arg(long, value_name = "FILE", conflicts_with = "keep")]
        input: Option<PathBuf>,
        /// Afterwards pack the fewest inputs that reach as much into fuzz/corpus
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
        /// Only this fault of the sources: a name in agent/core/tests/simulation/floors.txt [default: all]
        #[arg(long, value_name = "FAULT")]
        fault: Option<String>,
        /// Write one JSON object per fault to stdout
        #[arg(long)]
        json: bool,
    },
    /// Repeat the lab's catalogue for a time with one agent, and print the slope of its memory, descriptors and losses
    Soak {
        /// `cargo xtask soak -- --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<OsString>,
    },
    /// Run the tests of the kernel programs on foreign kernels, in QEMU
    Vm {
        /// The kernels: 5.10, 6.1, 6.12, 7 (Debian's bullseye, bookworm, trixie, sid), 5.10-arm64, 7-arm64-16k [default: all]
        #[arg(long = "kernel", value_name = "VERSION", value_delimiter = ',')]
        kernels: Vec<String>,
        /// Only the tests whose names contain this
        #[arg(long = "test", value_name = "NAME")]
        test: Option<String>,
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
nothing that is installed on it. target/bare/bookworm/target is the target folder inside. It needs root, perl
and util-linux. `.ci/run` is `cargo xtask bare cargo xtask test`.";

const FUZZ_HELP: &str = "\
Inputs that were found go to target/fuzz/corpus, those with which a target failed to target/fuzz/crashes.
CONTRIBUTING.md says what to do with them.";

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

/// A time such as `90s`.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().map_err(|error| error.to_string())?;
    let duration = Duration::try_from(parsed).map_err(|error| error.to_string())?;
    if duration < Duration::from_secs(1) { Err("at least 1s".to_owned()) } else { Ok(duration) }
}

/// How long the layers take whose time is a choice.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Times {
    /// How long the layer fuzz runs each target: 30s, 5m, 1h
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    pub(crate) fuzz_for: Duration,
    /// How long the layer soak lasts
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration)]
    pub(crate) soak_for: Duration,
    /// Run each benchmark of the layer bench in its shortest form, to check that it works
    #[arg(long)]
    pub(crate) bench_briefly: bool,
}

/// A layer of the tests, in the order in which they are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Layer {
    /// rustfmt and clippy, of the host's crates and of the kernel programs, and cargo-deny
    Lint,
    /// Everything that needs neither root nor a kernel of its own
    Unit,
    /// The kernel programs on this machine's kernel
    Programs,
    /// The lab: real containerd, small apiserver, catalogue of deaths
    Lab,
    /// Alert rules, chart, dashboards, and the agent as the chart's pod
    Deploy,
    /// The kernel programs on foreign kernels in QEMU: the essential tests on 5.10 and 7; with --long all tests on each, two for arm64 among them
    Vm,
    /// The agent and its image for arm64: cross-built, and started in a user-space emulator
    Arm64,
    /// The parsers of what a tenant writes with random bytes, --fuzz-for (5m) each
    Fuzz,
    /// The catalogue again and again with one agent, --soak-for (30m)
    Soak,
    /// All benchmarks
    Bench,
}

impl Layer {
    /// What the gate runs.
    pub(crate) const GATE: [Self; 6] =
        [Self::Lint, Self::Unit, Self::Programs, Self::Lab, Self::Deploy, Self::Vm];

    /// It loads kernel programs, or starts containers.
    pub(crate) fn needs_root(self) -> bool {
        matches!(self, Self::Programs | Self::Lab | Self::Deploy | Self::Soak | Self::Bench)
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
