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
    outputs::report::{self, LeakList, Style, age, holds, printable, seconds_between, span, thing},
};
use coroner_api::leaks as wire;
use coroner_core::{
    leak::{DetectionState, Leak, LeakKey},
    time::WallTime,
};
use serde::Serialize;
use std::{fmt::Write, path::Path, sync::Arc, time::Duration};

/// The list to print.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct LeaksAnswer {
    /// The confirmed leaks.
    pub(super) list: LeakList,
    /// Without an agent.
    pub(super) standalone: bool,
    /// Candidates. An agent only counts its candidates.
    pub(super) candidates: Vec<Arc<Leak>>,
    /// The requested namespace.
    pub(super) namespace: Option<String>,
    /// Time of the list.
    pub(super) now: WallTime,
}

/// The list as JSON: the confirmed leaks as the agent's API shows them, and what `--standalone` adds.
#[derive(Serialize)]
struct Document {
    standalone: bool,
    detection: wire::Detection,
    items: Vec<wire::Leak>,
    candidates: Vec<wire::Leak>,
}

impl LeaksAnswer {
    /// A list of the leaks in `namespace`.
    pub(super) fn new(
        mut list: LeakList,
        mut candidates: Vec<Arc<Leak>>,
        standalone: bool,
        namespace: Option<&str>,
    ) -> Self {
        if let Some(wanted) = namespace {
            let is_in =
                |leak: &Arc<Leak>| leak.pod.as_ref().is_some_and(|pod| pod.namespace == wanted);
            list.leaks.retain(is_in);
            candidates.retain(is_in);
        }
        let now = clock::anchor().wall(clock::boot_now());
        Self { list, standalone, candidates, namespace: namespace.map(str::to_owned), now }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// Only the leaks that were confirmed, and the candidates that were first observed, within this time.
    pub(super) fn retain_younger(&mut self, since: Duration) {
        let since = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        let from = WallTime(self.now.0.saturating_sub(since));
        self.list.leaks.retain(|leak| leak.confirmed >= from);
        self.candidates.retain(|leak| leak.first_observed >= from);
    }

    pub(super) fn text(&self, args: &LeaksArgs) -> anyhow::Result<String> {
        Ok(match args.output {
            ListOutput::Json => document(&self.document(), false)?,
            ListOutput::Yaml => document(&self.document(), true)?,
            ListOutput::Name => self.all().map(|leak| name(&leak.key) + "\n").collect(),
            form => {
                let wide = form == ListOutput::Wide;
                let quotes = args.kubelet_log.as_deref().map(|log| self.quotes(log)).transpose()?;
                let verbose = args.verbose || quotes.is_some();
                let style = Style::for_stdout();
                self.plain(wide, verbose, quotes.as_ref(), &style)
            }
        })
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Leak>> {
        self.list.leaks.iter().chain(&self.candidates)
    }

    fn document(&self) -> Document {
        let clock = clock::anchor();
        let all = |leaks: &[Arc<Leak>]| {
            let node = || self.list.node.clone();
            let of = |leak| wire::Leak { node: node(), ..report::leak_json(leak, &clock) };
            leaks.iter().map(|leak| of(leak)).collect()
        };
        Document {
            standalone: self.standalone,
            detection: report::detection_json(&self.list.progress, self.list.suspension.clone()),
            items: all(&self.list.leaks),
            candidates: all(&self.candidates),
        }
    }

    /// What the kubelet's log states of the leaks.
    fn quotes(&self, log: &Path) -> anyhow::Result<LeakQuotes> {
        let leaks: Vec<&Leak> = self.all().map(AsRef::as_ref).collect();
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
        if self.standalone {
            header.insert(0, "STATE");
        }
        if wide {
            header.extend(["UID", "ATTEMPT", "HOLDS", "STUCK", "WHY", "NODE"]);
        }
        let certain = self.list.leaks.iter().map(|leak| self.row(leak, "confirmed", wide));
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
        let or_none = |text: &str| match text {
            "" => "-".to_owned(),
            text => printable(text),
        };
        let mut row = vec![
            leak.class.to_string(),
            or_none(pod.map_or("", |pod| &pod.namespace)),
            or_none(pod.map_or("", |pod| &pod.name)),
            printable(&thing(&leak.key)),
            age(leak, self.now),
            span(seconds_between(leak.first_observed, self.now)),
            leak.cause.kind.to_string(),
        ];
        if self.standalone {
            row.insert(0, state.to_owned());
        }
        if wide {
            row.extend([
                or_none(pod.map_or("", |pod| pod.uid.as_str())),
                or_none(&leak.attempt.map(|attempt| attempt.to_string()).unwrap_or_default()),
                or_none(&holds(&leak.resources)),
                or_none(leak.blocked_on.map_or("", |reason| reason.as_str())),
                or_none(&report::leak_cause(leak)),
                or_none(&self.list.node),
            ]);
        }
        row
    }

    /// Explains an empty list.
    pub(super) fn nothing(&self) -> String {
        let progress = &self.list.progress;
        let mut of = format!(" on node {}", printable(&self.list.node));
        if let Some(namespace) = &self.namespace {
            of += &format!(" in namespace {}", printable(namespace));
        }
        if progress.detection_state != DetectionState::Possible {
            return format!("leak detection is suspended{of}: {}", self.list.suspension);
        }
        if !self.list.suspension.is_empty() {
            return format!(
                "no confirmed leaks{of}, but not all can be seen: {}",
                self.list.suspension
            );
        }
        let (watched, threshold) =
            (span(progress.watched_seconds), span(progress.threshold_seconds));
        match (progress.candidate_count, progress.has_seen_enough()) {
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

/// The thing, with its kind.
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
    use crate::{
        outputs::report::samples::{golden, leaked, stuck},
        store::leaks::DetectionProgress,
    };
    use coroner_core::leak::LeakCause;

    fn progress(
        detection_state: DetectionState,
        watched_seconds: u64,
        candidates: usize,
    ) -> DetectionProgress {
        DetectionProgress {
            detection_state,
            watched_seconds,
            threshold_seconds: 300,
            candidate_count: candidates,
        }
    }

    /// Of one certain leak, and one that is suspected.
    fn answer(standalone: bool) -> LeaksAnswer {
        let mut orphan = leaked();
        orphan.pod = None;
        orphan.cause.kind = LeakCause::Unknown;
        orphan.cause.name = Some("a\nbreak".into());
        let now = WallTime(leaked().first_observed.0 + 400_000_000_000);
        orphan.first_observed = WallTime(now.0 - 4_000_000_000);
        let leaks = vec![Arc::new(leaked()), Arc::new(stuck())];
        let progress = progress(DetectionState::Possible, 400, 1);
        let list = LeakList { node: "n1".into(), progress, leaks, ..LeakList::default() };
        let candidates = if standalone { vec![Arc::new(orphan)] } else { Vec::new() };
        LeaksAnswer { list, standalone, candidates, namespace: None, now }
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
        let says = |progress: DetectionProgress| {
            let list = LeakList { node: "n1".into(), progress, ..LeakList::default() };
            let now = WallTime(0);
            let (standalone, candidates, namespace) = (false, Vec::new(), None);
            LeaksAnswer { list, standalone, candidates, namespace, now }.nothing()
        };
        let possible =
            |watched, candidates| progress(DetectionState::Possible, watched, candidates);
        for (progress, wanted) in [
            (possible(7200, 0), "no leaks on node n1 (all sources in sync, observed for"),
            (
                possible(4, 0),
                "no confirmed leaks on node n1 yet: leak detection has been active for \
                                     4s",
            ),
            (possible(7200, 2), "no confirmed leaks on node n1; 2 candidate(s), observed"),
            (progress(DetectionState::NodeForeign, 0, 0), "leak detection is suspended"),
        ] {
            let text = says(progress);
            assert!(text.starts_with(wanted), "{text}");
        }
        for detection_state in
            DetectionState::ALL.iter().filter(|one| **one != DetectionState::Possible)
        {
            let text = says(progress(*detection_state, 7200, 0));
            assert!(!text.contains("no leaks"), "{detection_state}: {text}");
        }
    }
}
