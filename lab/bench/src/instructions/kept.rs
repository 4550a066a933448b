//! Counts, those that are kept, and what has changed.

use crate::Figure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const BENCH: &str = "instructions";
/// What a count may rise by before it is a missed goal.
const ENGINE_TOLERANCE: f64 = 0.01;
const PROGRAMS_TOLERANCE: f64 = 0.01;

/// All counts, and what they depend on.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    /// The host's compiler and C library.
    pub(super) compiler: String,
    /// Instructions that the engine takes for an input, by kind.
    pub(super) engine: BTreeMap<String, f64>,
    /// Who compiled the kernel programs.
    pub(super) bpf_compiler: String,
    /// Instructions of each kernel program, as compiled.
    pub(super) object: BTreeMap<String, u64>,
    /// `uname -r`.
    pub(super) kernel: String,
    /// Instructions that its verifier followed, by hook.
    pub(super) verified: BTreeMap<String, u64>,
}

impl Counts {
    /// As the file in the repository.
    pub(super) fn text(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The verifier follows what the compiler made.
    fn verified_by(&self) -> (&str, &str) {
        (&self.kernel, &self.bpf_compiler)
    }
}

/// What makes counts incomparable, a sentence each.
pub(super) fn differences(kept: &Counts, now: &Counts) -> Vec<String> {
    let told = [
        ("the engine's", &kept.compiler, &now.compiler),
        ("the programs'", &kept.bpf_compiler, &now.bpf_compiler),
        ("the verifier's", &kept.kernel, &now.kernel),
    ];
    told.into_iter()
        .filter(|(_, kept, now)| kept != now && !kept.is_empty())
        .map(|(whose, kept, now)| {
            format!("{whose} counts were kept with {kept}; this is {now}: no goals for them")
        })
        .collect()
}

/// What is counted now, beside what is kept; a rise beyond the tolerance is a missed goal where the
/// two can be compared.
pub(super) fn figures(kept: &Counts, now: &Counts) -> Vec<Figure> {
    let floats = |counts: &BTreeMap<String, u64>| -> BTreeMap<String, f64> {
        counts.iter().map(|(name, count)| (name.clone(), *count as f64)).collect()
    };
    let same = kept.compiler == now.compiler;
    let mut all = group("engine", &kept.engine, &now.engine, same.then_some(ENGINE_TOLERANCE));
    let same = kept.bpf_compiler == now.bpf_compiler;
    let tolerance = same.then_some(PROGRAMS_TOLERANCE);
    all.extend(group("object", &floats(&kept.object), &floats(&now.object), tolerance));
    let same = kept.verified_by() == now.verified_by();
    let tolerance = same.then_some(PROGRAMS_TOLERANCE);
    all.extend(group("verified", &floats(&kept.verified), &floats(&now.verified), tolerance));
    all
}

fn group(
    what: &str,
    kept: &BTreeMap<String, f64>,
    now: &BTreeMap<String, f64>,
    tolerance: Option<f64>,
) -> Vec<Figure> {
    let unit = if what == "engine" { "Ir per input" } else { "instructions" };
    let figure = |(name, count): (&String, &f64)| {
        let figure = Figure::of(BENCH, format!("{what}.{name}"), *count, unit);
        match (kept.get(name), tolerance) {
            (None, _) => figure,
            (Some(kept), None) => figure.beside("kept", *kept),
            (Some(kept), Some(more)) => {
                figure.at_most((kept * (1.0 + more)).floor()).beside("kept", *kept)
            }
        }
    };
    now.iter().map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        Counts {
            compiler: "rustc 1".into(),
            engine: BTreeMap::from([("tick".into(), 1_000.0)]),
            bpf_compiler: "rustc 2".into(),
            object: BTreeMap::from([("cgroup_mkdir".into(), 358)]),
            kernel: "6.18".into(),
            verified: BTreeMap::from([("cgroup_mkdir".into(), 2_000)]),
        }
    }

    fn verdicts(now: &Counts) -> Vec<Option<bool>> {
        figures(&counts(), now).iter().map(|figure| figure.ok).collect()
    }

    #[test]
    fn a_rise_beyond_the_tolerance_misses_the_goal() {
        assert_eq!(verdicts(&counts()), [Some(true); 3]);
        let mut now = counts();
        now.engine.insert("tick".into(), 1_011.0);
        now.object.insert("cgroup_mkdir".into(), 361);
        now.verified.insert("cgroup_mkdir".into(), 1_000);
        assert_eq!(verdicts(&now), [Some(false), Some(true), Some(true)]);
    }

    #[test]
    fn counts_of_another_compiler_or_kernel_are_only_shown() {
        let now = Counts { kernel: "7.0".into(), ..counts() };
        assert_eq!(verdicts(&now), [Some(true), Some(true), None]);
        let now = Counts { bpf_compiler: "rustc 3".into(), ..counts() };
        assert_eq!(verdicts(&now), [Some(true), None, None], "the verifier follows the compiler");
        assert_eq!(differences(&counts(), &now).len(), 1);
        assert!(differences(&counts(), &counts()).is_empty());
        assert!(differences(&Counts::default(), &counts()).is_empty(), "nothing is kept yet");
    }

    #[test]
    fn what_was_not_there_yet_has_no_goal() {
        let mut now = counts();
        now.object.insert("new".into(), 1);
        assert_eq!(verdicts(&now), [Some(true), Some(true), None, Some(true)]);
    }

    #[test]
    fn the_kept_file_reads_back() {
        let text = counts().text().expect("numbers");
        assert_eq!(serde_json::from_str::<Counts>(&text).expect("as written"), counts());
    }
}
