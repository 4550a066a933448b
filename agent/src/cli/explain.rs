//! `coroner explain`: one pod's end, from a running agent, a recording, or the sample.

use super::{
    kubelet_log,
    output::document,
    print, print_note,
    replay::open,
    select::{PodSelector, SelectError},
};
use crate::{
    config::args::{ExplainArgs, TextOutput},
    outputs::{
        recording::{self, Reader, replay::Replay},
        report,
    },
};
use anyhow::{Context, anyhow, bail};
use coroner_report::{ListQuery, PodTermination, openapi};
use std::{sync::Arc, time::Duration};

/// Beyond a recording's end: more than the engine waits for the sources' last word.
const GO_ON: Duration = Duration::from_secs(120);
/// Terminations of the same workload that one is compared with.
const SAME: usize = 100;

pub(super) fn main(args: &ExplainArgs) -> anyhow::Result<()> {
    if args.kubelet_log.is_some() && args.output != TextOutput::Text {
        bail!("--kubelet-log adds a section to the text; use it with -o text");
    }
    let wanted = PodSelector {
        pod: args.pod.as_deref(),
        namespace: args.namespaces.chosen(),
        life: args.life,
    };
    let Chosen { account, same } = if args.sample {
        from_sample(wanted)?
    } else if let Some(file) = &args.from {
        from_recording(open(file)?, &wanted)?
    } else {
        from_agent(args, &wanted)?
    };
    let same: Vec<_> = same.iter().map(AsRef::as_ref).collect();
    print(&match args.output {
        TextOutput::Text => {
            let style = report::stdout_style();
            let mut text = report::explain(&account, &same, args.verbose, &style);
            if let Some(log) = &args.kubelet_log {
                text.push_str(&kubelet_log::lane(log, &account, &style)?);
            }
            text
        }
        form => document(&account, form == TextOutput::Yaml)?,
    })
}

/// The termination that is meant, and the others of the same workload.
struct Chosen {
    account: PodTermination,
    same: Vec<Arc<PodTermination>>,
}

impl Chosen {
    fn of(wanted: &PodSelector, all: &[Arc<PodTermination>]) -> Result<Self, SelectError> {
        Ok(Self::with(wanted.choose(all)?.clone(), all))
    }

    fn with(account: PodTermination, all: &[Arc<PodTermination>]) -> Self {
        let workload =
            |one: &PodTermination| Some((one.pod.namespace.clone(), one.workload.clone()?));
        let of = workload(&account);
        let is_same = |one: &&Arc<PodTermination>| {
            of.is_some()
                && workload(one) == of
                && (&one.pod, one.life) != (&account.pod, account.life)
        };
        Self { same: all.iter().filter(is_same).cloned().collect(), account }
    }
}

fn from_agent(args: &ExplainArgs, wanted: &PodSelector) -> anyhow::Result<Chosen> {
    let ask = |query: ListQuery| {
        let list = super::wait(args.agent.list::<PodTermination>(openapi::TERMINATIONS, &query));
        list.context(
            "cannot query an agent; use --from FILE to read a recording, or --sample to see the \
             built-in one",
        )
    };
    let pod = wanted.pod.map(|pod| pod.rsplit('/').next().unwrap_or_default().to_owned());
    let mut list = ask(ListQuery { pod: pod.clone(), ..ListQuery::default() })?;
    if list.items.is_empty() && pod.is_some() {
        list = ask(ListQuery::default())?; // to say which there are
    }
    let account = wanted.choose(&list.items).cloned().map_err(|error| match error {
        SelectError::Ambiguous(text) => anyhow!(text),
        SelectError::NotFound(text) => anyhow!(
            "{text}\nAn agent keeps the terminations of its own node (--history-age, --history-size) and \
             reports each a few seconds after the pod is gone. Query the agent on the node where \
             the pod ran."
        ),
    })?;
    let same = match &account.workload {
        None => Vec::new(),
        Some(workload) => {
            let namespace = Some(account.pod.namespace.clone());
            let workload = Some(workload.to_string());
            let query =
                ListQuery { namespace, workload, limit: Some(SAME), ..ListQuery::default() };
            ask(query)?.items.into_iter().map(Arc::new).collect()
        }
    };
    Ok(Chosen::with(account, &same))
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
    from_recording(recording::sample()?, &wanted)
}

fn from_recording(mut reader: Reader, wanted: &PodSelector) -> anyhow::Result<Chosen> {
    let mut replay = Replay::new(reader.header());
    replay.run(&mut reader);
    print_note(&reader.status().to_string());
    let mut found = choose(&replay, wanted);
    if matches!(found, Err(SelectError::NotFound(_))) {
        replay.go_on(GO_ON);
        found = choose(&replay, wanted);
        if found.is_ok() {
            print_note(
                "the recording ended before the agent reported this pod; this is the report if \
                 nothing more had happened",
            );
        }
    }
    found.map_err(|error| match error {
        SelectError::Ambiguous(text) | SelectError::NotFound(text) => anyhow!(text),
    })
}

fn choose(replay: &Replay, wanted: &PodSelector) -> Result<Chosen, SelectError> {
    let accounts: Vec<_> = replay.timelines().cloned().collect();
    Chosen::of(wanted, &accounts)
}
