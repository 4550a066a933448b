//! The list of leaks, and its output formats.

use crate::{
    cli::{
        columns::Columns,
        kubelet_log::{self, LeakQuotes},
        output::document,
        print_note,
    },
    config::args::{LeaksArgs, ListOutput},
    linux::clock,
    outputs::report::{self, Style, age, holds, printable, seconds_between, span, thing},
};
use coroner_report::{Detection, DetectionState, Leak, LeakKey, WallTime, parse_time};
use serde::Serialize;
use std::{fmt::Write, path::Path};

#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct LeaksAnswer {
    #[serde(skip)]
    pub(super) node: String,
    pub(super) standalone: bool,
    pub(super) detection: Detection,
    /// The confirmed leaks: the oldest first.
    #[serde(rename = "items")]
    pub(super) leaks: Vec<Leak>,
    /// Candidates. An agent only counts its candidates.
    pub(super) candidates: Vec<Leak>,
    #[serde(skip)]
    pub(super) namespace: Option<String>,
    /// Only those that match other filters are in it.
    #[serde(skip)]
    pub(super) is_filtered: bool,
    #[serde(skip)]
    pub(super) now: WallTime,
}

impl LeaksAnswer {
    pub(super) fn new(
        node: String,
        detection: Detection,
        leaks: Vec<Leak>,
        namespace: Option<&str>,
    ) -> Self {
        let now = clock::anchor().wall(clock::boot_now());
        let namespace = namespace.map(str::to_owned);
        let (standalone, candidates) = (false, Vec::new());
        let is_filtered = false;
        let mut answer =
            Self { node, standalone, detection, leaks, candidates, namespace, is_filtered, now };
        let leaks = std::mem::take(&mut answer.leaks);
        answer.leaks = answer.of_namespace(leaks);
        answer
    }

    pub(super) fn with_candidates(self, candidates: Vec<Leak>) -> Self {
        Self { standalone: true, candidates: self.of_namespace(candidates), ..self }
    }

    fn of_namespace(&self, mut leaks: Vec<Leak>) -> Vec<Leak> {
        if let Some(wanted) = &self.namespace {
            leaks.retain(|leak| leak.pod.as_ref().is_some_and(|pod| pod.namespace == *wanted));
        }
        leaks.iter_mut().for_each(|leak| leak.node.clone_from(&self.node));
        leaks.sort_by_key(Leak::since);
        leaks
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// Only the leaks that were confirmed or resolved, and the candidates that were first observed, since then.
    pub(super) fn retain_younger(&mut self, since: &str) {
        let Some(from) = parse_time(since, self.now) else { return };
        self.leaks.retain(|leak| leak.resolved_at.unwrap_or(leak.confirmed).time >= from);
        self.candidates.retain(|leak| leak.first_observed.time >= from);
    }

    pub(super) fn text(&self, args: &LeaksArgs) -> anyhow::Result<String> {
        Ok(match args.output {
            ListOutput::Json => document(self, false)?,
            ListOutput::Yaml => document(self, true)?,
            ListOutput::Name => self.all().map(|leak| name(&leak.key) + "\n").collect(),
            form => {
                let wide = form == ListOutput::Wide;
                let quotes = args.kubelet_log.as_deref().map(|log| self.quotes(log)).transpose()?;
                let verbose = args.verbose || quotes.is_some();
                let style = report::stdout_style();
                self.plain(wide, verbose, quotes.as_ref(), &style)
            }
        })
    }

    fn all(&self) -> impl Iterator<Item = &Leak> {
        self.leaks.iter().chain(&self.candidates)
    }

    fn has_states(&self) -> bool {
        self.standalone || self.leaks.iter().any(|leak| leak.resolved_at.is_some())
    }

    fn quotes(&self, log: &Path) -> anyhow::Result<LeakQuotes> {
        let leaks: Vec<&Leak> = self.all().collect();
        let quotes = kubelet_log::quotes(log, &leaks, self.now)?;
        print_note(&quotes.note);
        Ok(quotes)
    }

    fn plain(
        &self,
        wide: bool,
        verbose: bool,
        quotes: Option<&LeakQuotes>,
        style: &Style,
    ) -> String {
        if self.is_empty() {
            return String::new();
        }
        let mut header = vec!["CLASS", "NAMESPACE", "POD", "WHAT", "AGE", "OBSERVED", "CAUSE"];
        if self.has_states() {
            header.insert(0, "STATE");
        }
        if wide {
            header.extend(["UID", "ATTEMPT", "HOLDS", "WHY", "NODE"]);
        }
        let certain = self.leaks.iter().map(|leak| {
            let state = if leak.resolved_at.is_some() { "resolved" } else { "confirmed" };
            self.row(leak, state, wide)
        });
        let candidates = self.candidates.iter().map(|leak| self.row(leak, "candidate", wide));
        let mut text = Columns::new(header).rows(certain.chain(candidates));
        if verbose {
            for (place, leak) in self.all().enumerate() {
                let _ = write!(text, "\n{}", report::leak(leak, self.now, style));
                quotes.into_iter().for_each(|quotes| quotes.write(place, &mut text, style));
            }
        }
        text
    }

    fn row(&self, leak: &Leak, state: &str, wide: bool) -> Vec<String> {
        let pod = leak.pod.as_ref();
        let now = leak.resolved_at.map_or(self.now, |resolved| resolved.time);
        let or_none = |text: &str| match text {
            "" => "-".to_owned(),
            text => printable(text),
        };
        let mut row = vec![
            leak.class.to_string(),
            or_none(pod.map_or("", |pod| &pod.namespace)),
            or_none(pod.map_or("", |pod| &pod.name)),
            printable(&thing(&leak.key)),
            age(leak, now),
            span(seconds_between(leak.first_observed.time, now)),
            leak.cause.kind.to_string(),
        ];
        if self.has_states() {
            row.insert(0, state.to_owned());
        }
        if wide {
            row.extend([
                or_none(pod.map_or("", |pod| pod.uid.as_str())),
                or_none(&leak.attempt.map(|attempt| attempt.to_string()).unwrap_or_default()),
                or_none(&holds(&leak.resources)),
                or_none(&leak.cause.message),
                or_none(&self.node),
            ]);
        }
        row
    }

    pub(super) fn nothing(&self) -> String {
        let detection = &self.detection;
        let mut of = format!(" on node {}", printable(&self.node));
        if let Some(namespace) = &self.namespace {
            of += &format!(" in namespace {}", printable(namespace));
        }
        if detection.state != DetectionState::Possible {
            return format!("leak detection is suspended{of}: {}", detection.message);
        }
        if self.is_filtered {
            of += " that match";
        }
        if !detection.message.is_empty() {
            return format!(
                "no confirmed leaks{of}, but not all can be seen: {}",
                detection.message
            );
        }
        let (watched, threshold) =
            (span(detection.watched_seconds), span(detection.threshold_seconds));
        match (detection.candidate_count, detection.has_seen_enough()) {
            (0, true) => {
                format!("no leaks{of} (all sources in sync, observed for {watched})")
            }
            (0, false) => format!(
                "no confirmed leaks{of} yet: leak detection has been active for {watched} of \
                 {threshold}; no candidates so far"
            ),
            (n, _) => format!(
                "no confirmed leaks{of}; {n} candidate(s), observed for less than \
                 {threshold}"
            ),
        }
    }
}

fn name(key: &LeakKey) -> String {
    match key {
        LeakKey::Sandbox { id } => format!("sandbox/{}", printable(id.as_str())),
        LeakKey::Shim { pid, .. } => format!("shim/{pid}"),
        LeakKey::Netns { name, .. } => format!("netns/{}", printable(name)),
        LeakKey::PodCgroup { cgroup, .. } => format!("cgroup/{cgroup}"),
        LeakKey::Pod { uid } => format!("pod/{}", printable(uid.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::report::samples::{golden, leaked, stuck};
    use coroner_report::{LeakCause, Moment};

    fn detection(state: DetectionState, watched_seconds: u64, candidate_count: usize) -> Detection {
        let (message, threshold_seconds) = (String::new(), 300);
        Detection { state, message, watched_seconds, threshold_seconds, candidate_count }
    }

    /// Of one certain leak, and one that is suspected.
    fn answer(standalone: bool) -> LeaksAnswer {
        let mut orphan = leaked();
        orphan.pod = None;
        orphan.cause.kind = LeakCause::Unknown;
        orphan.cause.message = "a\nbreak is alive and was not sent SIGKILL".into();
        let now = WallTime(leaked().first_observed.time.0 + 400_000_000_000);
        let time = WallTime(now.0 - 4_000_000_000);
        orphan.first_observed = Moment { time, ..Moment::default() };
        let detection = detection(DetectionState::Possible, 400, 1);
        let list = LeaksAnswer::new("n1".into(), detection, vec![leaked(), stuck()], None);
        let list = LeaksAnswer { now, ..list };
        if standalone { list.with_candidates(vec![orphan]) } else { list }
    }

    #[test]
    fn tables() {
        let style = Style::default();
        golden("leaks.txt", &answer(false).plain(false, false, None, &style));
        golden("leaks_standalone.txt", &answer(true).plain(false, false, None, &style));
        golden("leaks_wide.txt", &answer(true).plain(true, false, None, &style));
        let verbose = answer(true).plain(false, true, None, &style);
        assert_eq!(verbose.matches("cause   ").count(), 3, "{verbose}");
    }

    #[test]
    fn an_empty_list_says_what_it_means() {
        let says = |detection| LeaksAnswer::new("n1".into(), detection, vec![], None).nothing();
        let possible =
            |watched, candidates| detection(DetectionState::Possible, watched, candidates);
        for (progress, wanted) in [
            (possible(7200, 0), "no leaks on node n1 (all sources in sync, observed for"),
            (
                possible(4, 0),
                "no confirmed leaks on node n1 yet: leak detection has been active for \
                                     4s",
            ),
            (possible(7200, 2), "no confirmed leaks on node n1; 2 candidate(s), observed"),
            (detection(DetectionState::NodeForeign, 0, 0), "leak detection is suspended"),
        ] {
            let text = says(progress);
            assert!(text.starts_with(wanted), "{text}");
        }
        for detection_state in
            DetectionState::ALL.iter().filter(|one| **one != DetectionState::Possible)
        {
            let text = says(detection(*detection_state, 7200, 0));
            assert!(!text.contains("no leaks"), "{detection_state}: {text}");
        }
    }
}
