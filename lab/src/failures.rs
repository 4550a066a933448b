//! What a failure leaves: the agent's log, recording and API answers, the runtime's log and the driver's record, kept for
//! the person who has to find out what happened.

use crate::{agent::Http, containerd::target_directory, lab::Lab};
use anyhow::{Context as _, Result};
use std::{
    env, fs,
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::timeout;

/// The agent's answers that are kept, and their files.
const PAGES: [(&str, &str); 4] = [
    ("/api/v1/terminations", "terminations.json"),
    ("/api/v1/deaths", "deaths.json"),
    ("/api/v1/leaks", "leaks.json"),
    ("/metrics", "metrics.txt"),
];
/// Files of the work directory that are kept.
const FILES: [&str; 4] = ["agent.log", "agent.rec", "agent.rec.old", "containerd.log"];
/// How long the agent may take for one answer: what failed may be the agent.
const TO_ANSWER: Duration = Duration::from_secs(10);

/// Where failures are kept: in this directory, else in `failed` of the target directory that this program was built in.
pub fn directory(named: Option<PathBuf>) -> PathBuf {
    named.unwrap_or_else(|| {
        let program = env::current_exe().unwrap_or_default();
        target_directory(&program).unwrap_or(Path::new("target")).join("failed")
    })
}

/// Saves what there is of the failure in a folder of its name, and says on stderr where it is.
pub async fn save(to: &Path, name: &str, lab: &Lab, agent: Option<Http>) -> Option<PathBuf> {
    let folder = to.join(name);
    match try_to_save(to, &folder, lab, agent).await {
        Ok(()) => eprintln!("{name} failed; its logs are kept in {}", folder.display()),
        Err(error) => eprintln!("{name} failed; not all of its logs could be kept: {error:#}"),
    }
    folder.exists().then_some(folder)
}

async fn try_to_save(to: &Path, folder: &Path, lab: &Lab, agent: Option<Http>) -> Result<()> {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for file in FILES {
        let from = lab.work().join(file);
        if from.exists() {
            fs::copy(&from, folder.join(file)).with_context(|| from.display().to_string())?;
        }
    }
    let record = serde_json::to_vec_pretty(&lab.driver().record().all())?;
    fs::write(folder.join("driver.json"), record)?;
    if let Some(agent) = agent {
        for (page, file) in PAGES {
            let (_, body) = timeout(TO_ANSWER, agent.page(page)).await.context(page)??;
            fs::write(folder.join(file), body)?;
        }
    }
    // The lab is root, and the person who reads this need not be.
    let owner = fs::metadata(to.ancestors().find(|above| above.is_dir()).unwrap_or(to))?;
    let give = |path: &Path| chown(path, Some(owner.uid()), Some(owner.gid()));
    give(folder)?;
    fs::read_dir(folder)?.try_for_each(|entry| Ok(give(&entry?.path())?))
}
