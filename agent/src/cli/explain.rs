//! `coroner explain`: one pod's end, from a running agent, a recording, or the sample.

use super::{
    output::document,
    print_note,
    replay::open,
    select::{PodSelector, SelectError},
};
use crate::{
    config::args::{ExplainArgs, KubeletLog, TextOutput},
    outputs::{
        recording::{self, Reader, replay::Replay},
        report::{self, Style},
    },
    sources::kubelet::{self, LineResult},
};
use anyhow::{Context, anyhow, bail};
use coroner_api::{ListQuery, openapi, terminations::Termination};
use coroner_core::{
    input::{Input, KubeletEvent, Received},
    kubelet::KubeletState,
    phases::split,
    report::PodTermination,
    time::{Anchor, BootTime},
};
use std::{
    io::{self, Write},
    path::Path,
    sync::Arc,
    time::Duration,
};

/// Beyond a recording's end: more than the engine waits for the sources' last word.
const GO_ON: Duration = Duration::from_secs(120);

pub(super) fn main(args: &ExplainArgs) -> anyhow::Result<()> {
    let wanted = PodSelector {
        pod: args.pod.as_deref(),
        namespace: args.namespace.as_deref(),
        life: args.life,
    };
    let log = match &args.kubelet_log {
        KubeletLog::File(path) => Some(path.as_path()),
        KubeletLog::Auto | KubeletLog::Journal | KubeletLog::Off => None,
    };
    let Chosen { mut account, same } = if args.sample {
        from_sample(wanted)?
    } else if let Some(file) = &args.from {
        let reader = open(file)?;
        let said = log.map(|log| read_log(log, reader.header().clock)).transpose()?;
        from_recording(reader, said.unwrap_or_default(), &wanted)?
    } else {
        from_agent(args, &wanted)?
    };
    if let Some(log) = log.filter(|_| args.from.is_none()) {
        let clock = Anchor { boot_ns: account.began.0, wall_ns: account.began_wall_ns };
        add_lane(&mut account, read_log(log, clock)?);
    }
    let same: Vec<_> = same.iter().map(AsRef::as_ref).collect();
    let mut stdout = io::stdout().lock();
    let text = match args.output {
        TextOutput::Text => report::explain(&account, &same, &Style::for_stdout()),
        form => document(&Termination::from(&account), form == TextOutput::Yaml)?,
    };
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(())
}

/// A person's log of the kubelet, as inputs in order of receipt.
fn read_log(path: &Path, clock: Anchor) -> anyhow::Result<Vec<Received>> {
    let counters = kubelet::LineCounters::default();
    let kubelet::PersonsLog { events, is_cut } = kubelet::read_all(path, clock, None, &counters)
        .with_context(|| format!("cannot read the kubelet's log {}", path.display()))?;
    let of = |result| counters.of(result);
    print_note(&format!(
        "{} lines of the kubelet's log read; {} not understood, {} of another boot",
        of(LineResult::Read),
        of(LineResult::NotUnderstood),
        of(LineResult::OtherBoot)
    ));
    if is_cut {
        print_note(&format!(
            "the kubelet's log is longer than {} MiB, and only that much of it was read; nothing is known of its later \
             lines. Cut it to the time of the termination, for example with journalctl --since and --until",
            kubelet::MAX_MIB
        ));
    }
    let mut last = BootTime(0);
    let mut inputs = Vec::new();
    for event in events {
        if let KubeletEvent::Entry(entry) = &event {
            last = last.max(entry.time);
        }
        inputs.push(Received { at: last, input: recording::redact(Input::Kubelet(event)) });
    }
    Ok(inputs)
}

/// Adds the kubelet's lane to a report of an agent that did not read the log. What the log proves of the cause, an
/// agent or a replay decides.
fn add_lane(account: &mut PodTermination, said: Vec<Received>) {
    let mut kubelet = KubeletState::default();
    for received in said {
        if let Input::Kubelet(event) = received.input {
            kubelet.apply(event);
        }
    }
    account.kubelet = Some(kubelet.lane_of(account));
    let stages = account.kubelet.as_ref().map(|lane| lane.stages.as_slice()).unwrap_or_default();
    let critical = account.containers.iter().find(|one| account.critical.as_ref() == Some(&one.id));
    account.phases.iter_mut().for_each(|phase| phase.parts.clear());
    split(&mut account.phases, stages, critical.map(|death| death.name.as_str()));
}

/// The termination that is meant, and the others of the same workload.
struct Chosen {
    account: PodTermination,
    same: Vec<Arc<PodTermination>>,
}

impl Chosen {
    fn of(wanted: &PodSelector, all: &[Arc<PodTermination>]) -> Result<Self, SelectError> {
        let account = wanted.choose(all)?.clone();
        let workload =
            |one: &PodTermination| Some((one.pod.namespace.clone(), one.workload.clone()?));
        let of = workload(&account);
        let is_same = |one: &&Arc<PodTermination>| {
            of.is_some()
                && workload(one) == of
                && (&one.pod, one.life) != (&account.pod, account.life)
        };
        Ok(Self { same: all.iter().filter(is_same).cloned().collect(), account })
    }
}

fn from_agent(args: &ExplainArgs, wanted: &PodSelector) -> anyhow::Result<Chosen> {
    let agent = super::agent(&args.agent)?;
    let asked =
        super::wait(agent.list::<Termination>(openapi::TERMINATIONS, &ListQuery::default()));
    let list = asked.context(
        "cannot query an agent; use --from FILE to read a recording, or --sample to see the \
         built-in one",
    )?;
    let accounts: Vec<_> = list.items.into_iter().map(|one| Arc::new(one.into())).collect();
    Chosen::of(wanted, &accounts).map_err(|error| match error {
        SelectError::Ambiguous(text) => anyhow!(text),
        SelectError::NotFound(text) => anyhow!(
            "{text}\nAn agent keeps the latest terminations of its own node (--history-limit) and \
             reports each a few seconds after the pod is gone. Query the agent on the node where \
             the pod ran."
        ),
    })
}

/// Where no pod is named, one of it is shown, and how to see the others.
fn from_sample(mut wanted: PodSelector) -> anyhow::Result<Chosen> {
    if wanted.pod.is_none() {
        wanted.pod = Some(recording::SAMPLE_POD);
        let mut reader = recording::sample()?;
        let mut replay = Replay::new(reader.header());
        replay.run(&mut reader);
        let others: Vec<_> = replay
            .timelines()
            .map(|account| account.pod.name.as_str())
            .filter(|name| *name != recording::SAMPLE_POD)
            .collect();
        print_note(&format!("also in the sample: {}", others.join(", ")));
    }
    from_recording(recording::sample()?, Vec::new(), &wanted)
}

fn from_recording(
    mut reader: Reader,
    said: Vec<Received>,
    wanted: &PodSelector,
) -> anyhow::Result<Chosen> {
    let mut replay = Replay::new(reader.header());
    replay.run_with(&mut reader, said);
    print_note(&reader.status().to_string());
    match choose(&replay, wanted) {
        Ok(found) => return Ok(found),
        Err(SelectError::Ambiguous(text)) => bail!(text),
        Err(SelectError::NotFound(_)) => replay.go_on(GO_ON),
    }
    let mut text = match choose(&replay, wanted) {
        Ok(found) => {
            print_note(
                "the recording ended before the agent reported this pod; this is the report if \
                 nothing more had happened",
            );
            return Ok(found);
        }
        Err(SelectError::Ambiguous(text)) => bail!(text),
        Err(SelectError::NotFound(text)) => text,
    };
    let alive: Vec<_> = replay
        .without_account()
        .into_iter()
        .map(|(namespace, name)| report::printable(&format!("{namespace}/{name}")))
        .collect();
    if !alive.is_empty() {
        text.push_str("\nin the recording, but not terminated when it ended: ");
        text.push_str(&alive.join(", "));
    }
    bail!(text)
}

fn choose(replay: &Replay, wanted: &PodSelector) -> Result<Chosen, SelectError> {
    let accounts: Vec<_> = replay.timelines().cloned().collect();
    Chosen::of(wanted, &accounts)
}
