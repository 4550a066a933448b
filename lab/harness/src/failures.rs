//! What a failure leaves: the agent's logs and recordings, its API answers and the kubelet's record,
//! kept for the person who has to find out what happened.

use crate::agent::Http;
use anyhow::Context as _;
use coroner_lab_cluster::containerd::target_directory;
use coroner_lab_cluster::kubelet::{Kubelet, record::StopCall};
use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf},
    time::Duration,
};

/// The agent's API answers that are kept, and their files.
const PAGES: [(&str, &str); 4] = [
    ("/api/v1/terminations", "terminations.json"),
    ("/api/v1/deaths", "deaths.json"),
    ("/api/v1/leaks", "leaks.json"),
    ("/metrics", "metrics.txt"),
];
/// Files of the work directory that are kept: logs and recordings of the agents, and the runtime's log.
const KEPT: [(&str, &str); 3] = [("agent", ".log"), ("agent", ".rec"), ("containerd", ".log")];
/// The kubelet's record.
const KUBELET: &str = "kubelet.json";
/// How long the agent may take for one answer: what failed may be the agent.
const TO_ANSWER: Duration = Duration::from_secs(10);
/// Failures of one name. A loop that always fails must not fill the disk.
const MOST: u32 = 20;

/// Where failures are kept.
#[derive(Clone, Debug)]
pub struct Failures(PathBuf);

/// Where to find what a failure leaves.
#[derive(Clone, Copy, Default)]
pub struct Remains<'a> {
    /// The agent that runs.
    pub agent: Option<&'a Http>,
    /// The lab's kubelet.
    pub kubelet: Option<&'a Kubelet>,
    /// The work directory, with the logs and recordings of the agents.
    pub work: Option<&'a Path>,
}

impl Failures {
    /// In this directory; `None`: `failed` in the target directory that this program was built in,
    /// else in the work directory.
    pub fn new(directory: Option<PathBuf>, work: &Path) -> Self {
        Self(directory.unwrap_or_else(|| {
            let program = env::current_exe().ok();
            let target = program.as_deref().and_then(target_directory);
            target.unwrap_or(work).join("failed")
        }))
    }

    /// Saves what there is of the failure `name` in a folder of that name (`NAME-2`, … if there are
    /// others), and says on stderr where it is and what could not be saved. Never fails: without a
    /// folder there is none.
    pub async fn save(&self, name: &str, remains: Remains<'_>) -> Option<PathBuf> {
        let folder = match self.folder(name) {
            Ok(folder) => folder,
            Err(error) => {
                eprintln!("{name}: nothing of the failure was saved: {error:#}");
                return None;
            }
        };
        let mut missing = Vec::new();
        let mut note = |what: &str, saved: anyhow::Result<()>| {
            if let Err(error) = saved {
                missing.push(format!("{what}: {error:#}"));
            }
        };
        if let Some(agent) = remains.agent {
            for (page, file) in PAGES {
                note(page, save_page(agent, page, &folder.join(file)).await);
            }
        }
        if let Some(kubelet) = remains.kubelet {
            note("the kubelet's record", save_record(&kubelet.record(), &folder.join(KUBELET)));
        }
        if let Some(work) = remains.work {
            note("the logs and recordings", copy_files(work, &folder));
        }
        note("its owner", give_to_owner_of(&self.0, &folder));
        eprintln!("{name} failed; what it left is kept in {}", folder.display());
        for missing in missing {
            eprintln!("  not saved: {missing}");
        }
        Some(folder)
    }

    /// A new folder for a failure of this name.
    fn folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        if !self.0.exists() {
            fs::create_dir_all(&self.0)
                .with_context(|| format!("cannot make {}", self.0.display()))?;
            give_to_owner_of(self.0.parent().unwrap_or(&self.0), &self.0)?;
        }
        for number in 1..=MOST {
            let folder = match number {
                1 => self.0.join(name),
                _ => self.0.join(format!("{name}-{number}")),
            };
            match fs::create_dir(&folder) {
                Ok(()) => return Ok(folder),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot make {}", folder.display()));
                }
            }
        }
        anyhow::bail!("{} has {MOST} of this name: remove some", self.0.display())
    }
}

async fn save_page(agent: &Http, page: &str, file: &Path) -> anyhow::Result<()> {
    let answer = tokio::time::timeout(TO_ANSWER, agent.page(page));
    let (_, body) = answer.await.with_context(|| format!("no answer within {TO_ANSWER:?}"))??;
    Ok(fs::write(file, body)?)
}

fn save_record(record: &BTreeMap<String, Vec<StopCall>>, file: &Path) -> anyhow::Result<()> {
    Ok(fs::write(file, serde_json::to_vec_pretty(record)?)?)
}

/// All that can be copied; the error names the first file that cannot.
fn copy_files(work: &Path, folder: &Path) -> anyhow::Result<()> {
    let mut first = Ok(());
    for entry in fs::read_dir(work).with_context(|| work.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let kept = KEPT.iter().any(|(start, end)| text.starts_with(start) && text.contains(end));
        if kept && entry.file_type()?.is_file() {
            let copied = fs::copy(entry.path(), folder.join(&name)).map(drop);
            first = first.and(copied.with_context(|| entry.path().display().to_string()));
        }
    }
    first
}

/// The lab is root, and the person who reads it and cleans it up need not be.
fn give_to_owner_of(of: &Path, what: &Path) -> anyhow::Result<()> {
    let owner = fs::metadata(of)?;
    let give = |path: &Path| chown(path, Some(owner.uid()), Some(owner.gid()));
    give(what)?;
    for entry in fs::read_dir(what)? {
        give(&entry?.path())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[tokio::test]
    async fn what_there_is_is_saved_and_what_is_not_fails_nothing() {
        let work = tempfile::tempdir().unwrap();
        for file in ["agent.log", "agent-2.log", "agent.rec", "agent.rec.old", "kubeconfig"] {
            fs::write(work.path().join(file), file).unwrap();
        }
        fs::create_dir(work.path().join("agent.log.d")).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let gone = Http::new(listener.local_addr().unwrap());
        drop(listener);
        let failures = Failures::new(Some(work.path().join("kept")), work.path());
        let remains = Remains { agent: Some(&gone), work: Some(work.path()), kubelet: None };
        failures.save("chaos-rain", remains).await;
        failures.save("chaos-rain", Remains::default()).await;
        let kept = work.path().join("kept");
        assert_eq!(names(&kept), ["chaos-rain", "chaos-rain-2"]);
        let files = names(&kept.join("chaos-rain"));
        assert_eq!(files, ["agent-2.log", "agent.log", "agent.rec", "agent.rec.old"]);
        assert!(names(&kept.join("chaos-rain-2")).is_empty());
    }

    #[test]
    fn failures_of_one_name_are_bounded() {
        let work = tempfile::tempdir().unwrap();
        let failures = Failures::new(Some(work.path().into()), work.path());
        let made = (0..=MOST).filter(|_| failures.folder("x").is_ok()).count();
        assert_eq!(made, MOST as usize);
    }

    #[test]
    fn a_folder_that_is_named_is_used() {
        let given = Failures::new(Some("/kept".into()), Path::new("/work"));
        assert_eq!(given.0, Path::new("/kept"));
    }
}
