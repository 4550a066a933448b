//! Whether a PromQL expression can have an answer: every metric, label and label's value in it is
//! held against the agent's catalogue. What is misspelt parses, is quiet for ever, and is noticed
//! in the night in which it should have told something.

use coroner::outputs::metrics::{Buckets, CATALOGUE, MetricEntry, MetricKind, Values};
use promql_parser::{
    label::{Labels, MatchOp, Matcher},
    parser::{self, AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, VectorSelector},
    util::{ExprVisitor, walk_expr},
};
use std::{collections::BTreeSet, convert::Infallible};

/// What a scrape in a cluster adds to every series that has no such label of its own (`cluster` only
/// where many of them share a store).
pub(crate) const TARGET_LABELS: [&str; 7] =
    ["namespace", "pod", "node", "job", "container", "instance", "cluster"];

/// Of Prometheus' own making, of the agent's process (the prometheus crate's), or of a neighbour.
const FOREIGN: [&str; 15] = [
    "up",
    "ALERTS",
    // Of kube-state-metrics.
    "kube_daemonset_status_desired_number_scheduled",
    "kube_daemonset_status_updated_number_scheduled",
    "kube_node_status_allocatable",
    "kube_replicaset_created",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_threads",
    "process_virtual_memory_bytes",
];

/// Labels that neither the catalogue nor the target has.
const OTHER_LABELS: [&str; 8] =
    ["le", "quantile", "version", "alertname", "alertstate", "severity", "resource", "daemonset"];

/// The metrics that expressions may use: the catalogue's, and these.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vocabulary {
    recorded: BTreeSet<String>,
}

impl Vocabulary {
    /// With recording rules of these names.
    pub(crate) fn new(recorded: impl IntoIterator<Item = String>) -> Self {
        Self { recorded: recorded.into_iter().collect() }
    }

    /// What is wrong with an expression, each as a sentence; empty: nothing. Variables of a dashboard
    /// must have been put in.
    pub(crate) fn complaints(&self, expression: &str) -> Vec<String> {
        let parsed = match parser::parse(expression) {
            Ok(parsed) => parsed,
            Err(error) => return vec![format!("does not parse: {error}")],
        };
        let mut visitor = Visitor { vocabulary: self, made: Vec::new(), complaints: Vec::new() };
        // Cannot fail: its error has no values.
        let Ok(_) = walk_expr(&mut visitor, &parsed);
        visitor.complaints
    }

    fn metric(&self, name: &str) -> Option<Metric> {
        if FOREIGN.contains(&name) {
            return Some(Metric::Foreign);
        }
        if !self.recorded.contains(name) {
            return of_catalogue(name);
        }
        // level:metric:operations, a counter without its suffix. Its values are still the metric's.
        let of = name.split(':').nth(1).unwrap_or_default();
        let source = of_catalogue(of).or_else(|| of_catalogue(&format!("{of}_total")));
        Some(match source {
            Some(Metric::Own(entry)) => Metric::Recorded(entry, None),
            Some(Metric::Bucket(entry, buckets)) => Metric::Recorded(entry, Some(buckets)),
            _ => Metric::Foreign,
        })
    }
}

fn of_catalogue(name: &str) -> Option<Metric> {
    CATALOGUE.iter().find_map(|entry| {
        let rest = name.strip_prefix(entry.name)?;
        match (entry.kind, rest) {
            (MetricKind::Histogram(buckets), "_bucket") => Some(Metric::Bucket(entry, buckets)),
            (MetricKind::Histogram(_), "_sum" | "_count") => Some(Metric::Own(entry)),
            (MetricKind::Counter | MetricKind::Gauge, "") => Some(Metric::Own(entry)),
            _ => None,
        }
    })
}

/// What a name stands for.
#[derive(Clone, Copy)]
enum Metric {
    Own(&'static MetricEntry),
    Bucket(&'static MetricEntry, &'static Buckets),
    /// What a rule has made of it, with some of its labels; of its buckets, with their edges.
    Recorded(&'static MetricEntry, Option<&'static Buckets>),
    Foreign,
}

impl Metric {
    fn has_label(self, label: &str) -> bool {
        TARGET_LABELS.contains(&label)
            || match self {
                Self::Own(entry) => entry.labels.contains(&label),
                Self::Bucket(entry, _) => label == "le" || entry.labels.contains(&label),
                Self::Recorded(..) | Self::Foreign => is_known(label),
            }
    }

    fn buckets(self) -> Option<&'static Buckets> {
        match self {
            Self::Bucket(_, buckets) => Some(buckets),
            Self::Recorded(_, buckets) => buckets,
            Self::Own(_) | Self::Foreign => None,
        }
    }

    fn values(self, label: &str) -> Option<Vec<&'static str>> {
        let (Self::Own(entry) | Self::Bucket(entry, _) | Self::Recorded(entry, _)) = self else {
            return None;
        };
        match entry.values(label)? {
            Values::Closed(values) => Some(values()),
            Values::Open(_) => None,
        }
    }
}

/// Some series has such a label.
fn is_known(label: &str) -> bool {
    TARGET_LABELS.contains(&label)
        || OTHER_LABELS.contains(&label)
        || CATALOGUE.iter().any(|entry| entry.labels.contains(&label))
}

struct Visitor<'a> {
    vocabulary: &'a Vocabulary,
    /// Labels that the expression makes itself, by label_replace.
    made: Vec<String>,
    complaints: Vec<String>,
}

impl ExprVisitor for Visitor<'_> {
    type Error = Infallible;

    fn pre_visit(&mut self, expression: &Expr) -> Result<bool, Infallible> {
        match expression {
            Expr::VectorSelector(selector) => self.selector(selector),
            Expr::MatrixSelector(matrix) => self.selector(&matrix.vs),
            Expr::Call(call) => self.call(call),
            _ => {}
        }
        Ok(true)
    }

    // After what is inside, which may have made the label.
    fn post_visit(&mut self, expression: &Expr) -> Result<bool, Infallible> {
        match expression {
            Expr::Aggregate(AggregateExpr { modifier: Some(modifier), .. }) => {
                self.grouping(modifier);
            }
            Expr::Binary(BinaryExpr { modifier: Some(modifier), .. }) => {
                if let Some(matching) = &modifier.matching {
                    self.grouping(matching);
                }
                if let Some(labels) = modifier.card.labels() {
                    self.known(labels);
                }
            }
            _ => {}
        }
        Ok(true)
    }
}

impl Visitor<'_> {
    fn selector(&mut self, selector: &VectorSelector) {
        let Some(name) = selector.name.as_deref() else {
            self.complaints.push(format!("{selector}: name the metric before the braces"));
            return;
        };
        let Some(metric) = self.vocabulary.metric(name) else {
            self.complaints.push(format!("there is no metric {name}"));
            return;
        };
        let matchers = &selector.matchers;
        for matcher in matchers.matchers.iter().chain(matchers.or_matchers.iter().flatten()) {
            self.matcher(name, metric, matcher);
        }
    }

    fn matcher(&mut self, name: &str, metric: Metric, matcher: &Matcher) {
        let label = matcher.name.as_str();
        if !metric.has_label(label) {
            self.complaints.push(format!("{name} has no label {label}"));
            return;
        }
        if let (Some(buckets), "le") = (metric.buckets(), label) {
            self.complaints.extend(edge_complaint(name, buckets, matcher));
        }
        if let Some(values) = metric.values(label) {
            self.complaints.extend(value_complaint(name, &values, matcher));
        }
    }

    fn call(&mut self, call: &Call) {
        let function = call.func.name;
        let arguments = &call.args.args;
        if ["label_replace", "label_join"].contains(&function)
            && let Some(Expr::StringLiteral(made)) = arguments.get(1).map(|argument| &**argument)
        {
            self.made.push(made.val.clone());
        }
        let Some(Expr::MatrixSelector(matrix)) = arguments.first().map(|argument| &**argument)
        else {
            return;
        };
        let Some(name) = matrix.vs.name.as_deref() else { return };
        if let Some(Metric::Own(entry)) = self.vocabulary.metric(name)
            && entry.kind == MetricKind::Gauge
            && ["rate", "irate", "increase"].contains(&function)
        {
            self.complaints.push(format!("{function}() of {name}, which is a gauge"));
        }
    }

    fn grouping(&mut self, modifier: &LabelModifier) {
        self.known(modifier.labels());
    }

    fn known(&mut self, labels: &Labels) {
        for label in &labels.labels {
            if !is_known(label) && !self.made.contains(label) {
                self.complaints.push(format!("no series has a label {label}"));
            }
        }
    }
}

/// Of an edge that is a whole number: Prometheus 2 stores it as the agent writes it (`45`), Prometheus 3
/// as `45.0`. A matcher must mean the same in both.
fn edge_complaint(name: &str, buckets: &Buckets, matcher: &Matcher) -> Option<String> {
    if matcher.value == "+Inf" {
        return None;
    }
    let matched = |spell: fn(&f64) -> String| -> Vec<bool> {
        buckets.0.iter().map(|edge| matcher.is_match(&spell(edge))).collect()
    };
    let (old, new) = (matched(|edge| format!("{edge}")), matched(|edge| format!("{edge:?}")));
    let decides = |hits: &[bool]| hits.iter().any(|hit| Some(hit) != hits.first());
    if !decides(&old) && !decides(&new) {
        return Some(format!("{name} has no edge {:?}", matcher.value));
    }
    (old != new).then(|| {
        format!(
            "{name}: le {:?} is another one in Prometheus 2 (45) than in 3 (45.0); write \
             le=~\"45(\\\\.0)?\"",
            matcher.value
        )
    })
}

/// A matcher that selects nothing, or excludes nothing, is wrong; of alternatives each must be a value.
fn value_complaint(name: &str, values: &[&str], matcher: &Matcher) -> Option<String> {
    let regex = matches!(matcher.op, MatchOp::Re(_) | MatchOp::NotRe(_));
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let unknown = |value: &&str| !value.is_empty() && !values.contains(value);
    let wrong = if !regex {
        unknown(&matcher.value.as_str())
    } else if matcher.value.split('|').all(plain) {
        matcher.value.split('|').any(|value| unknown(&value))
    } else {
        let matched = values.iter().filter(|value| matcher.is_match(value)).count();
        matched == 0 || (matches!(matcher.op, MatchOp::NotRe(_)) && matched == values.len())
    };
    wrong.then(|| {
        format!(
            "{name}: {} is not {:?}; it can be {}",
            matcher.name,
            matcher.value,
            values.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(expression: &str) -> Vec<String> {
        let recorded = [
            "node:recorded:rate5m",
            "namespace:coroner_container_deaths:increase1h",
            "le:coroner_container_stop_duration_seconds_bucket:rate5m",
        ];
        Vocabulary::new(recorded.map(str::to_owned)).complaints(expression)
    }

    fn is_said(expression: &str, about: &str) {
        let said = complaints(expression);
        assert!(said.iter().any(|one| one.contains(about)), "{expression}: {said:?}");
    }

    #[test]
    fn what_is_right_is_passed_over() {
        for expression in [
            "up{job=\"coroner\"} == 0",
            "sum by (node) (coroner_leaked_sandboxes{class=~\"netns_open|ready_no_pod\"})",
            "coroner_leaked_sandboxes{class=~\"notready.*\"}",
            "rate(coroner_container_stop_grace_ratio_bucket{le=\"1.1\"}[5m])",
            "rate(coroner_container_stop_duration_seconds_bucket{le=~\"30(\\\\.0)?\"}[5m])",
            "coroner_container_stop_duration_seconds_bucket{le=\"+Inf\"}",
            "node:recorded:rate5m{node!=\"a\"}",
            "sum by (new) (label_replace(coroner_ready, \"new\", \"$1\", \"node\", \"(.*)\"))",
            "coroner_container_deaths_total{namespace=~\"any.+\",node=\"n\"}",
        ] {
            assert_eq!(complaints(expression), [""; 0], "{expression}");
        }
    }

    #[test]
    fn names_and_labels_that_nobody_has_are_named() {
        is_said("sum(", "does not parse");
        is_said("coroner_leaked_sandbox > 0", "no metric coroner_leaked_sandbox");
        is_said("coroner_container_stop_grace_ratio", "no metric");
        is_said("coroner_ready_count", "no metric");
        is_said("{job=\"x\"}", "name the metric");
        is_said("coroner_ready{class=\"x\"}", "no label class");
        is_said("sum by (nod) (coroner_ready)", "no series has a label nod");
        is_said("coroner_ready and on (nod) coroner_ready", "no series has a label nod");
        is_said("coroner_ready * on (node) group_left (nam) up", "no series has a label nam");
        is_said("rate(coroner_ready[5m])", "is a gauge");
        is_said("max_over_time(rate(coroner_ready_total[5m])[1h:5m])", "no metric");
    }

    #[test]
    fn values_that_are_never_had_are_named() {
        is_said("coroner_leaked_sandboxes{class=\"netns\"}", "class is not \"netns\"");
        is_said("coroner_leaked_sandboxes{class!=\"netns\"}", "class is not");
        is_said("coroner_leaked_sandboxes{class=~\"netns_open|netns\"}", "class is not");
        is_said("coroner_leaked_sandboxes{class=~\"shim.*\"}", "class is not");
        is_said("coroner_leaked_sandboxes{class!~\".*\"}", "class is not");
        is_said("coroner_leaked_sandboxes{class!~\"shim.*\"}", "class is not");
        // An orphan's class is no sandbox's.
        is_said("coroner_leaked_sandboxes{class=\"orphan_shim\"}", "class is not");
    }

    #[test]
    fn what_is_recorded_has_the_values_of_its_source() {
        let deaths = "namespace:coroner_container_deaths:increase1h";
        assert_eq!(complaints(&format!("{deaths}{{verdict=\"stop_signal_ignored\"}}")), [""; 0]);
        is_said(&format!("{deaths}{{verdict=\"ignore\"}}"), "verdict is not");
        let stops = "le:coroner_container_stop_duration_seconds_bucket:rate5m";
        assert_eq!(complaints(&format!("{stops}{{le=\"+Inf\"}}")), [""; 0]);
        is_said(&format!("{stops}{{le=~\"31(\\\\.0)?\"}}"), "no edge");
    }

    #[test]
    fn edges_must_exist_and_mean_the_same_in_every_prometheus() {
        let with = |le: &str| format!("coroner_container_stop_duration_seconds_bucket{{le{le}}}");
        is_said(&with("=\"31\""), "no edge");
        is_said(&with("=\"30\""), "another one in Prometheus 2");
        is_said(&with("=\"30.0\""), "another one in Prometheus 2");
    }
}
