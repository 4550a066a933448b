//! The lab's command line, which is also that of `cargo xtask run | bench | soak`.

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use coroner_lab::{
    bench,
    containerd::{self, CgroupDriver},
    lab::LabOptions,
    run::Setup,
};
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
    /// Run scenarios in the lab while the real agent observes, and compare its reports with the expected ones; or observe
    /// a real node
    Run(RunArgs),
    /// Measure how exact the agent is or what it costs, beside an alternative
    Bench {
        subject: bench::Subject,
        /// In the shortest form, which only shows that the benchmark works
        #[arg(long)]
        brief: bool,
    },
    /// Repeat the catalogue with one agent, and print the slopes of its memory, descriptors and losses
    Soak {
        /// Duration (10m, 2h); the current round is completed
        #[arg(long = "for", value_name = "DURATION", default_value = "2h")]
        #[arg(value_parser = parse_duration)]
        long: Duration,
    },
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

/// The arguments of every command.
#[derive(Args)]
pub(crate) struct CommonArgs {
    /// The agent's binary [default: `coroner` beside this one]
    #[arg(long, global = true, value_name = "FILE", env = "CORONER_LAB_AGENT")]
    agent: Option<PathBuf>,
    /// The workload's binary, static [default: `workload` beside this one]
    #[arg(long, global = true, value_name = "FILE", env = "CORONER_LAB_WORKLOAD")]
    workload: Option<PathBuf>,
    /// Directory for the lab's files, which the lab removes
    #[arg(long, global = true, value_name = "DIR", default_value = "/tmp/coroner-lab")]
    pub(crate) work: PathBuf,
    /// The container runtime: a version of containerd that `cargo xtask setup` installed (2, 1.7), or the path of a
    /// daemon with its ctr and shim next to it [default: 2, or 1.7 where 2 does not start]
    #[arg(long, global = true, value_name = "VERSION|PATH")]
    containerd: Option<String>,
    /// The OCI runtime, of those that `cargo xtask setup` installed
    #[arg(long, global = true, value_name = "NAME", default_value = "runc", value_parser = ["runc", "crun"])]
    oci_runtime: String,
    /// Who makes the cgroups of pods and containers, as the kubelet's `cgroupDriver`
    #[arg(long, global = true, value_name = "NAME", default_value = "cgroupfs")]
    cgroup_driver: CgroupDriver,
    /// In PID, mount and cgroup namespaces of its own, as a node of kind, minikube or k3d
    #[arg(long, global = true)]
    pub(crate) nested: bool,
    /// Delay of the apiserver's answers to the agent, for example 9s
    #[arg(long, global = true, value_name = "TIME", value_parser = parse_duration, default_value = "0s")]
    delay_apiserver: Duration,
    /// Directory for the files of a failure (the agent's log, recording and API answers), with a folder for each failed
    /// scenario [default: `failed` in the target directory of this build]
    #[arg(long, global = true, value_name = "DIR", env = "CORONER_FAILED_DIR")]
    keep_failures: Option<PathBuf>,
    /// Write one JSON object per scenario to stdout, and everything else to stderr
    #[arg(long, global = true)]
    json: bool,
}

impl CommonArgs {
    pub(crate) fn setup(self) -> Result<Setup> {
        let program = env::current_exe()?;
        let beside = |name: &str| program.parent().unwrap_or(Path::new("")).join(name);
        let (containerd, note) = match &self.containerd {
            Some(wanted) => (containerd::find(wanted)?, None),
            None => containerd::default_version()?,
        };
        Ok(Setup {
            is_json: self.json,
            agent: self.agent.unwrap_or_else(|| beside("coroner")),
            lab: LabOptions {
                work: self.work,
                containerd,
                oci_runtime: containerd::program(&self.oci_runtime),
                cgroup_driver: self.cgroup_driver,
                workload: self.workload.unwrap_or_else(|| beside("workload")),
                delay: self.delay_apiserver,
            },
            failed: self.keep_failures,
            note,
        })
    }
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// Run only this scenario (may be repeated)
    #[arg(long = "scenario", value_name = "NAME")]
    pub(crate) scenarios: Vec<String>,
    /// Run the scenarios of this group: deaths, restarts, faults, leaks or traffic [default: deaths, one of the leaks
    /// and one of traffic]
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
    /// Address on which the agent listens, for a Prometheus server that scrapes it [default: a free port of 127.0.0.1]
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
