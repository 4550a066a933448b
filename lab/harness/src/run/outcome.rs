//! What came out of a scenario: an object of `--json`.

use coroner::{linux::clock::anchor, outputs::report::leak_json};
use coroner_api::terminations::Termination;
use coroner_core::{leak::Leak, report::PodTermination};
use coroner_lab_scenarios::{Expected, judge::ObservedReport};
use serde::{Serialize, Serializer};
use std::path::PathBuf;

/// How one scenario went: an object of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct ScenarioOutcome {
    /// Its name.
    pub scenario: &'static str,
    pub group: &'static str,
    /// What it shows, in one sentence.
    #[serde(skip)]
    pub shows: &'static str,
    /// What had to come out.
    pub expected: Expected,
    /// What came out, of the last life; `None`: the agent gave no account.
    pub observed: Option<ObservedReport>,
    /// Both agree.
    pub ok: bool,
    /// Where they do not.
    pub disagreements: Vec<String>,
    /// The agent's whole account, as its API shows it.
    #[serde(serialize_with = "as_answered")]
    pub timeline: Option<PodTermination>,
    /// It is about what is left behind.
    #[serde(skip)]
    pub watched: bool,
    /// Its connections were counted from after the stop signal, or not at all because that was too late.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub excused: bool,
    /// What of it the agent told as left behind.
    #[serde(serialize_with = "leaks_as_answered")]
    pub leaks: Vec<Leak>,
    /// Where its logs and the agent's answers are kept, if they do not agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
}

fn leaks_as_answered<S: Serializer>(leaks: &[Leak], to: S) -> Result<S::Ok, S::Error> {
    let clock = anchor();
    to.collect_seq(leaks.iter().map(|leak| leak_json(leak, &clock)))
}

fn leak_as_answered<S: Serializer>(leak: &&Leak, to: S) -> Result<S::Ok, S::Error> {
    leak_json(leak, &anchor()).serialize(to)
}

fn as_answered<S: Serializer>(timeline: &Option<PodTermination>, to: S) -> Result<S::Ok, S::Error> {
    timeline.as_ref().map(Termination::from).serialize(to)
}

/// What else `--json` tells.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Note<'a> {
    /// A scenario that cannot be played on this machine.
    LeftOut {
        /// Its name.
        scenario: &'a str,
        /// Why.
        left_out: &'a str,
    },
    /// The agent told of it as left behind, and it is of no scenario.
    Stray {
        /// What it told.
        #[serde(serialize_with = "leak_as_answered")]
        stray: &'a Leak,
    },
}
