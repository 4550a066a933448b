//! One run of the lab: a node, its scenarios, and what came out of each. The first test that needs it plays it.

use crate::binaries;
use coroner_lab::{failures, scenarios::Scenario};
use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, OnceLock},
};

pub(crate) struct LabRun {
    /// `containerd-2`.
    name: String,
    scenarios: Vec<Scenario>,
    flags: Vec<String>,
    played: OnceLock<Result<Played, String>>,
}

/// What a run of the lab has left.
struct Played {
    objects: Vec<Value>,
    succeeded: bool,
    /// Its work directory is gone.
    is_clean: bool,
}

impl LabRun {
    pub(crate) fn new(name: &str, scenarios: Vec<Scenario>, flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self { name: name.to_owned(), scenarios, flags, played: OnceLock::new() }
    }

    /// A test for each scenario that is wanted, and one for the run as a whole.
    pub(crate) fn trials(self: Arc<Self>, is_wanted: impl Fn(&str) -> bool) -> Vec<Trial> {
        let all = self.scenarios.iter().map(|scenario| scenario.name);
        let wanted: Arc<Vec<&'static str>> =
            Arc::new(all.filter(|name| is_wanted(&self.of(name))).collect());
        let of_scenario = wanted.iter().map(|&name| {
            let (run, wanted) = (self.clone(), wanted.clone());
            Trial::test(self.of(name), move || run.agrees(name, &wanted))
        });
        let mut trials: Vec<Trial> = of_scenario.collect();
        if !trials.is_empty() {
            let (run, wanted) = (self.clone(), wanted.clone());
            trials.push(Trial::test(self.of("as-a-whole"), move || run.is_clean(&wanted)));
        }
        trials
    }

    fn of(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    fn agrees(&self, name: &str, wanted: &[&str]) -> Result<(), Failed> {
        let played = self.played(wanted)?;
        let Some(object) = played.objects.iter().find(|object| object["scenario"] == name) else {
            return Err(format!("it was not played: see {}", self.log().display()).into());
        };
        if object["ok"] == true {
            return Ok(());
        }
        if let Some(why) = object["left_out"].as_str() {
            return Err(format!("it was left out: {why}; or skip it: `-- --skip {name}`").into());
        }
        let points = object["disagreements"].as_array().into_iter().flatten();
        let points: Vec<&str> = points.filter_map(Value::as_str).collect();
        Err(format!("{}\nits logs: {}", points.join("\n"), object["kept"]).into())
    }

    /// Nothing was reported of no scenario, the exit status tells so, and nothing is left.
    fn is_clean(&self, wanted: &[&str]) -> Result<(), Failed> {
        let played = self.played(wanted)?;
        let unexpected_leaks: Vec<&Value> =
            played.objects.iter().filter(|object| !object["unexpectedLeak"].is_null()).collect();
        let is_fine = |object: &Value| object["ok"] == true || object["left_out"].is_string();
        let all_fine = played.objects.iter().all(is_fine);
        if !unexpected_leaks.is_empty() || !played.is_clean || played.succeeded != all_fine {
            let (succeeded, is_clean) = (played.succeeded, played.is_clean);
            return Err(format!(
                "leaks of no scenario: {unexpected_leaks:?}; success: {succeeded}, all right: {all_fine}; all removed: \
                 {is_clean}: see {}",
                self.log().display()
            )
            .into());
        }
        Ok(())
    }

    fn played(&self, wanted: &[&str]) -> Result<&Played, Failed> {
        let played = self.played.get_or_init(|| self.play(wanted));
        played.as_ref().map_err(|why| why.into())
    }

    /// Where what its failures leave is kept: `target/failed/containerd-2`.
    fn failed(&self) -> PathBuf {
        let named = std::env::var_os("CORONER_FAILED_DIR").map(PathBuf::from);
        failures::directory(named).join(&self.name)
    }

    /// All that it has written to stderr.
    fn log(&self) -> PathBuf {
        self.failed().join("lab.log")
    }

    fn play(&self, wanted: &[&str]) -> Result<Played, String> {
        binaries::demand_root();
        let says = |error: std::io::Error| error.to_string();
        let work = tempfile::tempdir().map_err(says)?;
        let _ = fs::remove_dir_all(self.failed());
        fs::create_dir_all(self.failed()).map_err(says)?;
        let mut command = Command::new(binaries::LAB);
        command.args(["run", "--json"]).args(binaries::flags(work.path()));
        command.arg("--keep-failures").arg(self.failed()).args(&self.flags);
        command.args(wanted.iter().flat_map(|name| ["--scenario", name]));
        let log = fs::File::create(self.log()).map_err(says)?;
        let output = command.stdin(Stdio::null()).stderr(log).output().map_err(says)?;
        let text = String::from_utf8_lossy(&output.stdout);
        if text.is_empty() {
            return Err(fs::read_to_string(self.log()).map_err(says)?);
        }
        let objects = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        Ok(Played {
            objects: objects.map_err(|error| format!("{error}: {text}"))?,
            succeeded: output.status.success(),
            is_clean: !binaries::folder(work.path()).exists(),
        })
    }
}
