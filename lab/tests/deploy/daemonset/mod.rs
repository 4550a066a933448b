//! coroner as the pod that its chart asks for, in a real containerd. Needs root, containerd, runc, the static workload and
//! the image (`cargo xtask test deploy` makes and names them).

mod attack;
mod node;

use self::{
    attack::Attack,
    node::{Agent, Death, Node},
};
use crate::{chart, export::Receiver};
use anyhow::{Context as _, Result, ensure};
use coroner_core::types::Verdict::{
    Completed, Crashed, Failed, GraceExceeded, Graceful, StopSignalBlocked, StopSignalIgnored,
};
use coroner_lab::port::Port;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Container, SecurityContext},
};
use rustix::thread::CapabilitySet;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    env, fs,
    pin::pin,
    time::{Duration, Instant},
};

fn daemon_set(values: &Value) -> Result<DaemonSet> {
    chart::object(&chart::rendered(&[], values)?)
}

fn container(set: &mut DaemonSet) -> Result<&mut Container> {
    let spec = set.spec.template.spec.as_mut().context("the pods have no spec")?;
    spec.containers.first_mut().context("the pods have no container")
}

fn security(set: &mut DaemonSet) -> Result<&mut SecurityContext> {
    container(set)?.security_context.as_mut().context("no securityContext")
}

fn capabilities(set: &mut DaemonSet) -> Result<&mut Vec<String>> {
    let capabilities = security(set)?.capabilities.as_mut();
    capabilities.and_then(|all| all.add.as_mut()).context("no capabilities are added")
}

fn directory() -> Result<tempfile::TempDir> {
    // A socket's path is short.
    Ok(tempfile::Builder::new().prefix("cds").tempdir_in("/tmp")?)
}

/// A line of /proc/PID/status.
fn status(pid: i32, key: &str) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("no {key} in /proc/{pid}/status"))?.trim().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pod_measures_with_no_more_than_the_chart_gives_it() -> Result<()> {
    let directory = directory()?;
    let node = Node::start(directory.path()).await?;
    let ports = [Port::reserve()?, Port::reserve()?];
    let mut receiver = Receiver::start("ok", [&ports[0], &ports[1]])?;
    let tried = async {
        let endpoint = format!("http://{}", node.publish(ports[0].address())?);
        let mut set = daemon_set(&json!({"config": {"otlp-endpoint": endpoint}}))?;
        let agent = node.run(&set).await?;
        confines_itself(&agent.ready().await?)?;
        is_confined(&agent, capabilities(&mut set)?)?;
        agent.reports(&DEATHS[..2]).await?;
        let (ready, text) = agent.page("/readyz").await?;
        ensure!(ready && !text.contains("FAILING"), "after that: {text}");
        let mut pods = agent.terminated().await?;
        ensure!(pods.len() >= 2, "{pods:?}");
        pods.push(agent.ends_after(&DEATHS[0]).await?);
        arrive(&mut receiver, &pods).await?;

        each_capability_is_missed(&node, &mut set).await?;
        the_profile_that_is_shipped_lets_it_work(&node, &mut set).await
    };
    let tried = tried.await;
    tried.and(node.stop().await)
}

/// Each termination is in the receiver, as a trace and as a record.
async fn arrive(receiver: &mut Receiver, pods: &[String]) -> Result<()> {
    let both = ["pod termination", "coroner.termination"];
    let of_both = |pod: &String| both.map(|name| (pod.clone(), name.to_owned()));
    let mut missing: BTreeSet<_> = pods.iter().flat_map(of_both).collect();
    while !missing.is_empty() {
        let request = receiver.request().await.with_context(|| format!("without {missing:?}"))?;
        for item in request["items"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            missing.remove(&(text(&item["attributes"]["k8s.pod.uid"]), text(&item["name"])));
        }
    }
    Ok(())
}

/// The kernel agrees with the chart.
fn is_confined(agent: &Agent<'_>, capabilities: &[String]) -> Result<()> {
    let pid = agent.pid()?;
    let bits = capabilities.iter().try_fold(CapabilitySet::empty(), |all, name| {
        let one = CapabilitySet::from_name(name).with_context(|| format!("no capability {name}"));
        one.map(|one| all | one)
    })?;
    ensure!(status(pid, "CapBnd")? == format!("{:016x}", bits.bits()), "{capabilities:?}");
    for (key, wanted) in [("NoNewPrivs", "1"), ("Seccomp", "2"), ("Uid", "0\t0\t0\t0")] {
        let found = status(pid, key)?;
        ensure!(found == wanted, "{key} is {found:?}, not {wanted:?}");
    }
    ensure!(status(pid, "NSpid")? == pid.to_string(), "it is not in the host's PID namespace");
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo"))?;
    // Nothing of the runtime's: a file system mounted here could not be removed there.
    ensure!(!mounts.contains("/run/containerd"), "{mounts}");
    for (at, follows) in [("/", false), ("/sys/fs/cgroup", true)] {
        // proc_pid_mountinfo(5): the mount point is the fifth field, its options the sixth; then
        // what it is a slave of.
        let mut of = mounts.lines().filter(|line| line.split(' ').nth(4) == Some(at));
        let line = of.next_back().with_context(|| format!("{at} is not mounted"))?;
        let options = line.split(' ').nth(5).unwrap_or_default();
        ensure!(options.split(',').any(|option| option == "ro"), "{at} is mounted {options}");
        ensure!(!follows || line.contains(" master:"), "{at} does not follow the host's: {line}");
    }
    Ok(())
}

/// Each is needed: without it /readyz names it.
async fn each_capability_is_missed(node: &Node, set: &mut DaemonSet) -> Result<()> {
    let all = capabilities(set)?.clone();
    for one in &all {
        capabilities(set)?.retain(|other| other != one);
        let agent = node.run(set).await.with_context(|| format!("without {one}"))?;
        let (_, text) = agent.page("/readyz").await?;
        agent.end().await?;
        for name in &all {
            let is_named = text.contains(&format!("CAP_{name} is missing"));
            ensure!(is_named == (name == one), "without {one}: {text}");
        }
        *capabilities(set)? = all.clone();
    }
    Ok(())
}

/// Where the runtime's own seccomp profile does not let bpf(2) through, as CRI-O's.
async fn the_profile_that_is_shipped_lets_it_work(node: &Node, set: &mut DaemonSet) -> Result<()> {
    let profile = json!({"type": "Localhost", "localhostProfile": "coroner.json"});
    let mut crio = daemon_set(&json!({"seccompProfile": profile}))?;
    node.install_seccomp_profile("coroner.json")?;
    *security(set)? = security(&mut crio)?.clone();
    let agent = node.run(set).await?;
    confines_itself(&agent.ready().await?)?;
    ensure!(status(agent.pid()?, "Seccomp")? == "2");
    agent.remembers(2).await?;
    agent.reports(&DEATHS[..1]).await?;
    agent.remembers(3).await?;
    agent.end().await
}

/// Within what confines the container. This machine's kernel has both.
fn confines_itself(readiness: &str) -> Result<()> {
    for by in ["Landlock", "seccomp"] {
        ensure!(readiness.contains(&format!("; confined by {by}")), "not by {by}: {readiness}");
    }
    Ok(())
}

/// Every attack at once, while pods die around it: no death is missed or gets another verdict, no probe fails, the agent is
/// not started again and stays below its limit. For ten minutes and with 100,000 cgroups in the long form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attack_costs_a_death_or_a_probe() -> Result<()> {
    let is_long = env::var_os("CORONER_TEST_LONG").is_some();
    let (cgroups, long) =
        if is_long { (100_000, Duration::from_secs(600)) } else { (2_000, Duration::ZERO) };
    let (directory, set) = (directory()?, daemon_set(&json!({}))?);
    let node = Node::start(directory.path()).await?;
    let tried = async {
        let agent = node.run(&set).await?;
        agent.ready().await?;
        let pid = agent.pid()?;
        let attack = Attack::begin(&agent, cgroups).await?;
        let withstood = async {
            let mut dying = pin!(churn(&agent, long));
            let mut probes = 0;
            let deaths = loop {
                tokio::select! {
                    deaths = &mut dying => break deaths?,
                    probed = probe(&agent, is_long) => probed?,
                }
                probes += 1;
            };
            let peak = status(agent.pid()?, "VmHWM")?;
            eprintln!(
                "{deaths} pods died, {probes} pairs of probes succeeded, at most {peak} resident"
            );
            ensure!(agent.pid()? == pid, "the agent was started again");
            let kib: u64 = peak.trim_end_matches(" kB").parse()?;
            ensure!(kib < 192 << 10, "{peak}: more than the limit");
            ensure!(!is_long || deaths >= 60, "only {deaths} pods died");
            anyhow::Ok(())
        };
        let withstood = withstood.await;
        attack.stop().await?;
        withstood?;
        agent.end().await
    };
    let tried = tried.await;
    tried.and(node.stop().await)
}

/// The kubelet's two, a second after those before; with its timeout only where the machine has nothing else to do.
async fn probe(agent: &Agent<'_>, on_time: bool) -> Result<()> {
    tokio::time::sleep(Duration::from_secs(1)).await;
    let both = async {
        let (alive, ready) = (agent.page("/healthz").await?, agent.page("/readyz").await?);
        ensure!(alive.0 && ready.0, "a probe failed: {} {}", alive.1, ready.1);
        Ok(())
    };
    if !on_time {
        return both.await;
    }
    tokio::time::timeout(Duration::from_secs(5), both).await.context("a probe timed out")?
}

/// Ways to die that need nothing but the pod itself.
const DEATHS: [Death; 16] = [
    Death::deleted("handles-sigterm", 10, &[("handle --for 2s", Graceful)]),
    Death::deleted("sigterm-ignored", 5, &[("ignore", StopSignalIgnored)]),
    Death::deleted("slower-than-grace", 3, &[("handle --for 10s", GraceExceeded)]),
    Death::exits("job-completes", &[("job --for 2s", Completed)]),
    Death::exits("crash", &[("crash --after 1s", Crashed)]),
    Death::exits("job-fails", &[("job --for 1s --exit 7", Failed)]),
    Death::deleted("sigwait", 6, &[("sigwait --for 1s", Graceful)]),
    Death::deleted("signalfd", 6, &[("signalfd --for 1s", Graceful)]),
    Death::deleted("go-style", 6, &[("go-style --for 1s", Graceful)]),
    Death::deleted("sig-ign", 3, &[("sig-ign", StopSignalIgnored)]),
    Death::deleted("blocked", 3, &[("block", StopSignalBlocked)]),
    Death::deleted("exits-with-143", 5, &[("handle --for 500ms --exit 143", Graceful)]),
    Death::deleted(
        "shell-not-forwarding",
        5,
        &[("shell --child handle --for 1s", StopSignalIgnored)],
    ),
    Death::deleted("leader-exits-first", 6, &[("leader-exits --for 1s --exit 3", Graceful)]),
    Death::deleted(
        "two-deaths-in-one-pod",
        6,
        &[("handle --for 1s", Graceful), ("ignore", StopSignalIgnored)],
    ),
    Death::deleted("force-delete", 0, &[("handle --for 1s", Graceful)]),
];

/// Pods die for so long, six at a time, each in another way; how many.
async fn churn(agent: &Agent<'_>, long: Duration) -> Result<usize> {
    let began = Instant::now();
    let kinds = if long.is_zero() { &DEATHS[..4] } else { &DEATHS[..] };
    let mut deaths = 0;
    loop {
        for some in kinds.chunks(6) {
            agent.reports(some).await?;
            deaths += some.len();
        }
        if began.elapsed() >= long {
            return Ok(deaths);
        }
    }
}
