//! Cgroups, and the actors in them.

use super::{
    actor::{self, EventOrder},
    case::{CasePlace, KernelEvent},
};
use anyhow::{Context as _, bail};
use coroner_ebpf::maps::SIGNAL_WAKE_PAUSE;
use coroner_lab_harness::agent::die_with_parent;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// Beginning of the names of the cgroups at the root; our pid follows.
const PREFIX: &str = "coroner-bench-";
/// How long a cgroup may stay busy after its processes were killed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Names as a kubelet with the cgroupfs driver gives them.
const POD: &str = "pod8dbc5577-d0e2-4706-8787-57d52c03ddf2";

/// A cgroup of ours. Dropped, it goes with all that is below and in it.
#[derive(Debug)]
struct StageCgroup(PathBuf);

impl StageCgroup {
    fn make(path: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for StageCgroup {
    fn drop(&mut self) {
        // Linux 5.14 and later; before that there is nobody left, for the actors are dropped first.
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        let until = Instant::now() + PATIENCE;
        while remove(&self.0).is_err() && self.0.exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// An actor's process. Dropped, it is killed.
#[derive(Debug)]
struct Actor {
    _child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    fn start(program: &Path, cgroup: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command
            .arg(actor::COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        die_with_parent(&mut command);
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let pid = child.id().context("the actor ended at once")?;
        fs::write(cgroup.join("cgroup.procs"), pid.to_string())
            .with_context(|| format!("cannot put a process into {}", cgroup.display()))?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the actor has no pipes");
        };
        Ok(Self { _child: child, orders, answers: BufReader::new(answers).lines() })
    }

    async fn order(&mut self, order: &EventOrder) -> anyhow::Result<i64> {
        let line = format!("{}\n", serde_json::to_string(order)?);
        self.orders.write_all(line.as_bytes()).await.context("the actor is gone")?;
        let answer = self.answers.next_line().await.context("the actor is gone")?;
        let answer = answer.with_context(|| format!("the actor failed at {order:?}"))?;
        answer.parse().with_context(|| format!("the actor answered {answer:?}"))
    }
}

/// One place: an actor, processes to be signalled, and where it makes cgroups.
#[derive(Debug)]
struct Scene {
    actor: Actor,
    ignorer: i32,
    zombie: i32,
    lives: PathBuf,
    /// The actor whose container nobody signals from outside: its exits are its own affair.
    quiet: Option<Actor>,
}

/// All that acts. Its processes go before its cgroups.
#[derive(Debug)]
pub(super) struct KernelScenes {
    outside: Scene,
    inside: Scene,
    _cgroups: Vec<StageCgroup>,
}

impl KernelScenes {
    /// Makes an ordinary cgroup and a pod with two containers below a hierarchy's root, and puts
    /// actors there. `program` is `coroner-lab`.
    pub(super) async fn build(root: &Path, program: &Path) -> anyhow::Result<Self> {
        let name = |what: &str| root.join(format!("{PREFIX}{}-{what}", std::process::id()));
        let outside = StageCgroup::make(name("outside"))?;
        let leaf = StageCgroup::make(outside.0.join("service"))?;
        let top = StageCgroup::make(name("kubepods"))?;
        let pod = StageCgroup::make(top.0.join(POD))?;
        let container = |number: u32| StageCgroup::make(pod.0.join(format!("{number:064x}")));
        let (signalled, quiet) = (container(1)?, container(2)?);
        let scene = async |cgroup: &Path, lives: PathBuf, quiet: Option<&Path>| {
            let mut actor = Actor::start(program, cgroup)?;
            Ok::<_, anyhow::Error>(Scene {
                ignorer: i32::try_from(actor.order(&EventOrder::Ignorer).await?)?,
                zombie: i32::try_from(actor.order(&EventOrder::Zombie).await?)?,
                lives,
                quiet: quiet.map(|cgroup| Actor::start(program, cgroup)).transpose()?,
                actor,
            })
        };
        // Names of the same length: who looks for a container in them has the same work.
        let life = format!("{:064x}", 3);
        Ok(Self {
            outside: scene(&leaf.0, outside.0.join(&life), None).await?,
            inside: scene(&signalled.0, pod.0.join(&life), Some(&quiet.0)).await?,
            _cgroups: vec![quiet, signalled, pod, top, leaf, outside],
        })
    }

    /// Does it, so that there are so many events.
    pub(super) async fn act(
        &mut self,
        place: CasePlace,
        act: KernelEvent,
        times: u32,
    ) -> anyhow::Result<()> {
        let (from, at) = match place {
            CasePlace::Outside => (None, &mut self.outside),
            CasePlace::Inside => (Some(&mut self.outside.actor), &mut self.inside),
        };
        let (ignorer, zombie, cgroup) = (at.ignorer, at.zombie, at.lives.clone());
        let send = |to, signal, pause_us| EventOrder::Send { to, signal, times, pause_us };
        let term = libc::SIGTERM;
        let (actor, order) = match act {
            KernelEvent::Exits => (at.quiet.as_mut(), EventOrder::Exits(times)),
            KernelEvent::Handled | KernelEvent::HandledBeyond => {
                (None, EventOrder::Raise { signal: term, times })
            }
            KernelEvent::Chatter => (None, EventOrder::Raise { signal: libc::SIGURG, times }),
            KernelEvent::Term => (from, send(ignorer, term, 0)),
            KernelEvent::TermPaced => (from, send(ignorer, term, PAUSE_US)),
            KernelEvent::Kill => (from, send(zombie, libc::SIGKILL, 0)),
            KernelEvent::Lives => (from, EventOrder::Lives { cgroup, times }),
        };
        let done = actor.unwrap_or(&mut at.actor).order(&order).await?;
        if done == i64::from(times) { Ok(()) } else { bail!("{order:?}: {done}") }
    }
}

/// In which the agent's reader has read all there is, and sleeps; and after which a signal wakes it
/// again.
const PAUSE_US: u64 = SIGNAL_WAKE_PAUSE / 1000 * 5 / 4;
const _: () = assert!(PAUSE_US * 1000 > SIGNAL_WAKE_PAUSE);
