//! From reports to OTLP: a trace and a log record per termination, a log record per death in a pod that lives on. Pure:
//! the same report is always the same trace, so that a resend changes nothing.

use crate::outputs::report::{container_name, headline, printable};
use coroner_core::{
    ids::PodRef,
    input::Workload,
    report::{ContainerDeath, EvidenceKind, ExitStatus, Finding, Milestone, PodTermination},
    signal,
    time::{Moment, WallTime},
    types::{MilestoneKind, Verdict},
};
use opentelemetry_proto::tonic::{
    collector::{logs::v1::ExportLogsServiceRequest, trace::v1::ExportTraceServiceRequest},
    common::v1::{
        AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList, any_value::Value,
    },
    logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber},
    resource::v1::Resource,
    trace::v1::{
        ResourceSpans, ScopeSpans, Span, Status,
        span::{Event, SpanKind},
        status::StatusCode,
    },
};
use prost::Message;
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, time::Duration};

const SERVICE: &str = "coroner";
/// Of spans and log records: the trace is sampled.
const SAMPLED: u32 = 1;

/// Attributes of one span, event or record.
#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn add(mut self, key: impl Into<String>, value: Value) -> Self {
        let value = Some(AnyValue { value: Some(value) });
        self.0.push(KeyValue { key: key.into(), value, ..KeyValue::default() });
        self
    }

    /// Names and sentences may be a tenant's: what a terminal would hide is shown. Nothing for an empty text.
    fn text(self, key: impl Into<String>, text: &str) -> Self {
        match text {
            "" => self,
            text => self.add(key, Value::StringValue(printable(text))),
        }
    }

    fn int(self, key: &str, number: Option<i64>) -> Self {
        match number {
            Some(number) => self.add(key, Value::IntValue(number)),
            None => self,
        }
    }

    fn seconds(self, key: impl Into<String>, nanos: u128) -> Self {
        self.add(key, Value::DoubleValue(nanos as f64 / 1e9))
    }

    fn uncertainty(self, time: Duration) -> Self {
        match time.as_nanos() {
            0 => self,
            nanos => self.seconds("coroner.uncertainty_seconds", nanos),
        }
    }

    fn flag(self, key: &str, on: bool) -> Self {
        if on { self.add(key, Value::BoolValue(true)) } else { self }
    }

    fn list(self, key: &str, labels: impl Iterator<Item = &'static str>) -> Self {
        let value = |label: &str| AnyValue { value: Some(Value::StringValue(label.to_owned())) };
        let values: Vec<_> = labels.map(value).collect();
        if values.is_empty() {
            return self;
        }
        self.add(key, Value::ArrayValue(ArrayValue { values }))
    }

    fn pod(self, pod: Option<&PodRef>, workload: Option<&Workload>) -> Self {
        let with_pod = match pod {
            Some(pod) => self
                .text("k8s.namespace.name", &pod.namespace)
                .text("k8s.pod.name", &pod.name)
                .text("k8s.pod.uid", pod.uid.as_str()),
            None => self,
        };
        let Some(Workload { kind, name }) = workload else { return with_pod };
        match kind.as_str() {
            "CronJob"
            | "DaemonSet"
            | "Deployment"
            | "Job"
            | "ReplicaSet"
            | "ReplicationController"
            | "StatefulSet" => with_pod.text(format!("k8s.{}.name", kind.to_lowercase()), name),
            _ => with_pod.text("coroner.workload.kind", kind).text("coroner.workload.name", name),
        }
    }

    fn death(self, death: &ContainerDeath) -> Self {
        let with_exit = match death.exit {
            Some(ExitStatus::Code(code)) => self.int("coroner.exit_code", Some(code.into())),
            Some(ExitStatus::Signal { signal: number, core }) => self
                .text("coroner.exit_signal", &signal::name(number))
                .flag("coroner.core_dumped", core),
            None => self,
        };
        with_exit
            .text("k8s.container.name", container_name(death))
            .text("container.id", death.id.as_str())
            .text("coroner.verdict", death.verdict.as_str())
            .text("coroner.proof", &death.proof.message)
            .text("coroner.cause", death.cause.as_str())
            .text("coroner.cause_message", &death.cause_message)
            .int("coroner.grace_seconds", death.grace_seconds)
            .int("coroner.children_killed", Some(death.children_killed.into()))
            .flag("coroner.truncated", death.truncated)
            .list("coroner.incomplete", death.incomplete.iter().map(|kind| kind.as_str()))
    }
}

/// The trace of a termination. A pod that was created again under the same UID is another trace.
pub fn trace_id(report: &PodTermination) -> [u8; 16] {
    digest(&[b"termination", report.pod.uid.as_str().as_bytes(), &report.life.to_be_bytes()])
}

fn span_id(trace: &[u8; 16], of: &str) -> Vec<u8> {
    digest::<8>(&[trace, of.as_bytes()]).to_vec()
}

fn digest<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    let whole = hash.finalize();
    std::array::from_fn(|at| whole[at])
}

/// The container did not end as it should have.
fn is_error(verdict: Verdict) -> bool {
    use Verdict as V;
    !matches!(verdict, V::Graceful | V::TerminatedByDefault | V::Completed | V::Unknown)
}

/// An error if one of these did not end as it should have.
fn status(deaths: &[ContainerDeath]) -> Option<Status> {
    let errors = deaths.iter().filter(|death| is_error(death.verdict));
    errors.min_by_key(|death| death.verdict).map(|death| Status {
        code: StatusCode::Error as i32,
        message: printable(&death.proof.message),
    })
}

fn nanos(at: WallTime) -> u64 {
    u64::try_from(at.0).unwrap_or_default()
}

fn event(at: Moment, name: impl Into<String>, attributes: Attributes) -> Event {
    Event {
        time_unix_nano: nanos(at.time),
        name: name.into(),
        attributes: attributes.0,
        ..Event::default()
    }
}

fn milestones(all: &[Milestone]) -> impl Iterator<Item = Event> {
    all.iter().map(|one| {
        let of = Attributes::default().text("coroner.source", one.source.as_str());
        event(one.at, one.kind.as_str(), of.uncertainty(one.uncertainty))
    })
}

/// Findings have no time of their own: they are shown at the end.
fn findings(all: &[Finding], at: Moment) -> impl Iterator<Item = Event> {
    all.iter().map(move |one| {
        let of = Attributes::default().text("coroner.detail", &one.detail);
        event(at, format!("finding {}", one.kind), of)
    })
}

/// Signals and the processes of the hook. Milestones have the rest.
fn evidence(death: &ContainerDeath) -> impl Iterator<Item = Event> {
    death.proof.evidence.iter().filter_map(|one| {
        let of = Attributes::default();
        let (name, of) = match &one.kind {
            EvidenceKind::SignalGenerate { signal: number, sender, result, .. } => {
                let result = serde_json::to_value(result).ok()?;
                let of = of
                    .text("process.executable.name", &sender.comm)
                    .int("process.pid", Some(sender.pid.0.into()))
                    .text("coroner.result", result.as_str()?);
                (format!("signal {}", signal::name(*number)), of)
            }
            EvidenceKind::SignalDeliver { signal: number } => {
                (format!("handler of {}", signal::name(*number)), of)
            }
            EvidenceKind::MarkVictim { .. } => ("selected by the OOM killer".to_owned(), of),
            EvidenceKind::PreStopExec { pid, comm } => {
                let of =
                    of.text("process.executable.name", comm).int("process.pid", Some(pid.0.into()));
                ("preStop hook".to_owned(), of)
            }
            EvidenceKind::PreStopExit { status } => {
                let code = i64::from(status.runtime_code());
                ("preStop hook ended".to_owned(), of.int("coroner.exit_code", Some(code)))
            }
            _ => return None,
        };
        Some(event(one.at, name, of))
    })
}

fn spans(report: &PodTermination) -> Vec<Span> {
    let trace = trace_id(report);
    let root = span_id(&trace, "pod");
    let child = |of: String, name: String, from: Moment, to: Moment| Span {
        trace_id: trace.to_vec(),
        span_id: span_id(&trace, &of),
        parent_span_id: root.clone(),
        flags: SAMPLED,
        name,
        kind: SpanKind::Internal as i32,
        start_time_unix_nano: nanos(from.time),
        end_time_unix_nano: nanos(to.time.max(from.time)),
        ..Span::default()
    };
    let mut events: Vec<_> = milestones(&report.milestones).collect();
    events.extend(findings(&report.findings, report.ended));
    let mut spans = vec![Span {
        parent_span_id: Vec::new(),
        attributes: termination(report).0,
        events,
        status: status(&report.containers),
        ..child("pod".into(), "pod termination".into(), report.began, report.ended)
    }];
    for (at, phase) in report.phases.iter().enumerate().filter(|(_, one)| !one.took.is_zero()) {
        let of = Attributes::default().text("coroner.phase", phase.kind.as_str());
        spans.push(Span {
            attributes: of.uncertainty(phase.uncertainty).0,
            ..child(format!("phase {at}"), phase.kind.to_string(), phase.from, phase.to)
        });
    }
    for death in &report.containers {
        let (from, to) = ends(death).unwrap_or((report.began, report.ended));
        let name = format!("container {}", printable(container_name(death)));
        let mut events: Vec<_> = milestones(&death.milestones).chain(evidence(death)).collect();
        events.extend(findings(&death.findings, to));
        events.sort_by_key(|event| event.time_unix_nano);
        spans.push(Span {
            attributes: Attributes::default().death(death).0,
            events,
            status: status(std::slice::from_ref(death)),
            ..child(format!("container {}", death.id), name, from, to)
        });
    }
    spans
}

/// From the beginning of its stop to its last process.
fn ends(death: &ContainerDeath) -> Option<(Moment, Moment)> {
    let at = |kind| death.milestone(kind).map(|one| one.at);
    let first = death.milestones.first().map(|one| one.at);
    let last = death.milestones.last().map(|one| one.at);
    let ended = at(MilestoneKind::CgroupEmpty).or(at(MilestoneKind::Exited)).or(last)?;
    Some((at(MilestoneKind::StopBegan).or(first)?.min(ended), ended))
}

fn termination(report: &PodTermination) -> Attributes {
    let mut phases = BTreeMap::new();
    for phase in &report.phases {
        *phases.entry(phase.kind).or_insert(0) += phase.took.as_nanos();
    }
    let verdict = |death: &ContainerDeath| KeyValue {
        key: printable(container_name(death)),
        value: Some(AnyValue { value: Some(Value::StringValue(death.verdict.to_string())) }),
        ..KeyValue::default()
    };
    let verdicts = KeyValueList { values: report.containers.iter().map(verdict).collect() };
    let (_, decided) = headline(report);
    let own = report.containers.iter().flat_map(|death| &death.findings);
    let mut found: Vec<_> =
        report.findings.iter().chain(own).map(|finding| finding.kind.as_str()).collect();
    found.sort_unstable();
    found.dedup();
    let of = Attributes::default()
        .pod(Some(&report.pod), report.workload.as_ref())
        .text("coroner.cause", report.cause.as_str())
        .text("coroner.cause_message", &report.cause_message)
        .seconds("coroner.took_seconds", report.took.as_nanos())
        .uncertainty(report.uncertainty)
        .int("coroner.grace_seconds", report.grace_seconds)
        .int("coroner.life", Some(report.life.into()))
        .int("coroner.revision", Some(report.revision.into()))
        .add("coroner.verdicts", Value::KvlistValue(verdicts))
        .list("coroner.findings", found.into_iter())
        .flag("coroner.truncated", report.truncated)
        .list("coroner.incomplete", report.incomplete.iter().map(|kind| kind.as_str()));
    let of = match decided {
        Some(death) => of
            .text("k8s.container.name", container_name(death))
            .text("coroner.verdict", death.verdict.as_str()),
        None => of,
    };
    phases
        .into_iter()
        .fold(of, |of, (kind, nanos)| of.seconds(format!("coroner.phase.{kind}_seconds"), nanos))
}

fn record(at: Moment, now: WallTime, is_error: bool, body: &str, of: Attributes) -> LogRecord {
    let (severity, text) = match is_error {
        true => (SeverityNumber::Warn, "WARN"),
        false => (SeverityNumber::Info, "INFO"),
    };
    LogRecord {
        time_unix_nano: nanos(at.time),
        observed_time_unix_nano: nanos(now),
        severity_number: severity as i32,
        severity_text: text.to_owned(),
        body: Some(AnyValue { value: Some(Value::StringValue(printable(body))) }),
        attributes: of.0,
        ..LogRecord::default()
    }
}

fn record_of_termination(report: &PodTermination, now: WallTime) -> LogRecord {
    let trace = trace_id(report);
    let is_error = report.containers.iter().any(|death| is_error(death.verdict));
    LogRecord {
        trace_id: trace.to_vec(),
        span_id: span_id(&trace, "pod"),
        flags: SAMPLED,
        event_name: "coroner.termination".into(),
        ..record(report.ended, now, is_error, &headline(report).0, termination(report))
    }
}

fn record_of_death(death: &ContainerDeath, now: WallTime) -> LogRecord {
    let pod = death
        .pod
        .as_ref()
        .map_or_else(String::new, |pod| format!(" of {}/{}", pod.namespace, pod.name));
    let body = format!("Container {}{pod}: {}", container_name(death), death.proof.message);
    let of = Attributes::default()
        .pod(death.pod.as_ref(), death.workload.as_ref())
        .death(death)
        .list("coroner.findings", death.findings.iter().map(|finding| finding.kind.as_str()));
    let at = ends(death).map(|(_, to)| to).unwrap_or_default();
    LogRecord {
        event_name: "coroner.death".into(),
        ..record(at, now, is_error(death.verdict), &body, of)
    }
}

/// Who reports: one agent on one node.
fn resource(node: &str) -> Resource {
    let of = Attributes::default()
        .text("service.name", SERVICE)
        .text("service.version", env!("CARGO_PKG_VERSION"))
        .text("k8s.node.name", node);
    Resource { attributes: of.0, ..Resource::default() }
}

fn scope() -> InstrumentationScope {
    let (name, version) = (SERVICE.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    InstrumentationScope { name, version, ..InstrumentationScope::default() }
}

/// What one report becomes.
pub(super) struct Mapped {
    pub(super) spans: Vec<Span>,
    pub(super) record: LogRecord,
}

impl Mapped {
    pub(super) fn of_termination(report: &PodTermination, now: WallTime) -> Self {
        Self { spans: spans(report), record: record_of_termination(report, now) }
    }

    pub(super) fn of_death(death: &ContainerDeath, now: WallTime) -> Self {
        Self { spans: Vec::new(), record: record_of_death(death, now) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.record.encoded_len() + self.spans.iter().map(Message::encoded_len).sum::<usize>()
    }
}

pub(super) fn traces(node: &str, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans, ..ScopeSpans::default() }];
    let resource = Some(resource(node));
    let resource_spans = vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }
}

pub(super) fn logs(node: &str, log_records: Vec<LogRecord>) -> ExportLogsServiceRequest {
    let scope_logs = vec![ScopeLogs { scope: Some(scope()), log_records, ..ScopeLogs::default() }];
    let resource = Some(resource(node));
    let resource_logs = vec![ResourceLogs { resource, scope_logs, ..ResourceLogs::default() }];
    ExportLogsServiceRequest { resource_logs }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::report::samples;
    use std::fmt::Write as _;

    fn shown(value: Option<&AnyValue>) -> String {
        match value.and_then(|value| value.value.as_ref()) {
            Some(Value::StringValue(text)) => format!("{text:?}"),
            Some(Value::IntValue(number)) => number.to_string(),
            Some(Value::DoubleValue(number)) => format!("{number:?}"),
            Some(Value::BoolValue(on)) => on.to_string(),
            Some(Value::ArrayValue(list)) => {
                let values: Vec<_> = list.values.iter().map(|one| shown(Some(one))).collect();
                format!("[{}]", values.join(", "))
            }
            Some(Value::KvlistValue(list)) => format!("{{{}}}", attributes(&list.values)),
            _ => "?".to_owned(),
        }
    }

    fn attributes(all: &[KeyValue]) -> String {
        let pairs = all.iter().map(|one| format!("{}={}", one.key, shown(one.value.as_ref())));
        pairs.collect::<Vec<_>>().join(" ")
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Times as milliseconds after the sample's request.
    fn text(mapped: &Mapped) -> String {
        let mut text = String::new();
        let ms = |at: u64| (at as i64 - samples::CLOCK.wall_ns) / 1_000_000;
        for span in &mapped.spans {
            let (from, to) = (ms(span.start_time_unix_nano), ms(span.end_time_unix_nano));
            let ids = [&span.trace_id, &span.span_id, &span.parent_span_id].map(|id| hex(id));
            let _ = writeln!(text, "{} {from}..{to} {}", span.name, ids.join(" "));
            if let Some(status) = &span.status {
                let _ = writeln!(text, "  status {} {}", status.code, status.message);
            }
            let _ = writeln!(text, "  {}", attributes(&span.attributes));
            for event in &span.events {
                let at = ms(event.time_unix_nano);
                let _ = writeln!(text, "  @{at} {} {}", event.name, attributes(&event.attributes));
            }
        }
        let record = &mapped.record;
        let ids = [&record.trace_id, &record.span_id].map(|id| hex(id)).join(" ");
        let (at, body) = (ms(record.time_unix_nano), shown(record.body.as_ref()));
        let (name, severity) = (&record.event_name, &record.severity_text);
        let of = attributes(&record.attributes);
        let _ = writeln!(text, "{name} @{at} {severity} {ids}\n  {body}\n  {of}\n");
        text
    }

    #[test]
    fn reports_as_traces_and_records() {
        let termination = |report| text(&Mapped::of_termination(&report, WallTime(0)));
        let mut report = samples::with_traffic(samples::two_containers());
        let mut all = termination(report.clone());
        all += &termination(samples::gone_in_an_outage());
        let custom = Workload { kind: "Rollout".into(), name: "w\u{202e}eb".into() };
        report.containers[1].workload = Some(custom);
        all += &text(&Mapped::of_death(&report.containers[1], WallTime(0)));
        samples::golden("otlp.txt", &all);
    }

    #[test]
    fn a_resend_is_the_same_trace_and_another_incarnation_is_not() {
        let report = samples::graceful();
        let other = PodTermination { life: 2, ..report.clone() };
        assert_eq!(spans(&report), spans(&report.clone()));
        assert_ne!(trace_id(&report), trace_id(&other));
        let mut ids: Vec<_> = spans(&report).into_iter().map(|span| span.span_id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "each span has its own id");
    }
}
