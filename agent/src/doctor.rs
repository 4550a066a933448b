//! `coroner doctor`: would `run` work here? Facts are looked at one by one, judged by pure
//! functions, and the whole is proven by what `run` itself would do: load the programs, ask the
//! runtime, list the pods.

use crate::{
    cli::args::{DoctorArgs, DoctorOutput},
    config::{ConfigError, Host, Sources},
    cri,
    domain::input::{ApiEvent, CriEvent, Input, Received},
    kernel, kube,
    report::Style,
};
use serde::Serialize;
use std::{
    fs,
    future::Future,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};
use tokio::sync::mpsc;

/// How long a source may take for its first answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Capabilities by number (`include/uapi/linux/capability.h`).
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// How a check came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Well.
    Ok,
    /// `run` would not work.
    Failed,
    /// Not looked at, and why.
    Skipped,
}

/// One check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it came out.
    pub outcome: Outcome,
    /// What was found.
    pub found: String,
    /// What to do, where something is to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub todo: String,
}

/// The whole answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Diagnosis {
    /// `run` would work.
    pub ok: bool,
    /// The checks, in their order.
    pub checks: Vec<Check>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Ok, found: found.into(), todo: String::new() }
    }

    fn failed(name: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Failed, found: found.into(), todo: todo.into() }
    }

    fn skipped(name: &'static str, why: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Skipped, found: why.into(), todo: String::new() }
    }
}

/// Looks at everything and prints it. The exit status says whether `run` would work.
pub fn main(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let sources = Sources::validate(&args.sources, &Host::probe());
    let diagnosis = diagnose(sources)?;
    let mut stdout = io::stdout().lock();
    match args.output {
        DoctorOutput::Json => {
            serde_json::to_writer_pretty(&mut stdout, &diagnosis).map_err(io::Error::from)?;
            stdout.write_all(b"\n")?;
        }
        DoctorOutput::Text => {
            stdout.write_all(text(&diagnosis, &Style::for_stdout()).as_bytes())?;
        }
    }
    stdout.flush()?;
    Ok(if diagnosis.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn diagnose(sources: Result<Sources, ConfigError>) -> anyhow::Result<Diagnosis> {
    let mut checks = vec![kernel_release(), btf()];
    let capabilities = fs::read_to_string("/proc/self/status");
    checks.push(judge_capabilities(capabilities.as_deref().unwrap_or_default()));
    let mounts = fs::read_to_string("/proc/self/mountinfo");
    checks.push(judge_cgroups(mounts.as_deref().unwrap_or_default()));
    match sources {
        Ok(sources) => {
            checks.push(programs(&sources.kernel));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            checks.push(runtime.block_on(container_runtime(sources.cri)));
            checks.push(match sources.kube {
                Some(options) => runtime.block_on(apiserver(options)),
                None => Check::skipped("apiserver", "not used (--no-api)"),
            });
            runtime.shutdown_timeout(Duration::from_millis(100));
        }
        Err(error) => checks.push(Check::failed("configuration", error.to_string(), "")),
    }
    Ok(Diagnosis { ok: checks.iter().all(|check| check.outcome != Outcome::Failed), checks })
}

fn kernel_release() -> Check {
    let uname = rustix::system::uname();
    judge_release(&uname.release().to_string_lossy(), uname.machine().to_str().unwrap_or("?"))
}

/// The oldest kernel that the programs are tried on is 5.10; ring buffers came with 5.8.
fn judge_release(release: &str, machine: &str) -> Check {
    let mut numbers = release.split(['.', '-', '+']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let found = format!("Linux {release} {machine}");
    if version >= (5, 8) {
        return Check::ok("kernel", found);
    }
    let todo = "use Linux 5.8 or newer (5.10 is the oldest that is tested)";
    Check::failed("kernel", found, todo)
}

fn btf() -> Check {
    const PATH: &str = "/sys/kernel/btf/vmlinux";
    match fs::File::open(PATH).and_then(|file| file.metadata()) {
        Ok(metadata) => Check::ok("BTF", format!("{PATH}, {} KiB", metadata.len() / 1024)),
        Err(error) => Check::failed(
            "BTF",
            format!("{PATH}: {error}"),
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, and mount /sys into the container",
        ),
    }
}

fn judge_capabilities(status: &str) -> Check {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let Some(effective) = effective else {
        return Check::failed(
            "capabilities",
            "/proc/self/status does not tell them",
            "mount /proc into the container",
        );
    };
    let has = |capability: u32| effective & (1 << capability) != 0;
    let missing: Vec<&str> = [("CAP_BPF", BPF), ("CAP_PERFMON", PERFMON)]
        .into_iter()
        .filter_map(|(name, number)| (!has(number)).then_some(name))
        .collect();
    match (missing.is_empty(), has(SYS_ADMIN)) {
        (true, _) => Check::ok("capabilities", "CAP_BPF and CAP_PERFMON"),
        (false, true) => Check::ok("capabilities", "CAP_SYS_ADMIN, which includes them"),
        (false, false) => Check::failed(
            "capabilities",
            format!("without {}", missing.join(" and ")),
            "run as root, or give the container securityContext.capabilities.add: [BPF, PERFMON]",
        ),
    }
}

/// What `/proc/self/mountinfo` (proc_pid_mountinfo(5)) says of cgroup hierarchies.
fn judge_cgroups(mountinfo: &str) -> Check {
    let (mut v2, mut v1) = (Vec::new(), Vec::new());
    for line in mountinfo.lines() {
        let Some((mount, kind)) = line.split_once(" - ") else { continue };
        let Some(at) = mount.split(' ').nth(4) else { continue };
        match kind.split(' ').next() {
            Some("cgroup2") => v2.push(at),
            Some("cgroup") => v1.push(at),
            _ => {}
        }
    }
    let found = match (v2.first(), v1.len()) {
        (Some(at), 0) => format!("v2 at {at}"),
        (Some(at), n) => format!("hybrid: v2 at {at}, {n} hierarchies of v1"),
        (None, 0) => {
            let todo = "mount the host's /sys/fs/cgroup into the container, read-only";
            return Check::failed("cgroups", "no hierarchy is mounted", todo);
        }
        (None, n) => format!("v1: {n} hierarchies"),
    };
    Check::ok("cgroups", found)
}

/// Loads and attaches for real, proves it by the self-test, and detaches.
fn programs(options: &kernel::Options) -> Check {
    const NAME: &str = "programs";
    let kernel = match kernel::start(options) {
        Ok(kernel) => kernel,
        Err(error) => {
            return Check::failed(NAME, error.to_string(), "see what failed above, and try again");
        }
    };
    let report = kernel.report();
    let refused: Vec<String> = report
        .hooks
        .iter()
        .filter_map(|(hook, how)| Some(format!("{hook}: {}", how.as_ref().err()?)))
        .collect();
    if refused.is_empty() {
        let hooks = report.hooks.len();
        return Check::ok(NAME, format!("{hooks} hooks, self-test passed, {}", report.hierarchy));
    }
    Check::failed(
        NAME,
        refused.join("; "),
        "these hooks are missing on this kernel: please report it with the output of `uname -a`",
    )
}

async fn container_runtime(options: cri::Options) -> Check {
    const NAME: &str = "CRI";
    let endpoint = options.endpoint.clone();
    let (to, inputs) = mpsc::channel(64);
    let (_requests, from_requests) = mpsc::channel(1);
    let answer = first(cri::run(options, to, from_requests), inputs, |input| match input {
        Input::Cri(CriEvent::Connected { runtime, .. }) => Some(Ok(runtime)),
        Input::Cri(CriEvent::Unreachable { error }) => Some(Err(error)),
        _ => None,
    });
    match answer.await {
        Ok(runtime) => Check::ok(NAME, format!("{runtime} at {endpoint}")),
        Err(error) => Check::failed(
            NAME,
            format!("{endpoint}: {error}"),
            "is the container runtime running, its socket mounted, and the one of --cri?",
        ),
    }
}

async fn apiserver(options: kube::Options) -> Check {
    const NAME: &str = "apiserver";
    let node = options.node.clone();
    let (to, inputs) = mpsc::channel(64);
    let answer = first(kube::run(options, to), inputs, |input| match input {
        Input::Api(ApiEvent::Snapshot { pods }) => Some(Ok(pods.len())),
        Input::Api(ApiEvent::OutOfSync { error }) => Some(Err(error)),
        _ => None,
    });
    match answer.await {
        Ok(pods) => Check::ok(NAME, format!("{pods} pods on node {node}")),
        Err(error) => Check::failed(
            NAME,
            error,
            "can the apiserver be reached, and may the agent list and watch pods (RBAC)? --no-api \
             does without",
        ),
    }
}

/// The first word of a source that counts.
async fn first<T>(
    source: impl Future<Output = anyhow::Result<()>>,
    mut inputs: mpsc::Receiver<Received>,
    counts: impl Fn(Input) -> Option<Result<T, String>>,
) -> Result<T, String> {
    let answer = async {
        while let Some(received) = inputs.recv().await {
            if let Some(answer) = counts(received.input) {
                return answer;
            }
        }
        Err("it ended without an answer".to_owned())
    };
    tokio::select! {
        biased;
        answer = answer => answer,
        ended = source => Err(match ended {
            Ok(()) => "it ended without an answer".to_owned(),
            Err(error) => format!("{error:#}"),
        }),
        () = tokio::time::sleep(PATIENCE) => {
            Err(format!("no answer within {} s", PATIENCE.as_secs()))
        }
    }
}

fn text(diagnosis: &Diagnosis, style: &Style) -> String {
    let mut lines: Vec<String> = Vec::new();
    for check in &diagnosis.checks {
        let (mark, color) = match check.outcome {
            Outcome::Ok => ("✔", "32"),
            Outcome::Failed => ("✘", "31"),
            Outcome::Skipped => ("–", "2"),
        };
        let mark = if style.color { format!("\x1b[{color}m{mark}\x1b[0m") } else { mark.into() };
        lines.push(format!("{mark} {:<13} {}", check.name, check.found));
        if !check.todo.is_empty() {
            lines.push(format!("  {:<13} → {}", "", check.todo));
        }
    }
    lines.push(if diagnosis.ok {
        "`coroner run` would work here.".to_owned()
    } else {
        "`coroner run` would not work here: see ✘ above.".to_owned()
    });
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        for (release, outcome) in [
            ("6.18.5", Outcome::Ok),
            ("5.10.0-33-cloud-amd64", Outcome::Ok),
            ("5.8+", Outcome::Ok),
            ("5.4.0-150-generic", Outcome::Failed),
            ("4.19.0", Outcome::Failed),
            ("", Outcome::Failed),
        ] {
            assert_eq!(judge_release(release, "x86_64").outcome, outcome, "{release}");
        }
    }

    #[test]
    fn capabilities() {
        let with = |mask: u64| judge_capabilities(&format!("Name:\tx\nCapEff:\t{mask:016x}\n"));
        assert_eq!(with(1 << BPF | 1 << PERFMON).outcome, Outcome::Ok);
        assert_eq!(with(1 << SYS_ADMIN).outcome, Outcome::Ok);
        assert_eq!(with(1 << BPF).found, "without CAP_PERFMON");
        assert_eq!(with(0).found, "without CAP_BPF and CAP_PERFMON");
        assert_eq!(judge_capabilities("CapEff: nonsense").outcome, Outcome::Failed);
    }

    #[test]
    fn cgroup_modes() {
        let v2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let v1 = "31 23 0:27 / /sys/fs/cgroup/pids rw shared:5 - cgroup cgroup rw,pids\n";
        let hybrid = format!("{v1}{}", v2.replace("/cgroup rw", "/cgroup/unified rw"));
        assert_eq!(judge_cgroups(v2).found, "v2 at /sys/fs/cgroup");
        assert_eq!(judge_cgroups(v1).found, "v1: 1 hierarchies");
        let found = judge_cgroups(&hybrid).found;
        assert_eq!(found, "hybrid: v2 at /sys/fs/cgroup/unified, 1 hierarchies of v1");
        assert_eq!(judge_cgroups("nonsense\n - \n").outcome, Outcome::Failed);
    }

    #[test]
    fn the_answer_as_text() {
        let checks = vec![
            Check::ok("kernel", "Linux 6.18"),
            Check::failed("BTF", "missing", "use another kernel"),
            Check::skipped("apiserver", "not used"),
        ];
        let answer = text(&Diagnosis { ok: false, checks }, &Style::default());
        let wanted = "✔ kernel        Linux 6.18\n✘ BTF           missing\n                → use another \
                      kernel\n– apiserver     not used\n`coroner run` would not work here: see ✘ \
                      above.\n";
        assert_eq!(answer, wanted);
    }
}
