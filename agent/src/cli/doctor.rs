//! `coroner doctor`: checks whether `run` works on this node. Pure functions evaluate facts about the node; then the
//! same steps as in `run` are tried: load the programs, query the runtime, list the pods.

use crate::{
    cli::output::document,
    config::args::{DoctorArgs, TextOutput},
    config::{ConfigError, HostDefaults, Sources},
    linux::{landlock, procfs::ProcVisibility},
    outputs::report::Style,
    sources::{cri, host, kernel, kube},
    store::health::why_suspended,
};
use coroner_core::{
    input::{ApiEvent, CriEvent, Input, Received},
    leak::DetectionState,
};
use serde::Serialize;
use std::{
    fs,
    future::Future,
    io::{self, Write},
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;

/// Timeout for the first answer of a source.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckOutcome {
    /// Passed.
    Ok,
    /// `run` works but reports less.
    Degraded,
    /// `run` does not work.
    Failed,
    /// Not checked.
    Skipped,
}

/// One check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// The result.
    pub outcome: CheckOutcome,
    /// What was found.
    pub found: String,
    /// The remedy; empty if there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub todo: String,
}

/// All checks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Diagnosis {
    /// `run` works on this node.
    pub ok: bool,
    /// The checks, in order.
    pub checks: Vec<Check>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, outcome: CheckOutcome::Ok, found: found.into(), todo: String::new() }
    }

    fn degraded(name: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { name, outcome: CheckOutcome::Degraded, found: found.into(), todo: todo.into() }
    }

    fn failed(name: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { name, outcome: CheckOutcome::Failed, found: found.into(), todo: todo.into() }
    }

    fn skipped(name: &'static str, why: impl Into<String>) -> Self {
        Self { name, outcome: CheckOutcome::Skipped, found: why.into(), todo: String::new() }
    }
}

/// Runs and prints all checks. The exit status says whether `run` works.
pub fn main(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let sources = Sources::validate(&args.sources, &HostDefaults::probe());
    let diagnosis = diagnose(sources, args.sources.node.cgroup_root.as_deref())?;
    let mut stdout = io::stdout().lock();
    match args.output {
        TextOutput::Text => {
            stdout.write_all(text(&diagnosis, &Style::for_stdout()).as_bytes())?;
        }
        form => stdout.write_all(document(&diagnosis, form == TextOutput::Yaml)?.as_bytes())?,
    }
    stdout.flush()?;
    Ok(if diagnosis.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn diagnose(
    sources: Result<Sources, ConfigError>,
    cgroup_root: Option<&Path>,
) -> anyhow::Result<Diagnosis> {
    let mut sources = match sources {
        Ok(sources) => sources,
        Err(error) => {
            // The kernel side does not depend on the invalid flags and is checked anyway.
            let cgroup_root = cgroup_root.map(Into::into);
            let mut checks =
                kernel_side(&kernel::KernelOptions { cgroup_root, ..Default::default() });
            checks.push(Check::failed("configuration", error.to_string(), ""));
            return Ok(Diagnosis::of(checks));
        }
    };
    // A container has no securityfs of its own.
    let lockdowns = [&sources.cri.host_root, Path::new("/")].map(|root| root.join(LOCKDOWN));
    let mode = lockdowns.iter().find_map(|file| fs::read_to_string(file).ok());
    let mut checks: Vec<Check> = lockdown(mode.as_deref()).into_iter().collect();
    checks.extend(kernel_side(&sources.kernel));
    checks.push(seccomp(fs::read_to_string(SECCOMP_ACTIONS).ok().as_deref()));
    checks.extend(confinement(fs::read_to_string(OWN_LABEL).ok().as_deref()));
    checks.push(own_files(landlock::probe()));
    checks.extend(host_checks(ProcVisibility::probe(&sources.cri.host_root)));
    let boot_id = host::boot_id(&sources.cri.host_root);
    // By it the runtime of this node's pods is told from others.
    let hierarchy = kernel::hierarchy(cgroup_root).ok();
    sources.cri.cgroup_root = hierarchy.map(|hierarchy| hierarchy.root);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    checks.push(runtime.block_on(container_runtime(sources.cri)));
    match sources.kube {
        Some(options) => {
            // A single query needs no spread.
            let options = kube::KubeOptions { spread: Duration::ZERO, ..options };
            checks.push(runtime.block_on(apiserver(options.clone())));
            checks.push(runtime.block_on(node(options, boot_id)));
        }
        None => checks.push(Check::skipped("apiserver", "not used (--no-api)")),
    }
    runtime.shutdown_timeout(Duration::from_millis(100));
    Ok(Diagnosis::of(checks))
}

/// Checks the kernel's facts and, if none failed, the programs.
fn kernel_side(options: &kernel::KernelOptions) -> Vec<Check> {
    let mut checks = checks(&kernel::probe(options));
    let promising = checks.iter().all(|check| check.outcome != CheckOutcome::Failed);
    match promising {
        true => checks.extend(programs(options)),
        false => checks.push(Check::skipped("self-test", "skipped until the checks above pass")),
    }
    checks
}

impl Diagnosis {
    fn of(checks: Vec<Check>) -> Self {
        Self { ok: checks.iter().all(|check| check.outcome != CheckOutcome::Failed), checks }
    }
}

/// Evaluates the kernel's facts. Pure.
fn checks(facts: &kernel::KernelFacts) -> Vec<Check> {
    vec![
        release(&facts.release),
        match &facts.btf {
            Ok(btf) => Check::ok("BTF", format!("{} KiB", btf.bytes.len() / 1024)),
            Err(error) => Check::failed(
                "BTF",
                error,
                "use a kernel with CONFIG_DEBUG_INFO_BTF=y, and mount /sys into the container",
            ),
        },
        capabilities(facts),
        match &facts.hierarchy {
            Ok(kernel::Hierarchy { root, holds_pods }) => {
                let pods = if *holds_pods { "which holds the pods" } else { "no pod is there yet" };
                Check::ok("cgroups", format!("cgroup v2 at {}, {pods}", root.display()))
            }
            Err(error) => Check::failed("cgroups", error.to_string(), ""),
        },
        match facts.programs_embedded {
            true => Check::ok("programs", "built into this binary"),
            false => Check::failed(
                "programs",
                "not built into this binary",
                "build it with `cargo xtask build`",
            ),
        },
    ]
}

/// Ring buffers need Linux 5.8; 5.10 is the oldest tested kernel.
fn release(release: &str) -> Check {
    let found = format!("Linux {release}");
    if kernel::facts::version(release) >= (5, 8) {
        return Check::ok("kernel", found);
    }
    let todo = "use Linux 5.8 or newer (5.10 is the oldest tested version)";
    Check::failed("kernel", found, todo)
}

fn capabilities(facts: &kernel::KernelFacts) -> Check {
    const NAME: &str = "capabilities";
    let held = facts.privileges;
    let lacks = held.lacking(facts.memlock_is_short);
    if lacks.is_empty() {
        return Check::ok(NAME, held.names().collect::<Vec<_>>().join(", "));
    }
    let found = lacks
        .iter()
        .map(|lack| format!("missing {}: {}", lack.capability, lack.purpose))
        .collect::<Vec<_>>()
        .join("; ");
    let todo = "run as root, or add the capabilities listed in deploy/coroner.yaml to the container's \
                securityContext (CAP_SYS_RESOURCE: the chart's extraCapabilities)";
    if lacks.iter().any(|lack| lack.essential) {
        return Check::failed(NAME, found, todo);
    }
    Check::degraded(NAME, found, todo)
}

/// What a filter of system calls can do in this kernel (`Documentation/userspace-api/seccomp_filter.rst`).
const SECCOMP_ACTIONS: &str = "/proc/sys/kernel/seccomp/actions_avail";

/// Whether `run` can filter its own system calls. Pure.
fn seccomp(actions: Option<&str>) -> Check {
    const NAME: &str = "seccomp";
    let has = |wanted| actions.is_some_and(|all| all.split_whitespace().any(|one| one == wanted));
    if has("errno") && has("allow") {
        return Check::ok(NAME, "the agent filters its own system calls after the start");
    }
    Check::degraded(
        NAME,
        format!("the kernel has no filters of system calls (no errno in {SECCOMP_ACTIONS})"),
        "use a kernel with CONFIG_SECCOMP_FILTER=y; the agent works without, less confined",
    )
}

/// Whether `run` can keep threads to their own files. Pure.
fn own_files(probed: Result<(), String>) -> Check {
    const NAME: &str = "landlock";
    match probed {
        Ok(()) => Check::ok(NAME, "threads that look at no other process keep to their own files"),
        Err(why) => Check::degraded(NAME, why, "the agent works without, less confined"),
    }
}

/// Below a root: the kernel's lockdown, `none [integrity] confidentiality` (`security/lockdown/lockdown.c`).
const LOCKDOWN: &str = "sys/kernel/security/lockdown";

/// Whether programs may read kernel memory (`LOCKDOWN_BPF_READ_KERNEL`). `None`: the kernel has no lockdown, or does
/// not show it. Pure.
fn lockdown(modes: Option<&str>) -> Option<Check> {
    const NAME: &str = "lockdown";
    let mode =
        modes?.split_whitespace().find_map(|mode| mode.strip_prefix('[')?.strip_suffix(']'))?;
    Some(match mode {
        "confidentiality" => Check::failed(
            NAME,
            "confidentiality: no program may read kernel memory",
            "boot with lockdown=integrity (Talos: a kernel argument; Bottlerocket: \
             settings.kernel.lockdown), which suffices for Secure Boot",
        ),
        mode => Check::ok(NAME, mode),
    })
}

/// This process' label: an AppArmor profile, or an SELinux context.
const OWN_LABEL: &str = "/proc/self/attr/current";

/// Types of SELinux that may look at other processes: of container-selinux, of Bottlerocket, of processes on the host.
const UNCONFINED_TYPES: [&str; 6] =
    ["spc_t", "super_t", "control_t", "unconfined_t", "unconfined_service_t", "kernel_t"];

/// Whether a security module confines this process. `None`: there is none that says so. Pure.
fn confinement(label: Option<&str>) -> Option<Check> {
    const NAME: &str = "confinement";
    let label = label?.trim_matches(['\0', '\n', ' ']);
    let may_confine = |found: String, todo| {
        Check::degraded(
            NAME,
            format!("{found}: other processes and the host's files may be closed to the agent"),
            todo,
        )
    };
    let parts: Vec<&str> = label.split(':').collect();
    Some(match parts.as_slice() {
        [""] => return None,
        ["unconfined"] => Check::ok(NAME, "no AppArmor profile"),
        [_, _, kind, _, ..] if UNCONFINED_TYPES.contains(kind) => {
            Check::ok(NAME, format!("SELinux type {kind}"))
        }
        [_, _, kind, _, ..] => may_confine(
            format!("SELinux type {kind}"),
            "run the container with seLinuxOptions.type spc_t (the chart's seLinuxOptions), on \
             Bottlerocket super_t",
        ),
        // The one that deploy/apparmor ships.
        ["coroner (enforce)"] => Check::ok(NAME, "AppArmor profile coroner"),
        _ if label.ends_with("(complain)") => {
            Check::ok(NAME, format!("AppArmor profile {label} denies nothing"))
        }
        _ => may_confine(
            format!("AppArmor profile {label}"),
            "run the container with appArmorProfile: Unconfined, as the chart does, or with the \
             profile in deploy/apparmor",
        ),
    })
}

/// What of the host can be read, and what is not reported because of the rest. Pure.
fn host_checks(visibility: ProcVisibility) -> [Check; 2] {
    const FILES: &str = "host files";
    const PROCESSES: &str = "processes";
    let hidden = visibility.hidden();
    let hidden = |part| {
        let hidden = hidden.iter().find(|hidden| hidden.part == part)?;
        Some(Check::degraded(part, hidden.cost, hidden.todo))
    };
    let processes = match visibility {
        ProcVisibility { wait_channels: false, .. } => Check::degraded(
            PROCESSES,
            "process states only; leaks of class orphan_shim and orphan_netns are not reported, \
             nor where in the kernel an unkillable process hangs",
            "run as root, or add SYS_PTRACE to the container's capabilities",
        ),
        ProcVisibility { stacks: false, .. } => {
            Check::ok(PROCESSES, "states and wait channels (stacks need CAP_SYS_ADMIN)")
        }
        ProcVisibility { .. } => Check::ok(PROCESSES, "states, wait channels and stacks"),
    };
    [
        hidden(FILES).unwrap_or_else(|| Check::ok(FILES, "readable under --host-root")),
        hidden(PROCESSES).unwrap_or(processes),
    ]
}

/// Loads and attaches the programs, runs the self-test, and detaches.
fn programs(options: &kernel::KernelOptions) -> Vec<Check> {
    match kernel::start(options) {
        Ok(kernel) => vec![self_test(&kernel.report()), traffic(&kernel.report())],
        Err(error) => vec![Check::failed("self-test", error.to_string(), "")],
    }
}

/// What the self-test of the hooks found. Pure.
fn self_test(report: &kernel::StartReport) -> Check {
    const NAME: &str = "self-test";
    let refused = report.refusals();
    let hooks = report.hooks.len();
    if let (true, Some(unproven)) = (refused.is_empty(), &report.unproven) {
        let found = format!("{hooks} hooks attached; {unproven}");
        return match unproven.is_harmless() {
            true => Check::ok(NAME, found),
            false => Check::skipped(NAME, found),
        };
    }
    if refused.is_empty() {
        return Check::ok(NAME, format!("{hooks} hooks attached and verified"));
    }
    Check::failed(
        NAME,
        refused,
        "this kernel does not support these hooks; please report it with the output of `uname -a`",
    )
}

/// Whether the connections of terminating pods can be counted. Pure.
fn traffic(report: &kernel::StartReport) -> Check {
    const NAME: &str = "traffic";
    let losses = report.traffic_losses();
    let counted = "connections of terminating pods are counted";
    match &report.traffic_unproven {
        _ if !report.counts_traffic() => Check::degraded(
            NAME,
            losses,
            "please report it with the output of `uname -a`; all else works",
        ),
        Some(why) => Check::skipped(NAME, format!("not verified by the self-test: {why}")),
        None if losses.is_empty() => Check::ok(NAME, counted),
        // That is how kernels before 6.10 are.
        None => Check::ok(NAME, format!("{counted}; {losses}")),
    }
}

async fn container_runtime(options: cri::CriOptions) -> Check {
    const NAME: &str = "CRI";
    let dialed = Arc::clone(&options.dialed);
    let (to, inputs) = mpsc::channel(64);
    let (_requests, from_requests) = mpsc::channel(1);
    let answer = first(cri::run(options, to, from_requests), inputs, |input| match input {
        Input::Cri(CriEvent::Connected { runtime, .. }) => Some(Ok(runtime)),
        Input::Cri(CriEvent::Unreachable { error, .. }) => Some(Err(error)),
        _ => None,
    });
    match answer.await {
        Ok(runtime) => {
            let socket = dialed.get().map(|socket| format!(" at {}", socket.path.display()));
            Check::ok(NAME, runtime + &socket.unwrap_or_default())
        }
        Err(error) => Check::failed(
            NAME,
            error,
            "check that the runtime runs, and set --runtime-endpoint if it uses a socket that is not known",
        ),
    }
}

async fn apiserver(options: kube::KubeOptions) -> Check {
    const NAME: &str = "apiserver";
    let node = options.node.clone();
    let (to, inputs) = mpsc::channel(64);
    let (_ask, requests) = mpsc::channel(1);
    let answer = first(kube::run(options, to, requests), inputs, |input| match input {
        Input::Api(ApiEvent::Snapshot { pods }) => Some(Ok(pods.len())),
        Input::Api(ApiEvent::OutOfSync { error }) => Some(Err(error)),
        _ => None,
    });
    match answer.await {
        Ok(pods) => Check::ok(NAME, format!("{pods} pods on node {node}")),
        Err(error) => Check::failed(
            NAME,
            error,
            "check that the apiserver is reachable and that the agent may list and watch pods \
             (RBAC), or use --no-api",
        ),
    }
}

/// Reads the Node object.
async fn node(options: kube::KubeOptions, boot_id: Option<String>) -> Check {
    let name = options.node.clone();
    let (to, inputs) = mpsc::channel(64);
    let (_ask, requests) = mpsc::channel(1);
    let answer = first(kube::run(options, to, requests), inputs, |input| match input {
        Input::Api(event @ (ApiEvent::Node(_) | ApiEvent::NodeUnknown { .. })) => Some(Ok(event)),
        _ => None,
    });
    whose_node(&name, answer.await, boot_id.as_deref())
}

/// Checks that the Node object belongs to this machine, which leak detection requires.
fn whose_node(name: &str, answer: Result<ApiEvent, String>, boot_id: Option<&str>) -> Check {
    const NAME: &str = "node";
    let (state, error) = match answer {
        Ok(ApiEvent::Node(node)) if Some(&*node.boot_id) == boot_id => {
            let version = node.kubelet_version;
            return Check::ok(NAME, format!("{name} is this machine, kubelet {version}"));
        }
        Ok(ApiEvent::Node(_)) if boot_id.is_some() => (DetectionState::NodeForeign, None),
        Ok(ApiEvent::NodeUnknown { missing: true, error }) => {
            (DetectionState::NodeMissing, Some(error))
        }
        Ok(ApiEvent::NodeUnknown { error, .. }) | Err(error) => {
            (DetectionState::NodeUnknown, Some(error))
        }
        Ok(_) => (DetectionState::NodeUnknown, None),
    };
    let (why, todo) = why_suspended(state);
    let error = error.map(|error| format!(": {error}")).unwrap_or_default();
    let found = format!("{name}: leaks cannot be reported: {why}{error}");
    match state {
        DetectionState::NodeUnknown => Check::degraded(NAME, found, todo),
        _ => Check::failed(NAME, found, todo),
    }
}

/// The first relevant answer of a source.
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
        Err("stopped without an answer".to_owned())
    };
    tokio::select! {
        biased;
        answer = answer => answer,
        ended = source => Err(match ended {
            Ok(()) => "stopped without an answer".to_owned(),
            Err(error) => crate::chain(error.as_ref()),
        }),
        () = tokio::time::sleep(TIMEOUT) => {
            Err(format!("no answer within {} s", TIMEOUT.as_secs()))
        }
    }
}

fn text(diagnosis: &Diagnosis, style: &Style) -> String {
    let mut lines: Vec<String> = Vec::new();
    for check in &diagnosis.checks {
        let (mark, color) = match check.outcome {
            CheckOutcome::Ok => ("✔", "32"),
            CheckOutcome::Degraded => ("!", "33"),
            CheckOutcome::Failed => ("✘", "31"),
            CheckOutcome::Skipped => ("–", "2"),
        };
        let mark = if style.color { format!("\x1b[{color}m{mark}\x1b[0m") } else { mark.into() };
        lines.push(format!("{mark} {:<13} {}", check.name, check.found));
        if !check.todo.is_empty() {
            lines.push(format!("  {:<13} → {}", "", check.todo));
        }
    }
    lines.push(if diagnosis.ok {
        "`coroner run` will work on this node.".to_owned()
    } else {
        "`coroner run` will not work on this node: see ✘ above.".to_owned()
    });
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::privileges::Privileges;
    use rustix::thread::CapabilitySet;

    /// A host on which everything works.
    fn capable() -> kernel::KernelFacts {
        kernel::KernelFacts {
            release: "6.18.5".into(),
            btf: Ok(kernel::facts::BtfFacts { bytes: vec![0; 4096], tracepoints: vec![] }),
            privileges: Privileges::of(
                CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::SYS_PTRACE,
            ),
            memlock_is_short: false,
            hierarchy: Ok(kernel::Hierarchy { root: "/sys/fs/cgroup".into(), holds_pods: true }),
            programs_embedded: true,
        }
    }

    fn failed(facts: &kernel::KernelFacts) -> Vec<&'static str> {
        let checks = checks(facts);
        let failed = checks.iter().filter(|check| check.outcome == CheckOutcome::Failed);
        failed.map(|check| check.name).collect()
    }

    #[test]
    fn a_kernel_without_filters_is_less() {
        let outcome = |actions| seccomp(actions).outcome;
        assert_eq!(outcome(Some("kill_process errno trace log allow\n")), CheckOutcome::Ok);
        assert_eq!(outcome(Some("kill_process")), CheckOutcome::Degraded);
        assert_eq!(outcome(None), CheckOutcome::Degraded);
    }

    #[test]
    fn lockdown_is_in_the_way_in_confidentiality_mode_only() {
        for (modes, expected) in [
            ("[none] integrity confidentiality\n", Some(CheckOutcome::Ok)),
            ("none [integrity] confidentiality\n", Some(CheckOutcome::Ok)),
            ("none integrity [confidentiality]\n", Some(CheckOutcome::Failed)),
            ("", None),
        ] {
            assert_eq!(lockdown(Some(modes)).map(|check| check.outcome), expected, "{modes}");
        }
        assert_eq!(lockdown(None), None);
    }

    #[test]
    fn what_confines_the_agent_is_named_with_the_remedy() {
        for (label, expected, word) in [
            ("unconfined\n", CheckOutcome::Ok, "no AppArmor"),
            ("cri-containerd.apparmor.d (enforce)\n", CheckOutcome::Degraded, "Unconfined"),
            ("coroner (enforce)\n", CheckOutcome::Ok, "coroner"),
            ("crio-default (complain)\n", CheckOutcome::Ok, "denies nothing"),
            ("system_u:system_r:container_t:s0:c1,c2\0", CheckOutcome::Degraded, "spc_t"),
            ("system_u:system_r:spc_t:s0", CheckOutcome::Ok, "spc_t"),
            ("system_u:system_r:super_t:s0", CheckOutcome::Ok, "super_t"),
            ("unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023", CheckOutcome::Ok, "_t"),
        ] {
            let check = confinement(Some(label)).unwrap();
            assert_eq!(check.outcome, expected, "{label:?}");
            let said = format!("{} {}", check.found, check.todo);
            assert!(said.contains(word), "{label:?}: {said}");
        }
        assert_eq!((confinement(None), confinement(Some("\n"))), (None, None));
    }

    #[test]
    fn whose_node_it_is() {
        use coroner_core::input::ApiNode;
        let node =
            |boot: &str| Ok(ApiEvent::Node(ApiNode { boot_id: boot.into(), ..ApiNode::default() }));
        let unknown = |missing| Ok(ApiEvent::NodeUnknown { missing, error: "check --node".into() });
        for (answer, boot, expected) in [
            (node("b1"), Some("b1"), CheckOutcome::Ok),
            (node("b1"), Some("b2"), CheckOutcome::Failed),
            (node("b1"), None, CheckOutcome::Degraded),
            (unknown(true), Some("b1"), CheckOutcome::Failed),
            (unknown(false), Some("b1"), CheckOutcome::Degraded),
            (Err("no answer".into()), Some("b1"), CheckOutcome::Degraded),
        ] {
            let check = whose_node("n1", answer.clone(), boot);
            assert_eq!(check.outcome, expected, "{answer:?} {boot:?}: {}", check.found);
        }
    }

    #[test]
    fn each_missing_fact_is_named() {
        assert_eq!(failed(&capable()), [""; 0]);
        let old = kernel::KernelFacts { release: "5.4.0-150-generic".into(), ..capable() };
        assert_eq!(failed(&old), ["kernel"]);
        let odd = kernel::KernelFacts { release: String::new(), ..capable() };
        assert_eq!(failed(&odd), ["kernel"]);
        let without = kernel::KernelFacts { btf: Err("no".into()), ..capable() };
        assert_eq!(failed(&without), ["BTF"]);
        let with = |set| kernel::KernelFacts { privileges: Privileges::of(set), ..capable() };
        assert_eq!(failed(&with(CapabilitySet::BPF)), ["capabilities"]);
        assert_eq!(failed(&with(CapabilitySet::SYS_ADMIN)), [""; 0], "it includes the others");
        let error = kernel::HierarchyError::NotMounted;
        let bare = kernel::KernelFacts { hierarchy: Err(error), ..capable() };
        assert_eq!(failed(&bare), ["cgroups"]);
        let hollow = kernel::KernelFacts { programs_embedded: false, ..capable() };
        assert_eq!(failed(&hollow), ["programs"]);
    }

    #[test]
    fn what_cannot_be_seen_is_named_and_is_no_failure() {
        let all = ProcVisibility {
            root: true,
            host: true,
            namespaces: true,
            wait_channels: true,
            stacks: true,
        };
        for (visibility, outcome, word) in [
            (all, CheckOutcome::Ok, "stacks"),
            (ProcVisibility { stacks: false, ..all }, CheckOutcome::Ok, "CAP_SYS_ADMIN"),
            (
                ProcVisibility { wait_channels: false, ..all },
                CheckOutcome::Degraded,
                "process states only",
            ),
            (
                ProcVisibility { namespaces: false, ..all },
                CheckOutcome::Degraded,
                "security module",
            ),
            (ProcVisibility { host: false, ..all }, CheckOutcome::Degraded, "not visible"),
        ] {
            let [files, check] = host_checks(visibility);
            assert_eq!(files.outcome, CheckOutcome::Ok);
            assert_eq!(check.outcome, outcome, "{visibility:?}");
            assert!(check.found.contains(word), "{}", check.found);
            assert_eq!(check.todo.is_empty(), outcome == CheckOutcome::Ok, "{}", check.todo);
            assert!(Diagnosis::of(vec![check]).ok);
        }
        let [files, processes] = host_checks(ProcVisibility { root: false, ..all });
        assert_eq!((files.outcome, processes.outcome), (CheckOutcome::Degraded, CheckOutcome::Ok));
        assert!(files.found.contains("orphan_netns") && !files.todo.is_empty());
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
                      kernel\n– apiserver     not used\n`coroner run` will not work on this node: \
                      see ✘ above.\n";
        assert_eq!(answer, wanted);
    }
}
