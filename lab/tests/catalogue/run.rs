//! One run of the lab: a version of containerd, the scenarios, and what came out of each.

use crate::{binaries, usage::lab_run};
use coroner_lab_cluster::containerd::target_directory;
use coroner_lab_scenarios::Scenario;
use libtest_mimic::{Failed, Trial};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    collections::{BTreeSet, HashMap},
    fs,
    io::{BufRead as _, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

/// How long a lab may say nothing before it hangs: each of its own waits gives up earlier, and the
/// longest sequence of them is some.
const SILENCE: Duration = Duration::from_secs(1800);

/// What is demanded of a run as a whole.
type Demand = fn(&LabRun) -> Result<(), Failed>;

/// One run of the lab.
pub(crate) struct LabRun {
    /// `containerd-1.7`.
    name: String,
    /// Its name alone: a run may be one part of several of the same name.
    part: String,
    /// `--containerd`; `None`: the machine's own.
    containerd: Option<&'static str>,
    scenarios: Vec<&'static str>,
    /// What makes it another run than that on a plain node.
    flags: Vec<&'static str>,
    state: Mutex<Results>,
    news: Condvar,
}

/// Whose answers come late.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    Apiserver,
    Runtime,
    Both,
}

impl Late {
    pub(crate) const ALL: [Self; 3] = [Self::Apiserver, Self::Runtime, Self::Both];

    fn name(self) -> &'static str {
        match self {
            Self::Apiserver => "api",
            Self::Runtime => "runtime",
            Self::Both => "both",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        const FLAGS: [&str; 2] = ["--delay-apiserver", "--delay-runtime"];
        match self {
            Self::Apiserver => &FLAGS[..1],
            Self::Runtime => &FLAGS[1..],
            Self::Both => &FLAGS,
        }
    }
}

#[derive(Default)]
struct Results {
    /// What came out, by the scenario's name.
    objects: HashMap<String, Value>,
    /// What was told as left behind, of no scenario.
    strays: Vec<Value>,
    ended: Option<Ended>,
}

/// How the lab ended.
#[derive(Clone)]
struct Ended {
    /// The error says why it was not played, or not to its end.
    status: Result<ExitStatus, String>,
    /// Its folder is still there.
    left: bool,
    said: String,
}

/// A line of the lab's, or that it has hung.
enum LabLine {
    Object(String),
    Said(String),
}

impl LabRun {
    /// Of these scenarios, not yet played.
    pub(crate) fn new<'a>(
        version: &str,
        containerd: Option<&'static str>,
        scenarios: impl IntoIterator<Item = &'a Scenario>,
    ) -> Self {
        let name = format!("containerd-{version}");
        Self {
            part: name.clone(),
            name,
            containerd,
            scenarios: scenarios.into_iter().map(|scenario| scenario.name).collect(),
            flags: Vec::new(),
            state: Mutex::default(),
            news: Condvar::new(),
        }
    }

    pub(crate) fn plays(&self, name: &str) -> bool {
        self.scenarios.contains(&name)
    }

    /// The same on cgroup v1.
    pub(crate) fn on_v1(self) -> Self {
        let name = format!("{}-cgroup-v1", self.name);
        Self { part: name.clone(), name, flags: vec!["--cgroup", "v1"], ..self }
    }

    /// The same with another OCI runtime.
    pub(crate) fn on_crun(self) -> Self {
        let name = format!("{}-crun", self.name);
        Self { part: name.clone(), name, flags: vec!["--oci-runtime", "crun"], ..self }
    }

    /// The same with systemd as cgroup driver.
    pub(crate) fn on_systemd(self) -> Self {
        let name = format!("{}-systemd", self.name);
        Self { part: name.clone(), name, flags: vec!["--cgroup-driver", "systemd"], ..self }
    }

    /// The same on a node in namespaces of its own.
    pub(crate) fn nested(self) -> Self {
        let name = format!("{}-nested", self.name);
        Self { part: name.clone(), name, flags: vec!["--nested"], ..self }
    }

    /// The same with sources whose answers come so late, `late-both-9s`; `part`: of several of that name.
    pub(crate) fn late(self, which: Late, by: &'static str, part: Option<usize>) -> Self {
        let flags = which.flags().iter().flat_map(|flag| [*flag, by]).collect();
        let name = format!("late-{}-{by}", which.name());
        let part = part.map_or_else(|| name.clone(), |part| format!("{name}-part-{part}"));
        Self { name, part, flags, ..self }
    }

    /// A test for each scenario, and for what is demanded of the whole. They wait until it has been
    /// played.
    pub(crate) fn trials(self: &Arc<Self>) -> Vec<Trial> {
        let of_scenario = |&name: &&'static str| {
            let run = Arc::clone(self);
            Trial::test(self.of(name), move || run.agrees(name))
        };
        let mut trials: Vec<Trial> = self.scenarios.iter().map(of_scenario).collect();
        let of_whole: [(&str, Demand); 3] = [
            ("nothing-of-no-scenario", LabRun::has_no_strays),
            ("exit-status", LabRun::says_how_it_went),
            ("nothing-left", LabRun::leaves_nothing),
        ];
        trials.extend(of_whole.map(|(name, test)| {
            let run = Arc::clone(self);
            Trial::test(self.of_part(name), move || test(&run))
        }));
        trials
    }

    fn of(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    fn of_part(&self, name: &str) -> String {
        format!("{}/{name}", self.part)
    }

    /// It is told as it was meant.
    fn agrees(&self, name: &str) -> Result<(), Failed> {
        let state = self.wait(|state| state.objects.contains_key(name) || state.ended.is_some());
        let Some(object) = state.objects.get(name) else {
            return Err(format!("it was not played: see {}", self.log().display()).into());
        };
        if let Some(reason) = object["left_out"].as_str() {
            return Err(format!("it cannot be played here: {reason}").into());
        }
        let mut points: Vec<String> = texts(&object["disagreements"]).collect();
        if points.is_empty() && object["ok"] != true {
            points.push("it says that it is not ok, and not why".into());
        }
        let ends = object["expected"]["lives"] != 0;
        if object["timeline"]["phases"].is_array() != ends {
            points.push(format!("an account of an end: {}, expected: {ends}", !ends));
        }
        let left = |leaks: &Value| leaks.as_array().map_or(0, Vec::len);
        let (leaks, expected) = (&object["leaks"], &object["expected"]["leaks"]);
        if left(leaks) != left(expected) {
            points.push(format!("left behind: {leaks:#}\nexpected: {expected:#}"));
        }
        if points.is_empty() {
            return Ok(());
        }
        let kept = object["kept"].as_str().unwrap_or("nowhere");
        Err(format!("{}\nwhat it left is kept in {kept}", points.join("\n")).into())
    }

    /// Nothing was told as left behind but by scenarios.
    fn has_no_strays(&self) -> Result<(), Failed> {
        let ended = self.ended();
        let strays = &self.lock().strays;
        if strays.is_empty() && ended.status.is_ok() {
            return Ok(());
        }
        Err(format!("{strays:#?}\n{}", ended.said).into())
    }

    /// Success where all agrees, failure where something does not, and nothing else.
    fn says_how_it_went(&self) -> Result<(), Failed> {
        let Ended { status, said, .. } = self.ended();
        let state = self.lock();
        let fine = |object: &Value| object["ok"] == true || object["left_out"].is_string();
        let all_fine = state.objects.values().all(fine) && state.strays.is_empty();
        match status {
            Ok(status) if status.code() == Some(i32::from(!all_fine)) => Ok(()),
            Ok(status) => Err(format!("{status}, all agreed: {all_fine}\n{said}").into()),
            Err(why) => Err(format!("{why}\n{said}").into()),
        }
    }

    /// Its folder is gone; the lab itself looks for processes, cgroups and mounts, and fails if there
    /// are any.
    fn leaves_nothing(&self) -> Result<(), Failed> {
        let ended = self.ended();
        if ended.left || ended.status.is_err() {
            return Err(format!("the lab left something behind\n{}", ended.said).into());
        }
        Ok(())
    }

    /// Where what its failures leave is kept: `target/failed/containerd-1.7`.
    fn failed(&self) -> PathBuf {
        let named = std::env::var_os("CORONER_FAILED_DIR").map(PathBuf::from);
        let built = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let beside = || target_directory(built).unwrap_or(built).join("failed");
        named.unwrap_or_else(beside).join(&self.part)
    }

    /// All that it said, if it failed.
    fn log(&self) -> PathBuf {
        self.failed().join("lab.log")
    }

    fn ended(&self) -> Ended {
        self.wait(|state| state.ended.is_some()).ended.clone().expect("it was waited for")
    }

    fn lock(&self) -> MutexGuard<'_, Results> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, until: impl Fn(&Results) -> bool) -> MutexGuard<'_, Results> {
        let waited = self.news.wait_while(self.lock(), |state| !until(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Plays what the tests of these names need; `aloud`: and passes on what the lab says.
    pub(crate) fn play(&self, wanted: &BTreeSet<String>, aloud: bool) {
        let work = match tempfile::tempdir() {
            Ok(work) => work,
            Err(error) => {
                let why = format!("cannot make a temporary folder: {error}");
                return self.has_ended(Ended {
                    status: Err(why),
                    left: false,
                    said: String::new(),
                });
            }
        };
        let mut said = String::new();
        // Of an earlier run.
        let _ = fs::remove_dir_all(self.failed());
        let status = self.run(wanted, work.path(), |line| {
            if aloud {
                eprintln!("{}: {line}", self.part);
            }
            said.push_str(line);
            said.push('\n');
        });
        let left = binaries::folder(work.path()).exists();
        if !status.as_ref().is_ok_and(ExitStatus::success) {
            // What cannot be kept is told by the tests all the same.
            let _ = fs::create_dir_all(self.failed()).and_then(|()| fs::write(self.log(), &said));
        }
        self.has_ended(Ended { status, left, said });
    }

    fn has_ended(&self, how: Ended) {
        self.lock().ended = Some(how);
        self.news.notify_all();
    }

    fn run(
        &self,
        wanted: &BTreeSet<String>,
        work: &Path,
        mut says: impl FnMut(&str),
    ) -> Result<ExitStatus, String> {
        let mut command = lab_run();
        command.arg("--json").args(binaries::flags(work));
        command.arg("--keep-failures").arg(self.failed());
        command.args(self.containerd.iter().flat_map(|version| ["--containerd", version]));
        command.args(&self.flags);
        let chosen = self.scenarios.iter().filter(|name| wanted.contains(&self.of(name)));
        let chosen: Vec<&str> = chosen.copied().collect();
        // What is demanded of the whole is asked of the whole.
        let chosen = if chosen.is_empty() { &self.scenarios } else { &chosen };
        command.args(chosen.iter().flat_map(|name| ["--scenario", name]));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", binaries::LAB))?;
        let lines = lines(&mut child);
        loop {
            match lines.recv_timeout(SILENCE) {
                Ok(LabLine::Object(line)) => {
                    if let Err(why) = self.note(&line) {
                        end(&mut child);
                        return Err(why);
                    }
                }
                Ok(LabLine::Said(line)) => says(&line),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    end(&mut child);
                    return Err(format!("the lab said nothing for {SILENCE:?}"));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        child.wait().map_err(|error| error.to_string())
    }

    fn note(&self, line: &str) -> Result<(), String> {
        let object: Value = serde_json::from_str(line).map_err(|e| format!("{e}: {line}"))?;
        let mut state = self.lock();
        match object["scenario"].as_str() {
            Some(name) => drop(state.objects.insert(name.to_owned(), object)),
            None => state.strays.push(object),
        }
        self.news.notify_all();
        Ok(())
    }
}

/// Has the lab take everything down.
fn end(lab: &mut Child) {
    let _ = kill_process(Pid::from_child(lab), Signal::TERM);
    let _ = lab.wait();
}

fn texts(list: &Value) -> impl Iterator<Item = String> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().unwrap_or_default().to_owned())
}

/// What it writes, line by line, until it has closed both.
fn lines(child: &mut Child) -> mpsc::Receiver<LabLine> {
    let (to, lines) = mpsc::channel();
    let read = |from: Option<Box<dyn Read + Send>>, line: fn(String) -> LabLine| {
        let to = to.clone();
        thread::spawn(move || {
            let all = from.map(|from| BufReader::new(from).lines());
            // Of what is not UTF-8 nothing more is read, and the lab's end is an error of its own.
            for text in all.into_iter().flatten().map_while(Result::ok) {
                if to.send(line(text)).is_err() {
                    return;
                }
            }
        });
    };
    read(child.stdout.take().map(|out| Box::new(out) as _), LabLine::Object);
    read(child.stderr.take().map(|err| Box::new(err) as _), LabLine::Said);
    lines
}
