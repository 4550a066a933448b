//! The lab's command line, which is also that of `cargo xtask run | bench | chaos | soak`.

use clap::{
    Args, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser as _},
};
use coroner_lab_bench as bench;
use coroner_lab_chaos as chaos;
use coroner_lab_cluster::containerd::{self, CgroupDriver, CgroupHierarchy};
use coroner_lab_harness::environment::Setup;
use std::{
    env,
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// A one-node cluster on this machine, in which real containers terminate.
#[derive(Parser)]
#[command(name = "coroner-lab", version, max_term_width = 100)]
pub(crate) struct LabCli {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

#[derive(Subcommand)]
pub(crate) enum LabCommand {
    /// Run scenarios in the lab while the real agent observes, and compare its reports with the expected ones; or observe a
    /// real node
    Run(RunArgs),
    /// Measure how exact the agent is or what it costs, beside an alternative
    Bench {
        subject: bench::Subject,
        /// In the shortest form, which only shows that the benchmark works
        #[arg(long)]
        brief: bool,
    },
    /// Inject faults while pods come and go, and check the agent's reports after each fault: docs/chaos.md. Exits
    /// with 1 if a check fails
    Chaos(ChaosArgs),
    /// Inject random faults for hours with one agent; fails if its memory or descriptors grow
    #[command(after_help = SOAK_HELP)]
    Soak(SoakArgs),
    /// Run the lab as process 1 of a PID namespace
    #[command(name = crate::nested::INIT, hide = true)]
    Init {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Make events as requested on stdin: the load of a benchmark
    #[command(name = bench::load::COMMAND, hide = true)]
    BenchLoad,
}

fn hierarchy(version: String) -> CgroupHierarchy {
    match version.as_str() {
        "v1" => CgroupHierarchy::Legacy,
        _ => CgroupHierarchy::Unified,
    }
}

fn driver(name: String) -> CgroupDriver {
    match name.as_str() {
        "systemd" => CgroupDriver::Systemd,
        _ => CgroupDriver::Cgroupfs,
    }
}

/// The arguments of every command.
#[derive(Args)]
pub(crate) struct CommonArgs {
    /// The agent's binary [default: `coroner` beside this one]
    #[arg(long, global = true, value_name = "FILE", env = "CORONER_LAB_AGENT")]
    agent: Option<PathBuf>,
    /// The workload's binary, static [default: `workload` beside this one]
    #[arg(long, global = true, value_name = "FILE", env = "CORONER_LAB_WORKLOAD")]
    workload: Option<PathBuf>,
    /// Directory for the lab's files
    #[arg(long, global = true, value_name = "DIR", default_value = "/tmp/coroner-lab")]
    pub(crate) work: PathBuf,
    /// The container runtime: a version of containerd that `cargo xtask setup` installed (1.6, 1.7, 2), or the path
    /// of a daemon with its ctr and shim next to it [default: the oldest version]
    #[arg(long, global = true, value_name = "VERSION|PATH")]
    pub(crate) containerd: Option<String>,
    /// The OCI runtime, of those that `cargo xtask setup` installed
    #[arg(long, global = true, value_name = "NAME", default_value = "runc", value_parser = ["runc", "crun"])]
    oci_runtime: String,
    /// The version of cgroups that runc uses; a hybrid machine has both
    #[arg(long, global = true, value_name = "VERSION", default_value = "v2")]
    #[arg(value_parser = PossibleValuesParser::new(["v2", "v1"]).map(hierarchy))]
    cgroup: CgroupHierarchy,
    /// Who makes the cgroups of pods and containers, as the kubelet's `cgroupDriver`; systemd only on cgroup v2
    #[arg(long, global = true, value_name = "NAME", default_value = "cgroupfs")]
    #[arg(value_parser = PossibleValuesParser::new(["cgroupfs", "systemd"]).map(driver))]
    cgroup_driver: CgroupDriver,
    /// In PID, mount and cgroup namespaces of its own, as a node of kind, minikube or k3d
    #[arg(long, global = true)]
    pub(crate) nested: bool,
    /// Directory for the files of a failure (the agent's logs and API answers, the kubelet's record), with a folder
    /// for each failed scenario or fault [default: `failed` in the target directory of this build, otherwise in the
    /// work directory]
    #[arg(long, global = true, value_name = "DIR", env = "CORONER_FAILED_DIR")]
    keep_failures: Option<PathBuf>,
    /// Write one JSON object per scenario or round to stdout, and everything else to stderr
    #[arg(long, global = true)]
    json: bool,
}

impl CommonArgs {
    pub(crate) fn setup(self) -> anyhow::Result<Setup> {
        let program = env::current_exe()?;
        let beside = |name: &str| program.parent().unwrap_or(Path::new("")).join(name);
        let workload = self.workload.unwrap_or_else(|| beside("workload"));
        let mut cluster = containerd::ContainerdOptions::new(&self.work, workload);
        cluster.hierarchy = self.cgroup;
        cluster.driver = self.cgroup_driver;
        cluster.oci_runtime = containerd::program(&self.oci_runtime);
        if let Some(wanted) = &self.containerd {
            cluster.containerd = containerd::find(wanted, &containerd::tools())?;
        }
        Ok(Setup {
            json: self.json,
            agent: self.agent.unwrap_or_else(|| beside("coroner")),
            program,
            cluster,
            failed: self.keep_failures,
        })
    }
}

#[derive(Args)]
pub(crate) struct ChaosArgs {
    /// Inject only this fault (may be repeated)
    #[arg(long = "fault", value_name = "NAME")]
    pub(crate) faults: Vec<String>,
    /// List the faults and exit
    #[arg(long)]
    pub(crate) list: bool,
    /// Number of rounds of all the faults; the first is in the order of the list, the others are shuffled
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Run for this long instead (90s, 30m, 2h); the current round is completed
    #[arg(long = "for", value_name = "DURATION", conflicts_with = "rounds")]
    #[arg(value_parser = parse_duration)]
    pub(crate) long: Option<Duration>,
    /// Decides the order of the faults, the ways to die and the moments
    #[arg(long, value_name = "N", default_value_t = chaos::SEED)]
    pub(crate) seed: u64,
    /// Also fail a round for a missed goal: memory, descriptors, and the time until ready, which also depend on the
    /// machine
    #[arg(long)]
    pub(crate) goals: bool,
}

#[derive(Args)]
pub(crate) struct SoakArgs {
    /// Duration (10m, 2h); the current round is completed
    #[arg(long = "for", value_name = "DURATION", default_value = "2h")]
    #[arg(value_parser = parse_duration)]
    pub(crate) long: Duration,
    /// Decides the order of the faults, the ways to die and the moments
    #[arg(long, value_name = "N", default_value_t = chaos::SEED)]
    pub(crate) seed: u64,
}

const SOAK_HELP: &str = "\
A line per round: RssAnon, descriptors, threads, series, losses, terminations, wrong verdicts and
false leaks, measured when all has settled. Faults that start the agent again are left out.

Flat is: the first quarter of the time warms up and does not count; over the rest the median of the
slopes between all pairs of measurements (Theil and Sen) makes at most 2 MiB of RssAnon and 2
descriptors. It fails if that is more, or if any round falls short of what `chaos` demands.";

#[derive(Args)]
pub(crate) struct RunArgs {
    /// Run only this scenario (may be repeated)
    #[arg(long = "scenario", value_name = "NAME")]
    pub(crate) scenarios: Vec<String>,
    /// Run the scenarios of this group: deaths, causes, faults, leaks, events or traffic [default: deaths, one of the
    /// leaks and one of traffic]
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Run all scenarios
    #[arg(long, conflicts_with_all = ["scenarios", "group"])]
    pub(crate) all: bool,
    /// List the scenarios and exit
    #[arg(long)]
    pub(crate) list: bool,
    /// Keep the lab and the agent running until Ctrl-C, and print their addresses
    #[arg(long, conflicts_with = "cri")]
    pub(crate) keep: bool,
    /// Delay of the apiserver's answers to the agent, for example 9s
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0s")]
    pub(crate) delay_apiserver: Duration,
    /// Delay of the container runtime's answers to the agent
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0s")]
    pub(crate) delay_runtime: Duration,
    /// Address on which the agent listens, for a Prometheus server that scrapes it [default: a free port of
    /// 127.0.0.1]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Observe a real node instead: the socket of its container runtime
    #[arg(long, value_name = "ENDPOINT", requires_all = ["kubeconfig", "node"],
          conflicts_with_all = ["scenarios", "group", "all", "list"])]
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
