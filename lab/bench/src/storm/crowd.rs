//! The load's processes, together.

use super::{
    load::{self, READY},
    mix::{CONTAINERS, Done, Mix, OUTSIDE, Orders, STOPPED, Totals},
    pods::Pods,
};
use anyhow::{Context as _, bail};
use coroner_lab_harness::agent::die_with_parent;
use coroner_workload::page::boot_now;
use std::{fs::File, os::fd::AsRawFd as _, path::Path, process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// From the orders to the beginning: all have read theirs by then.
const NOTICE: Duration = Duration::from_millis(300);
/// How much longer than ordered they may take.
const GRACE: Duration = Duration::from_secs(30);

/// Processes that wait for orders. Dropped, they are killed.
#[derive(Debug)]
pub(super) struct Crowd {
    containers: Vec<Member>,
    outside: Vec<Member>,
    runtime: Member,
}

#[derive(Debug)]
struct Member {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Crowd {
    /// `program`: `coroner-lab`. Of the containers some are told to stop, which they ignore: from
    /// here on they are dying.
    pub(super) async fn gather(program: &Path, pods: &Pods) -> anyhow::Result<Self> {
        let mut containers = Vec::with_capacity(CONTAINERS);
        for door in pods.doors()? {
            containers.push(Member::start(program, Some(door)).await?);
        }
        let mut outside = Vec::with_capacity(OUTSIDE);
        for _ in 0..OUTSIDE {
            outside.push(Member::start(program, None).await?);
        }
        let crowd = Self { containers, outside, runtime: Member::start(program, None).await? };
        for pid in crowd.stopped()? {
            // SAFETY: a system call without pointers.
            if unsafe { libc::kill(pid, libc::SIGTERM) } != 0 {
                bail!("cannot stop {pid}: {}", std::io::Error::last_os_error());
            }
        }
        Ok(crowd)
    }

    fn stopped(&self) -> anyhow::Result<Vec<i32>> {
        let stopped = self.containers.iter().take(STOPPED);
        stopped.map(|one| Ok(one.child.id().context("it has left")?.cast_signed())).collect()
    }

    /// Rages, and tells what was done.
    pub(super) async fn rage(
        &mut self,
        mix: &Mix,
        lasting: Duration,
        pods: &Pods,
    ) -> anyhow::Result<Totals> {
        let from = boot_now() + u64::try_from(NOTICE.as_nanos())?;
        let runtime = mix.runtime(self.stopped()?, pods.pod());
        let timed = |orders| Orders { from, lasting, ..orders };
        for one in &mut self.containers {
            one.order(&timed(mix.container())).await?;
        }
        for one in &mut self.outside {
            one.order(&timed(mix.outsider())).await?;
        }
        self.runtime.order(&timed(runtime)).await?;
        let reports = async {
            let mut totals = Totals::default();
            for (index, one) in self.containers.iter_mut().enumerate() {
                let done = one.done().await?;
                let of = if index < STOPPED { &mut totals.stopped } else { &mut totals.unstopped };
                *of = of.and(done);
            }
            for one in &mut self.outside {
                totals.outside = totals.outside.and(one.done().await?);
            }
            totals.runtime = self.runtime.done().await?;
            anyhow::Ok(totals)
        };
        let reports = tokio::time::timeout(NOTICE + lasting + GRACE, reports).await;
        reports.context("the load does not end")?
    }

    /// Has all leave.
    pub(super) async fn disperse(self) -> anyhow::Result<()> {
        for one in self.containers.into_iter().chain(self.outside).chain([self.runtime]) {
            let Member { mut child, input, .. } = one;
            drop(input);
            child.wait().await?;
        }
        Ok(())
    }
}

impl Member {
    /// `door`: the cgroup.procs of its container.
    async fn start(program: &Path, door: Option<File>) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command
            .arg(load::COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        die_with_parent(&mut command);
        if let Some(door) = door {
            // SAFETY: one system call, on a descriptor that is open and a constant.
            unsafe {
                command.pre_exec(move || {
                    match libc::write(door.as_raw_fd(), b"0".as_ptr().cast(), 1) {
                        1 => Ok(()),
                        _ => Err(std::io::Error::last_os_error()),
                    }
                });
            }
        }
        let mut child = command.spawn().context("cannot start a process of the load")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a process without stdin and stdout");
        };
        let mut member = Self { child, input, output: BufReader::new(output).lines() };
        match member.output.next_line().await?.as_deref() {
            Some(READY) => Ok(member),
            other => bail!("the load says {other:?}"),
        }
    }

    async fn order(&mut self, orders: &Orders) -> anyhow::Result<()> {
        let line = serde_json::to_string(orders)? + "\n";
        self.input.write_all(line.as_bytes()).await.context("the load does not listen")
    }

    async fn done(&mut self) -> anyhow::Result<Done> {
        let line = self.output.next_line().await?.context("a process of the load has left")?;
        serde_json::from_str(&line).context("what the load has done")
    }
}
