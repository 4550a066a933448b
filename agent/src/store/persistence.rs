//! First-seen times of leaks, persisted in a small file of the state directory, so that they survive a restart of
//! the agent. The file of another boot is ignored, because its sandboxes no longer exist.

mod writer;

pub use writer::StateWriter;

use anyhow::Context;
use coroner_core::input::PersistedLeak;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};
use tracing::warn;

const FILE: &str = "leaks.json";
/// Written first, then renamed.
const NEW: &str = "leaks.new";
/// A file that could not be read.
const BAD: &str = "leaks.json.bad";
/// Version of the file's format; a file of another version is ignored.
const VERSION: u32 = 1;

#[derive(Clone, Debug)]
pub struct StateDir {
    dir: PathBuf,
    boot_id: String,
}

#[derive(Serialize, Deserialize)]
struct StateFile {
    coroner_state: u32,
    boot_id: String,
    leaks: Vec<PersistedLeak>,
}

impl StateDir {
    /// Creates the directory if missing, and returns the leaks that the last run on this boot persisted. The
    /// error has the remedy.
    pub fn open(dir: &Path, boot_id: Option<String>) -> anyhow::Result<(Self, Vec<PersistedLeak>)> {
        let context = || {
            format!(
                "cannot keep state in {}; set --state-dir to a writable directory, or remove the \
                 flag",
                dir.display()
            )
        };
        fs::create_dir_all(dir).with_context(context)?;
        let state = Self { dir: dir.to_owned(), boot_id: boot_id.unwrap_or_default() };
        let kept = state.recall().with_context(context)?;
        // A read-only directory is an error now rather than at the first leak.
        state.keep(kept.clone()).with_context(context)?;
        Ok((state, kept))
    }

    /// The leaks that the last run on this boot persisted. An invalid file, as a power cut may leave it, is
    /// renamed rather than deleted, because a user may have put it there.
    fn recall(&self) -> io::Result<Vec<PersistedLeak>> {
        let file = self.dir.join(FILE);
        let kept = match fs::read(&file) {
            Ok(text) => serde_json::from_slice::<StateFile>(&text).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => Err(error),
        };
        match kept {
            Ok(kept) => {
                let of_this_boot = !self.boot_id.is_empty() && kept.boot_id == self.boot_id;
                let known = kept.coroner_state == VERSION && of_this_boot;
                Ok(if known { kept.leaks } else { Vec::new() })
            }
            Err(error) => {
                let aside = self.dir.join(BAD);
                warn!(
                    %error, file = %file.display(), aside = %aside.display(),
                    "not a valid state file; renamed it, and first-seen times of earlier leaks \
                     are lost"
                );
                fs::rename(&file, &aside)?;
                Ok(Vec::new())
            }
        }
    }

    /// Replaces the file atomically, also with respect to a power cut.
    pub fn keep(&self, leaks: Vec<PersistedLeak>) -> io::Result<()> {
        let kept = StateFile { coroner_state: VERSION, boot_id: self.boot_id.clone(), leaks };
        let new = self.dir.join(NEW);
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(&kept)?)?;
        file.sync_all()?;
        fs::rename(&new, self.dir.join(FILE))?;
        File::open(&self.dir)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_core::{leak::LeakKey, time::BootTime};

    fn leak(id: &str) -> PersistedLeak {
        let key = LeakKey::Sandbox { id: id.into() };
        PersistedLeak { key, first_observed: BootTime(7) }
    }

    fn open(dir: &Path, boot: &str) -> (StateDir, Vec<PersistedLeak>) {
        StateDir::open(dir, Some(boot.into())).unwrap()
    }

    #[test]
    fn it_is_kept_for_this_boot_only() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("made");
        let (state, kept) = open(&dir, "b1");
        assert_eq!(kept, []);
        state.keep(vec![leak("s1"), leak("s2")]).unwrap();
        assert_eq!(open(&dir, "b1").1, [leak("s1"), leak("s2")]);
        assert_eq!(open(&dir, "b2").1, []);
        assert_eq!(open(&dir, "b1").1, [], "the other boot's run has cleared it");
        let (state, _) = StateDir::open(&dir, None).unwrap();
        state.keep(vec![leak("s1")]).unwrap();
        assert_eq!(StateDir::open(&dir, None).unwrap().1, [], "of no known boot");
    }

    #[test]
    fn what_cannot_be_read_is_set_aside_and_the_agent_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "not json"] {
            fs::write(dir.path().join(FILE), text).unwrap();
            let (state, kept) = open(dir.path(), "b");
            assert_eq!(kept, []);
            assert_eq!(fs::read_to_string(dir.path().join(BAD)).unwrap(), text);
            state.keep(vec![leak("s1")]).unwrap();
            assert_eq!(open(dir.path(), "b").1, [leak("s1")]);
        }
    }

    #[test]
    fn a_directory_that_cannot_be_written_to_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = format!("{:#}", StateDir::open(&file, Some("b".into())).unwrap_err());
        assert!(error.contains("--state-dir"), "{error}");
    }
}
