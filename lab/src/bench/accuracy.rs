//! `cargo xtask bench accuracy`: how far coroner's times of exits and signals are from an independent observer's, beside the
//! runtime's `finished_at` for the same containers.
//!
//! The truth is an interval of CLOCK_BOOTTIME. A container certainly lives when it logs that its handler has ended, or when
//! the benchmark is about to send SIGKILL; it has certainly exited when its pidfd is readable. A signal that the benchmark
//! sends itself is sent between two readings of the clock, and handled before the first instruction of the handler.

use crate::bench::{
    lab::{BenchLab, MeasuredAgent},
    table::{percentile, shown, table},
};
use anyhow::{Context as _, bail};
use coroner::linux::clock::boot_now;
use futures::future::join_all;
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
    time::{ClockId, clock_gettime},
};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs,
    os::fd::OwnedFd,
    process::Stdio,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tokio::{process::Command, sync::oneshot};

/// Pods of a round: each way to die equally often.
const PODS: usize = 21;
/// Rounds on an idle machine, and as many beside a spinning process for each CPU.
const ROUNDS: usize = 4;
/// Between two deaths of a round.
const STAGGER: Duration = Duration::from_millis(90);
/// Generous, because the machine is busy: until a pod runs, and until its death is reported.
const WITHIN: Duration = Duration::from_secs(90);

/// A way to die.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// The pod is deleted, and the runtime sends SIGTERM, which is handled.
    Deleted,
    /// The benchmark sends SIGTERM, which is handled.
    Term,
    /// The benchmark sends SIGKILL.
    Kill,
}

const WAYS: [Way; 3] = [Way::Deleted, Way::Term, Way::Kill];

/// The event happened at `from` or later and at `to` or earlier, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Truth {
    from: u64,
    to: u64,
}

impl Truth {
    /// What a claim is wrong by at least (0 inside) and at most, ns.
    fn errors(self, claim: u64) -> [u64; 2] {
        let least = claim.saturating_sub(self.to).max(self.from.saturating_sub(claim));
        [least, claim.abs_diff(self.from).max(claim.abs_diff(self.to))]
    }
}

/// What is compared, in the order of the table: name, milestone in coroner's report.
const CLAIMS: [(&str, &str); 6] = [
    ("exit: coroner, exited", "exited"),
    ("exit: coroner, cgroup_empty", "cgroup_empty"),
    ("exit: runtime, finished_at", ""),
    ("SIGTERM: coroner, term_sent", "term_sent"),
    ("SIGTERM: coroner, term_handled", "term_handled"),
    ("SIGKILL: coroner, kill_sent", "kill_sent"),
];

/// One death: the truth of each of [`CLAIMS`], and the runtime's time of the exit.
struct Death {
    container: String,
    truths: [Option<Truth>; CLAIMS.len()],
    finished: u64,
}

/// Errors of each of [`CLAIMS`], ms: at least, at most.
type Errors = [[Vec<f64>; 2]; CLAIMS.len()];

pub(crate) async fn measure(lab: &BenchLab<'_>, brief: bool) -> anyhow::Result<String> {
    let agent = lab.agent(None, &[]).await?;
    let rounds = if brief { 1 } else { ROUNDS };
    let mut rows = Vec::new();
    for load in ["idle", "busy"] {
        let _spinning = if load == "busy" { spin()? } else { Vec::new() };
        let mut errors = Errors::default();
        for number in 1..=rounds {
            lab.step(&format!("{load}: round {number} of {rounds}"));
            round(lab, &agent, &format!("{load}-{number}"), &mut errors).await?;
        }
        for ((name, _), [least, most]) in CLAIMS.iter().zip(errors) {
            let figures = [
                percentile(&least, 50),
                percentile(&least, 99),
                percentile(&least, 100),
                percentile(&most, 50),
                percentile(&most, 99),
            ];
            let mut row = vec![(*name).to_owned(), load.into(), least.len().to_string()];
            row.extend(figures.map(shown));
            rows.push(row);
        }
    }
    agent.stop().await;
    let header = ["error, ms", "machine", "deaths", "p50", "p99", "max", "at most: p50", "p99"];
    Ok(table(&header, rows))
}

/// A process for each CPU that uses it up.
fn spin() -> anyhow::Result<Vec<tokio::process::Child>> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let start = |_| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).kill_on_drop(true);
        crate::agent::die_with_parent(&mut shell);
        shell.spawn().context("cannot start sh")
    };
    (0..cpus).map(start).collect()
}

/// Pods are started together and die one after the other.
async fn round(
    lab: &BenchLab<'_>,
    agent: &MeasuredAgent,
    prefix: &str,
    errors: &mut Errors,
) -> anyhow::Result<()> {
    let pods =
        (0..PODS).map(|n| RunningPod::start(lab, WAYS[n % WAYS.len()], format!("{prefix}-{n}")));
    let pods = join_all(pods).await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let names: Vec<String> = pods.iter().map(|pod| pod.name.clone()).collect();
    let deaths = pods.into_iter().zip(1..).map(|(pod, turn)| pod.end(lab, STAGGER * turn));
    let deaths = join_all(deaths).await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let reports = reports(agent, &deaths).await?;
    for death in &deaths {
        let report = &reports[&death.container];
        for (((_, milestone), truth), [least, most]) in
            CLAIMS.iter().zip(death.truths).zip(&mut *errors)
        {
            let Some(truth) = truth else { continue };
            let claim = match *milestone {
                "" => death.finished,
                kind => report
                    .get(kind)
                    .copied()
                    .with_context(|| format!("{}: no {kind} in the report", death.container))?,
            };
            let [at_least, at_most] = truth.errors(claim).map(|ns| ns as f64 / 1e6);
            least.push(at_least);
            most.push(at_most);
        }
    }
    for name in names {
        // The object of a deleted pod may be gone.
        let _ = lab.delete(&name);
    }
    Ok(())
}

/// The milestones of each container's death, ns of CLOCK_BOOTTIME, when all of them are reported with an empty cgroup.
async fn reports(
    agent: &MeasuredAgent,
    deaths: &[Death],
) -> anyhow::Result<HashMap<String, HashMap<String, u64>>> {
    wait("reports of all deaths", async || {
        let list: Value = serde_json::from_str(&agent.page("/api/v1/deaths").await?)?;
        let milestones = |death: &Value| {
            let all = death["milestones"].as_array().into_iter().flatten();
            all.filter_map(|one| {
                Some((one["kind"].as_str()?.into(), one["at"]["bootNs"].as_u64()?))
            })
            .collect::<HashMap<String, u64>>()
        };
        let items = list["items"].as_array().into_iter().flatten();
        let reports: HashMap<_, _> = items
            .filter_map(|death| Some((death["id"].as_str()?.to_owned(), milestones(death))))
            .filter(|(_, milestones)| milestones.contains_key("cgroup_empty"))
            .collect();
        let all = deaths.iter().all(|death| reports.contains_key(&death.container));
        Ok(all.then_some(reports))
    })
    .await
}

/// A running pod, and who observes it.
struct RunningPod {
    name: String,
    way: Way,
    container: String,
    log: String,
    process: Arc<OwnedFd>,
    exited: oneshot::Receiver<Observed>,
}

impl RunningPod {
    async fn start(lab: &BenchLab<'_>, way: Way, name: String) -> anyhow::Result<Self> {
        let uid = lab.create(json!({
            "metadata": { "name": name },
            "spec": { "containers": [{ "name": "app", "args": ["handle", "--for", "20ms"] }] },
        }))?;
        wait(&name, async || {
            let Some(container) = lab.containers(&uid).await?.pop() else { return Ok(None) };
            let status = lab.status(&container).await?;
            let log = status.status.context("no status")?.log_path;
            let info = status.info.get("info").context("no info")?;
            let pid = serde_json::from_str::<Value>(info)?["pid"].as_i64();
            // The runtime reports 0 until the container runs.
            let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
            let Some(pid) = pid.filter(|_| logged(&log, "start").is_some()) else {
                return Ok(None);
            };
            let process = Arc::new(pidfd_open(pid, PidfdFlags::empty())?);
            go_first(Some(pid));
            let exited = observe(Arc::clone(&process))?;
            Ok(Some(Self { name: name.clone(), way, container, log, process, exited }))
        })
        .await
    }

    /// Ends it when it is its turn.
    async fn end(self, lab: &BenchLab<'_>, turn: Duration) -> anyhow::Result<Death> {
        tokio::time::sleep(turn).await;
        let before = boot_now().0;
        match self.way {
            Way::Deleted => lab.delete(&self.name)?,
            Way::Term => pidfd_send_signal(&self.process, Signal::TERM)?,
            Way::Kill => pidfd_send_signal(&self.process, Signal::KILL)?,
        }
        let after = boot_now().0;
        let exited = tokio::time::timeout(WITHIN, self.exited).await;
        let exited = exited.with_context(|| format!("{} does not exit", self.name))??;
        let (finished, handled, lived) = wait(&self.name, async || {
            let status = lab.status(&self.container).await?.status.context("no status")?;
            let finished = u64::try_from(status.finished_at).ok().filter(|at| *at > 0);
            let logged = match self.way {
                Way::Kill => Some((None, before)),
                // Containerd writes the log while the container exits, and after it.
                _ => logged(&self.log, "exit").map(|exit| (logged(&self.log, "term"), exit)),
            };
            Ok(finished.zip(logged).map(|(finished, (handled, lived))| (finished, handled, lived)))
        })
        .await?;
        let exit = Truth { from: lived, to: exited.boot };
        let mut truths = [Some(exit), Some(exit), Some(exit), None, None, None];
        match (self.way, handled) {
            (Way::Term, Some(handled)) => {
                truths[3] = Some(Truth { from: before, to: after.min(handled) });
                truths[4] = Some(Truth { from: before, to: handled });
            }
            (Way::Kill, _) => truths[5] = Some(Truth { from: before, to: after.min(exited.boot) }),
            _ => {}
        }
        let finished = (exited.boot + finished).saturating_sub(exited.wall);
        Ok(Death { container: self.container, truths, finished })
    }
}

/// Asks until there is an answer.
async fn wait<T>(
    what: &str,
    mut ask: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask().await.with_context(|| what.to_owned())? {
            return Ok(answer);
        }
        if began.elapsed() > WITHIN {
            bail!("{what}: nothing after {WITHIN:?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// When the workload logged this event, ns of CLOCK_BOOTTIME: `TIME stdout F {"event":"exit","boot_ns":7,"pid":1}`.
fn logged(log: &str, event: &str) -> Option<u64> {
    let text = fs::read_to_string(log).ok()?;
    let mut lines = text.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
    let mut lines = lines.by_ref().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find(|line| line["event"] == event)?["boot_ns"].as_u64()
}

/// A moment by both clocks, ns.
#[derive(Clone, Copy)]
struct Observed {
    boot: u64,
    wall: u64,
}

/// Observes the end of a process: the clock of a thread that does nothing but sleep until its pidfd is readable. That is so
/// once the thread group is a zombie without threads (`pidfd_poll`, woken by `exit_notify`), which is the first moment at
/// which anyone outside can know.
fn observe(process: Arc<OwnedFd>) -> anyhow::Result<oneshot::Receiver<Observed>> {
    let (send, receive) = oneshot::channel();
    thread::Builder::new().name("observer".into()).spawn(move || {
        go_first(None);
        if poll(&mut [PollFd::new(&process, PollFlags::IN)], None).is_ok() {
            let (boot, wall) = (boot_now().0, clock_gettime(ClockId::Realtime));
            let wall = wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64;
            // The receiver may be gone with the benchmark.
            let _ = send.send(Observed { boot, wall });
        }
    })?;
    Ok(receive)
}

/// Schedules a process, or this thread, before ordinary ones: on a busy machine it would wait for a CPU, and the interval
/// of the truth would be as wide. It sleeps nearly always. What is measured keeps its ordinary priority.
fn go_first(pid: Option<Pid>) {
    let first = libc::sched_param { sched_priority: 1 };
    let pid = pid.map_or(0, |pid| pid.as_raw_nonzero().get());
    // SAFETY: the parameters are valid. Where it is refused (a cgroup without a real-time share), the intervals are wider.
    unsafe { libc::sched_setscheduler(pid, libc::SCHED_FIFO, &raw const first) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_the_interval_is_no_error() {
        let truth = Truth { from: 100, to: 110 };
        for (claim, errors) in [(100, [0, 10]), (105, [0, 5]), (97, [3, 13]), (115, [5, 15])] {
            assert_eq!(truth.errors(claim), errors, "{claim}");
        }
    }
}
