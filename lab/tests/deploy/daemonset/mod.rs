//! coroner as the pod that its DaemonSet asks for, in a real containerd: read from the manifests as
//! kubectl renders them, not copied. Needs root, containerd, runc, the static workload, kubectl, and
//! the image (`cargo xtask test deploy` makes and names them).

mod attack;
mod node;
mod pod;

use self::{
    attack::Attack,
    node::{DaemonSetNode, Deployed},
};
use crate::{manifest, release::User, tools::Tool};
use anyhow::{Context as _, Result, anyhow, ensure};
use coroner_lab_cluster::{
    apiserver::ResourceKind, containerd, containerd::ContainerdOptions, wait,
};
use coroner_lab_harness::{
    monitor::{ASKS_EVERY, THRESHOLD},
    run,
};
use coroner_lab_scenarios::{self as scenario, Scenario};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Container};
use rustix::thread::CapabilitySet;
use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What a variable names, or where it is built.
fn built(variable: &str, otherwise: PathBuf) -> PathBuf {
    env::var_os(variable).map_or(otherwise, PathBuf::from)
}

fn daemon_set(kustomization: &str) -> Result<DaemonSet> {
    let directory = workspace().join("deploy").join(kustomization);
    let objects = manifest::render(&Tool::Kubectl.find()?, &directory)?;
    manifest::daemon_set(&objects).cloned()
}

fn container(set: &mut DaemonSet) -> Result<&mut Container> {
    let spec = set.spec.template.spec.as_mut().context("the pods have no spec")?;
    spec.containers.first_mut().context("the pods have no container")
}

fn capabilities(set: &mut DaemonSet) -> Result<&mut Vec<String>> {
    let context = container(set)?.security_context.as_mut();
    let capabilities = context.and_then(|context| context.capabilities.as_mut());
    capabilities.and_then(|all| all.add.as_mut()).context("no capabilities are added")
}

/// A node with the DaemonSet's image: the machine's own containerd on cgroup v2, unless `with` says
/// otherwise.
async fn node(
    directory: &Path,
    set: &mut DaemonSet,
    with: impl FnOnce(&mut ContainerdOptions) -> Result<()>,
) -> Result<DaemonSetNode> {
    ensure!(rustix::process::geteuid().is_root(), "the lab needs root: run this with sudo");
    let workload = Path::new(env!("CARGO_BIN_EXE_coroner-lab")).with_file_name("workload");
    let mut options =
        ContainerdOptions::new(directory.join("w"), built("CORONER_LAB_WORKLOAD", workload));
    with(&mut options)?;
    let archive = built("CORONER_IMAGE", workspace().join("target/image/coroner.tar"));
    let image = container(set)?.image.clone().context("the container has no image")?;
    DaemonSetNode::start(options, &archive, &image).await
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
async fn the_pod_measures_with_no_more_than_the_manifest_gives_it() -> Result<()> {
    let (directory, mut set) = (directory()?, daemon_set("base")?);
    let node = node(directory.path(), &mut set, |_| Ok(())).await?;
    let tried = async {
        let deployed = node.run(&set).await?;
        confines_itself(&deployed.ready().await?.text)?;
        doctor_has_the_flags(&deployed).await?;
        is_confined(&deployed, capabilities(&mut set)?)?;
        measures(&deployed).await?;
        let answer = deployed.readiness().await?;
        ensure!(answer.ok && !answer.text.contains("FAILING"), "after that: {}", answer.text);
        deployed.end().await?;

        each_capability_is_missed(&node, &mut set).await?;
        the_profile_that_is_shipped_lets_it_work(&node, &mut set).await
    }
    .await;
    let stopped = node.stop().await;
    tried.and(stopped)
}

/// The kernel agrees with the manifest.
fn is_confined(deployed: &Deployed<'_>, capabilities: &[String]) -> Result<()> {
    let pid = deployed.pid()?;
    let bits = capabilities.iter().try_fold(CapabilitySet::empty(), |all, name| {
        let one = CapabilitySet::from_name(name).with_context(|| format!("no capability {name}"));
        one.map(|one| all | one)
    })?;
    ensure!(status(pid, "CapBnd")? == format!("{:016x}", bits.bits()), "{capabilities:?}");
    for (key, wanted) in [("NoNewPrivs", "1"), ("Seccomp", "2"), ("Uid", "0\t0\t0\t0")] {
        let found = status(pid, key)?;
        ensure!(found == wanted, "{key} is {found:?}, not {wanted:?}");
    }
    ensure!(status(pid, "NSpid")? == pid.to_string(), "it is in the host's PID namespace");
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

/// Deaths are told as any agent of the lab tells them: verdict, phases, findings.
async fn measures(deployed: &Deployed<'_>) -> Result<()> {
    let names = ["handles-sigterm", "sigterm-ignored"].map(str::to_owned);
    let scenarios = scenario::choose(&names, None).map_err(|unknown| anyhow!("{unknown}"))?;
    deployed.plays(&scenarios.iter().collect::<Vec<_>>()).await
}

/// Each is needed: without it /readyz names it.
async fn each_capability_is_missed(node: &DaemonSetNode, set: &mut DaemonSet) -> Result<()> {
    let all = capabilities(set)?.clone();
    for one in &all {
        capabilities(set)?.retain(|other| other != one);
        let deployed = node.run(set).await.with_context(|| format!("without {one}"))?;
        let answer = deployed.readiness().await?;
        deployed.end().await?;
        let named = format!("CAP_{one} is missing");
        ensure!(answer.text.contains(&named), "without {one}: {}", answer.text);
        for other in all.iter().filter(|other| *other != one) {
            let named = format!("CAP_{other} is missing");
            ensure!(!answer.text.contains(&named), "without {one}: {}", answer.text);
        }
        *capabilities(set)? = all.clone();
    }
    Ok(())
}

/// Where the runtime's own seccomp profile does not let bpf(2) through, as CRI-O's.
async fn the_profile_that_is_shipped_lets_it_work(
    node: &DaemonSetNode,
    set: &mut DaemonSet,
) -> Result<()> {
    let mut crio = daemon_set("overlays/crio")?;
    let context = container(&mut crio)?.security_context.clone();
    let profile = context.as_ref().and_then(|context| context.seccomp_profile.clone());
    let name = profile.and_then(|profile| profile.localhost_profile).context("no profile")?;
    let shipped = workspace().join("deploy/seccomp").join(&name);
    node.install_seccomp_profile(&shipped, &name)?;
    container(set)?.security_context = context;
    let deployed = node.run(set).await?;
    confines_itself(&deployed.ready().await?.text)?;
    ensure!(status(deployed.pid()?, "Seccomp")? == "2");
    deployed.end().await
}

/// Within what confines the container. This machine's kernel has both.
fn confines_itself(readiness: &str) -> Result<()> {
    for by in ["Landlock", "seccomp"] {
        ensure!(readiness.contains(&format!("; confined by {by}")), "not by {by}: {readiness}");
    }
    Ok(())
}

/// `kubectl exec ds/coroner -- coroner doctor`, without a flag and without a slash.
async fn doctor_has_the_flags(deployed: &Deployed<'_>) -> Result<()> {
    let answer = deployed.exec(&["coroner", "doctor", "--output=json"]).await?;
    let checks: serde_json::Value = serde_json::from_str(&answer)?;
    for name in ["host files", "CRI", "apiserver", "landlock", "seccomp"] {
        let found = checks["checks"].as_array().into_iter().flatten();
        let check = found.into_iter().find(|check| check["name"] == name);
        let check = check.with_context(|| format!("no check {name}: {answer}"))?;
        ensure!(check["outcome"] == "ok", "{name}: {check}");
    }
    let listed = deployed.exec(&["coroner", "terminations", "--output=json"]).await?;
    ensure!(listed.contains("\"items\""), "{listed}");
    Ok(())
}

/// The default seccomp profile of each lets bpf(2) through with CAP_BPF alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_ready_with_every_containerd() -> Result<()> {
    for version in ["1.7", "2"] {
        let (directory, mut set) = (directory()?, daemon_set("base")?);
        let with = |options: &mut ContainerdOptions| {
            options.containerd = containerd::find(version, &containerd::tools())?;
            Ok(())
        };
        let node = node(directory.path(), &mut set, with).await?;
        let tried = async {
            let deployed = node.run(&set).await?;
            let answer = deployed.ready().await?;
            ensure!(status(deployed.pid()?, "Seccomp")? == "2");
            let named = format!("containerd {version}");
            ensure!(answer.text.contains(&named), "not {named}: {}", answer.text);
            deployed.end().await
        };
        let tried = tried.await.with_context(|| format!("containerd {version}"));
        let stopped = node.stop().await;
        tried.and(stopped)?;
    }
    Ok(())
}

/// From `helm install` to `helm uninstall`, after which nothing of it is on the node but the directory of its socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_runs_is_upgraded_and_goes() -> Result<()> {
    let (directory, mut image) = (directory()?, daemon_set("base")?);
    let node = node(directory.path(), &mut image, |_| Ok(())).await?;
    let tried = async {
        let user = User::of(node.lab.store(), &node.lab.url())?;
        user.create_namespace()?;
        let set = || released(&node);
        let rollout = "--namespace coroner rollout status ds/coroner --timeout=5m";
        user.helm("install coroner deploy/chart --namespace coroner")?;
        user.kubectl(rollout)?;
        let deployed = node.deployed(&set()?).await?;
        deployed.ready().await?;
        let variables = |deployed: &Deployed<'_>| -> Result<String> {
            Ok(fs::read_to_string(format!("/proc/{}/environ", deployed.pid()?))?)
        };
        ensure!(!variables(&deployed)?.contains("CORONER_EVENTS"));
        ensure!(fs::read_dir(node.socket())?.next().is_some(), "the agent has no socket");

        let events = || node.lab.store().list(ResourceKind::Event).1.into_iter();
        let own = |event: &serde_json::Value| event["reportingComponent"] == "coroner";
        user.upgrade(&serde_json::json!({ "config": { "events": true } }))?;
        user.kubectl(rollout)?;
        deployed.gone().await?;
        let deployed = node.deployed(&set()?).await?;
        deployed.ready().await?;
        ensure!(variables(&deployed)?.contains("CORONER_EVENTS=true\0"));
        ensure!(events().all(|event| !own(&event)), "Events without a permission");
        measures(&deployed).await?;
        wait::until("an Event of the agent", || Ok(events().find(|event| own(event)))).await?;

        user.helm("uninstall coroner --namespace coroner")?;
        deployed.gone().await?;
        let left: Vec<_> = fs::read_dir(node.socket())?.collect();
        ensure!(left.is_empty(), "the directory of its socket has {left:?}");
        Ok(())
    };
    let tried = tried.await;
    let stopped = node.stop().await;
    tried.and(stopped)
}

/// The DaemonSet that helm has made.
fn released(node: &DaemonSetNode) -> Result<DaemonSet> {
    let set = node.lab.store().get(ResourceKind::DaemonSet, "coroner", "coroner")?;
    Ok(serde_json::from_value(Value::clone(&set))?)
}

/// The agent of a release is as right as the lab's own. In the gate on deaths and leaks that can be played at once, in the
/// long form on the whole catalogue but for what starts the agent itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_catalogue_agrees_with_a_release() -> Result<()> {
    let is_long = env::var_os("CORONER_TEST_LONG").is_some();
    let (directory, mut image) = (directory()?, daemon_set("base")?);
    let node = node(directory.path(), &mut image, |_| Ok(())).await?;
    let tried = async {
        let user = User::of(node.lab.store(), &node.lab.url())?;
        user.create_namespace()?;
        user.install(&serde_json::json!({
            "rbac": { "eventsLookup": true },
            "config": {
                "leak-threshold": format!("{}s", THRESHOLD.as_secs()),
                "cri-poll-interval": format!("{}s", ASKS_EVERY.as_secs()),
                "kubelet-process": node.lab.kubelet_process(),
                "kubelet-log": node.lab.kubelet_log().display().to_string(),
            },
        }))?;
        user.kubectl("--namespace coroner rollout status ds/coroner --timeout=5m")?;
        let deployed = node.deployed(&released(&node)?).await?;
        deployed.ready().await?;
        run::start_resident(&node.lab).await?;
        let all = scenario::catalogue();
        const GROUPS: [&str; 2] = ["deaths", "leaks"];
        let can = |one: &&Scenario| {
            let here =
                !one.is_special() && (!one.needs_memory_limit() || node.lab.can_limit_memory());
            let now = is_long || GROUPS.contains(&one.group) && !one.alone;
            here && now && !one.needs_own_agent()
        };
        let (alone, at_once): (Vec<_>, Vec<_>) = all.iter().filter(can).partition(|one| one.alone);
        for group in GROUPS {
            ensure!(at_once.iter().filter(|one| one.group == group).count() > 10, "{group}");
        }
        eprintln!("{} scenarios at once, {} alone", at_once.len(), alone.len());
        let pid = deployed.pid()?;
        deployed.plays(&at_once).await?;
        for one in alone {
            deployed.plays(&[one]).await?;
        }
        ensure!(deployed.pid()? == pid, "the agent was started again");
        user.helm("uninstall coroner --namespace coroner")?;
        deployed.gone().await
    };
    let tried = tried.await;
    let stopped = node.stop().await;
    tried.and(stopped)
}

/// Where the hierarchies are v1's, whose mounts are below the one that is read-only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_ready_on_cgroup_v1() -> Result<()> {
    let (directory, mut set) = (directory()?, daemon_set("overlays/cgroup-v1")?);
    let with = |options: &mut ContainerdOptions| {
        options.hierarchy = containerd::CgroupHierarchy::Legacy;
        Ok(())
    };
    let node = node(directory.path(), &mut set, with).await?;
    let tried = async {
        let deployed = node.run(&set).await?;
        let answer = deployed.ready().await?;
        let named = "hooks on v1 memory at /sys/fs/cgroup/memory";
        ensure!(answer.text.contains(named), "{}", answer.text);
        deployed.end().await
    };
    let tried = tried.await;
    let stopped = node.stop().await;
    tried.and(stopped)
}

/// Every attack at once, while pods die around it: no death is missed or misjudged, no probe fails, the agent is not
/// started again and stays below its limit. For ten minutes and with 100,000 cgroups in the long form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attack_costs_a_death_or_a_probe() -> Result<()> {
    let is_long = env::var_os("CORONER_TEST_LONG").is_some();
    let (cgroups, long) =
        if is_long { (100_000, Duration::from_secs(600)) } else { (2_000, Duration::ZERO) };
    let (directory, mut set) = (directory()?, daemon_set("base")?);
    let node = node(directory.path(), &mut set, |_| Ok(())).await?;
    let tried = async {
        let deployed = node.run(&set).await?;
        deployed.ready().await?;
        let pid = deployed.pid()?;
        let attack = Attack::begin(&deployed, cgroups).await?;
        let withstood = async {
            let dying = churn(&deployed, long);
            let mut dying = std::pin::pin!(dying);
            let mut probes = 0;
            let deaths = loop {
                tokio::select! {
                    deaths = &mut dying => break deaths?,
                    probed = probe(&deployed, is_long) => probed?,
                }
                probes += 1;
            };
            let peak = status(deployed.pid()?, "VmHWM")?;
            eprintln!(
                "{deaths} pods died, {probes} pairs of probes succeeded, at most {peak} resident"
            );
            ensure!(deployed.pid()? == pid, "the agent was started again");
            let kib: u64 = peak.trim_end_matches(" kB").parse()?;
            ensure!(kib < 192 << 10, "{peak}: more than the limit");
            ensure!(!is_long || deaths >= 60, "only {deaths} pods died");
            anyhow::Ok(())
        };
        let withstood = withstood.await;
        attack.stop().await?;
        withstood?;
        deployed.end().await
    };
    let tried = tried.await;
    let stopped = node.stop().await;
    tried.and(stopped)
}

/// The kubelet's two, a second after those before; with its timeout only where the machine has nothing else to do.
async fn probe(deployed: &Deployed<'_>, on_time: bool) -> Result<()> {
    tokio::time::sleep(Duration::from_secs(1)).await;
    let both = async {
        let (alive, ready) = (deployed.liveness().await?, deployed.readiness().await?);
        ensure!(alive.ok && ready.ok, "a probe failed: {} {}", alive.text, ready.text);
        Ok(())
    };
    if !on_time {
        return both.await;
    }
    tokio::time::timeout(Duration::from_secs(5), both).await.context("a probe timed out")?
}

/// Ways to die that need nothing but the pod itself.
const CHURN: [&str; 16] = [
    "handles-sigterm",
    "sigterm-ignored",
    "slower-than-grace",
    "job-completes",
    "crash",
    "job-fails",
    "sigwait",
    "signalfd",
    "go-style",
    "sig-ign",
    "blocked",
    "exits-with-143",
    "shell-not-forwarding",
    "leader-exits-first",
    "two-deaths-in-one-pod",
    "force-delete",
];

/// Pods that die, each in another way, and what is said of each; how many.
async fn churn(deployed: &Deployed<'_>, long: Duration) -> Result<usize> {
    let began = Instant::now();
    let names = if long.is_zero() { &CHURN[..4] } else { &CHURN[..] };
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut deaths = 0;
    for round in 0_u32.. {
        let mut played = scenario::choose(&names, None).map_err(|unknown| anyhow!("{unknown}"))?;
        // Pods that end by themselves stay, and keep their names.
        for scenario in &mut played {
            scenario.name = format!("{}-{round}", scenario.name).leak();
        }
        for some in played.chunks(6) {
            deployed.plays(&some.iter().collect::<Vec<_>>()).await?;
            deaths += some.len();
        }
        if began.elapsed() >= long {
            break;
        }
    }
    Ok(deaths)
}
