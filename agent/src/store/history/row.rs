//! A report as a row: what is filtered and sorted by, and the report itself as deflated JSON.

use super::Kind;
use coroner_core::{
    ids::PodRef,
    input::Workload,
    leak::{Leak, LeakKey},
    report::{ContainerDeath, Finding, PodTermination},
    time::Moment,
    types::MilestoneKind,
};
use flate2::{Compression, write::DeflateEncoder};
use serde::Serialize;
use std::{io::Write, time::Duration};

#[derive(Debug)]
pub(super) struct Row {
    pub(super) kind: Kind,
    /// Unique among those of its kind.
    pub(super) key: String,
    pub(super) pod: Option<PodRef>,
    pub(super) workload: Option<String>,
    pub(super) life: Option<u32>,
    /// Of a termination.
    pub(super) began: Option<Moment>,
    pub(super) ended: Option<Moment>,
    pub(super) took: Option<Duration>,
    pub(super) cause: &'static str,
    /// Findings of the pod, as a list in JSON.
    pub(super) findings: String,
    /// Its containers: [`Part`]s in JSON.
    pub(super) parts: String,
    pub(super) report: Vec<u8>,
}

/// A container, as far as it is filtered by; without a name the pod itself.
#[derive(Serialize)]
struct Part<'a> {
    n: &'a str,
    v: &'a str,
    c: &'a str,
    f: Vec<&'a str>,
}

fn kinds(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.kind.as_str()).collect()
}

fn part(death: &ContainerDeath) -> Part<'_> {
    let (v, c) = (death.verdict.as_str(), death.cause.as_str());
    Part { n: &death.name, v, c, f: kinds(&death.findings) }
}

fn json(value: &impl Serialize) -> String {
    // Of these types it cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

fn deflated(report: &impl Serialize) -> Vec<u8> {
    let mut deflated = DeflateEncoder::new(Vec::new(), Compression::default());
    let written = deflated.write_all(json(report).as_bytes()).and_then(|()| deflated.finish());
    written.unwrap_or_default() // of memory, which does not fail
}

impl Row {
    pub(super) fn of_termination(report: &PodTermination) -> Self {
        let pod = Part { n: "", v: "", c: report.cause.as_str(), f: Vec::new() };
        let parts: Vec<_> = report.containers.iter().map(part).chain([pod]).collect();
        Self {
            kind: Kind::Termination,
            key: format!("{}/{}", report.pod.uid, report.life),
            pod: Some(report.pod.clone()),
            workload: report.workload.as_ref().map(Workload::to_string),
            life: Some(report.life),
            began: Some(report.began),
            ended: Some(report.ended),
            took: Some(report.took),
            cause: report.cause.as_str(),
            findings: json(&kinds(&report.findings)),
            parts: json(&parts),
            report: deflated(report),
        }
    }

    pub(super) fn of_death(report: &ContainerDeath) -> Self {
        let ended = report.milestones.iter().map(|milestone| milestone.at).max();
        let began = report.milestone(MilestoneKind::StopBegan).map(|began| began.at);
        Self {
            kind: Kind::Death,
            key: report.id.to_string(),
            pod: report.pod.clone(),
            workload: report.workload.as_ref().map(Workload::to_string),
            life: None,
            began: None,
            ended,
            took: ended.zip(began).map(|(ended, began)| ended.since(began)),
            cause: report.cause.as_str(),
            findings: "[]".to_owned(),
            parts: json(&[part(report)]),
            report: deflated(report),
        }
    }

    /// `resolved`: when; else it is there since its confirmation.
    pub(super) fn of_leak(leak: &Leak, boot: &str) -> Self {
        Self {
            kind: Kind::Leak,
            key: leak_key(&leak.key, boot),
            pod: leak.pod.clone(),
            workload: leak.workload.as_ref().map(Workload::to_string),
            life: None,
            began: None,
            ended: Some(leak.resolved_at.unwrap_or(leak.confirmed)),
            took: None,
            cause: leak.cause.kind.as_str(),
            findings: "[]".to_owned(),
            parts: json(&[Part { n: "", v: "", c: leak.cause.kind.as_str(), f: Vec::new() }]),
            report: deflated(leak),
        }
    }
}

/// Of one boot: ids of another one's things mean others.
pub(super) fn leak_key(key: &LeakKey, boot: &str) -> String {
    format!("{boot} {}", json(key))
}

pub(super) fn parse_leak_key(key: &str) -> Option<LeakKey> {
    let (_, key) = key.split_once(' ')?;
    serde_json::from_str(key).ok()
}
