//! What outlives the agent: since when the leaks were observed, in one small file of the state
//! directory. Of another boot it is of no use: its sandboxes are not the same.

use crate::domain::leak::Recollection;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const FILE: &str = "leaks.json";
/// Version of the file's format; of another one nothing is taken.
const VERSION: u32 = 1;

/// The state directory.
#[derive(Clone, Debug)]
pub struct State {
    file: PathBuf,
    boot_id: String,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    coroner_state: u32,
    boot_id: String,
    leaks: Vec<Recollection>,
}

impl State {
    /// Makes the directory if it is not there. The error says what to do.
    pub fn open(dir: &Path, boot_id: Option<String>) -> anyhow::Result<Self> {
        let told = || {
            format!(
                "cannot keep state in {}: give a directory that can be written to with \
                 --state-dir, or leave it out",
                dir.display()
            )
        };
        fs::create_dir_all(dir).with_context(told)?;
        let state = Self { file: dir.join(FILE), boot_id: boot_id.unwrap_or_default() };
        // A directory that cannot be written to is refused now, not at the first leak.
        let kept = state.recall()?;
        state.keep(kept).with_context(told)?;
        Ok(state)
    }

    /// What the last run on this boot had kept. An unreadable file is an error that says so: it is
    /// not for us to throw away what somebody may have put there.
    pub fn recall(&self) -> anyhow::Result<Vec<Recollection>> {
        let text = match fs::read(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", self.file.display()));
            }
        };
        let kept: Kept = serde_json::from_slice(&text).with_context(|| {
            format!("{} is not coroner's state: remove it", self.file.display())
        })?;
        let of_this_boot = !self.boot_id.is_empty() && kept.boot_id == self.boot_id;
        Ok(if kept.coroner_state == VERSION && of_this_boot { kept.leaks } else { Vec::new() })
    }

    /// Replaces the file, whole or not at all.
    pub fn keep(&self, leaks: Vec<Recollection>) -> io::Result<()> {
        let kept = Kept { coroner_state: VERSION, boot_id: self.boot_id.clone(), leaks };
        let new = self.file.with_extension("new");
        fs::write(&new, serde_json::to_vec(&kept)?)?;
        fs::rename(&new, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{leak::LeakKey, time::BootTime};

    fn leak(id: &str) -> Recollection {
        let key = LeakKey::Sandbox { id: id.into() };
        Recollection { key, observed: BootTime(7), since_start: true }
    }

    fn open(dir: &Path, boot: &str) -> State {
        State::open(dir, Some(boot.into())).unwrap()
    }

    #[test]
    fn it_is_kept_for_this_boot_only() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("made");
        let state = open(&dir, "b1");
        assert_eq!(state.recall().unwrap(), []);
        state.keep(vec![leak("s1"), leak("s2")]).unwrap();
        assert_eq!(open(&dir, "b1").recall().unwrap(), [leak("s1"), leak("s2")]);
        assert_eq!(open(&dir, "b2").recall().unwrap(), []);
        assert_eq!(open(&dir, "b1").recall().unwrap(), [], "the other boot's run has cleared it");
    }

    #[test]
    fn without_a_boot_id_nothing_is_believed() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path(), None).unwrap();
        state.keep(vec![leak("s1")]).unwrap();
        assert_eq!(state.recall().unwrap(), []);
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "not json").unwrap();
        let error = format!("{:#}", State::open(dir.path(), Some("b".into())).unwrap_err());
        assert!(error.contains("remove it"), "{error}");
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = format!("{:#}", State::open(&file, Some("b".into())).unwrap_err());
        assert!(error.contains("--state-dir"), "{error}");
    }
}
