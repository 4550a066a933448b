//! Programs of Debian's packages, each unpacked into a folder of its own below `target/tools`.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::{
    apt::Apt,
    lock::{LOCK_FILE, Locked, compare},
};
use crate::{host::Arch, workspace::Workspace};

/// Written last: what was unpacked, a line each as in the lock file.
const RECORD: &str = "installed";

/// Programs of Debian's packages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    /// The folder below `target/tools`.
    pub(crate) name: &'static str,
    pub(crate) suite: &'static str,
    /// The architecture of the packages, if it is not the machine's.
    pub(crate) foreign: Option<&'static Arch>,
    /// A `*` in a name stands for the highest numbers that there are.
    pub(crate) packages: &'static [&'static str],
    /// How the first package's version begins, after its epoch: what the tests rely on.
    pub(crate) line: &'static str,
    pub(crate) libraries: Libraries,
    /// Paths in the packages.
    pub(crate) programs: &'static [&'static str],
    /// Whether the programs are in `target/tools/bin`, not only in `bin` of the tool's folder.
    pub(crate) is_on_path: bool,
    /// What the programs are always called with; `{}` is the tool's folder.
    pub(crate) arguments: &'static [&'static str],
}

/// Which libraries a tool's programs use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Libraries {
    /// The machine's C library, or none.
    Machine,
    /// Those that the packages depend on, unpacked with them and named in `LD_LIBRARY_PATH`.
    Unpacked,
    /// The same, but named to the loader alone: these programs start programs of the machine, such as the C
    /// compiler, which need the machine's own libraries.
    UnpackedForItselfOnly,
}

impl Tool {
    /// The packages and the suite, for a person.
    pub(super) fn source(&self) -> String {
        format!("{} of Debian's {}", self.packages.join(", "), self.suite)
    }

    pub(crate) fn folder(&self, workspace: &Workspace) -> PathBuf {
        workspace.tools().join(self.name)
    }

    /// The first program, not the script that calls it.
    pub(crate) fn file(&self, workspace: &Workspace) -> PathBuf {
        self.folder(workspace).join(self.programs.first().copied().unwrap_or_default())
    }

    /// The script that calls a program.
    pub(crate) fn program(&self, workspace: &Workspace, name: &str) -> PathBuf {
        self.bin(workspace).join(name)
    }

    fn bin(&self, workspace: &Workspace) -> PathBuf {
        let folder = if self.is_on_path { workspace.tools() } else { self.folder(workspace) };
        folder.join("bin")
    }

    /// Whether the tool is unpacked, and its scripts name this checkout, which may have been moved.
    pub(crate) fn is_installed(&self, workspace: &Workspace) -> bool {
        let is_current = |path: &str| {
            let script = fs::read_to_string(self.bin(workspace).join(name(path)));
            script.is_ok_and(|text| self.script(workspace, path).is_ok_and(|wanted| text == wanted))
        };
        self.is_unpacked(workspace) && self.programs.iter().all(|path| is_current(path))
    }

    fn is_unpacked(&self, workspace: &Workspace) -> bool {
        let folder = self.folder(workspace);
        let record = fs::read_to_string(folder.join(RECORD)).unwrap_or_default();
        let lines: Vec<Locked> = record.lines().filter_map(Locked::parse).collect();
        let is_of_suite = |line: &Locked| line.suite == self.suite;
        let is_there =
            |at| lines.iter().any(|line| self.position(line) == Some(at) && is_of_suite(line));
        (0..self.packages.len()).all(is_there)
            && lines.first().is_some_and(|first| self.is_of_line(&first.version))
            && self.programs.iter().all(|path| folder.join(path).is_file())
    }

    /// Which of the tool's packages it is; `None`: a library.
    fn position(&self, package: &Locked) -> Option<usize> {
        let name = package.package.split(':').next().unwrap_or_default();
        let is_it = |wanted: &str| match wanted.split_once('*') {
            Some((start, end)) => name.starts_with(start) && name.ends_with(end),
            None => name == wanted,
        };
        self.packages.iter().position(|wanted| is_it(wanted))
    }

    /// Debian's `1:7.2+dfsg-7` without its epoch begins with the line.
    fn is_of_line(&self, version: &str) -> bool {
        version.split_once(':').map_or(version, |(_, rest)| rest).starts_with(self.line)
    }

    /// Fetches and unpacks the tool, whole or not at all.
    ///
    /// # Errors
    /// The tool cannot be fetched, is of another line, or is not the archive that the lock file names.
    pub(crate) fn install(&self, workspace: &Workspace) -> Result<()> {
        if !self.is_unpacked(workspace) {
            self.unpack(workspace)?;
        }
        let bin = self.bin(workspace);
        fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
        for path in self.programs {
            let script = bin.join(name(path));
            fs::write(&script, self.script(workspace, path)?)
                .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)))
                .with_context(|| format!("cannot write {}", script.display()))?;
        }
        Ok(())
    }

    fn unpack(&self, workspace: &Workspace) -> Result<()> {
        let (folder, lock) = (self.folder(workspace), workspace.root().join(LOCK_FILE));
        let lock = fs::read_to_string(&lock).with_context(|| format!("read {}", lock.display()))?;
        let partial = workspace.tools().join(format!("{}.partial", self.name));
        for old in [&partial, &folder].into_iter().filter(|old| old.exists()) {
            fs::remove_dir_all(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
        let dependencies = self.libraries != Libraries::Machine;
        let apt = Apt::of_suite(workspace, self.suite, self.foreign)?;
        let mut fetched = apt.fetch(self.packages, dependencies, &partial)?;
        // `is_unpacked` looks at the version of the first.
        fetched.sort_by_key(|one| self.position(one).unwrap_or(usize::MAX));
        let first = fetched.first().with_context(|| format!("apt fetched no {}", self.name))?;
        if !self.is_of_line(&first.version) {
            let Self { suite, line, .. } = self;
            bail!(
                "Debian's {suite} has {first} now, coroner needs {line}*: change xtask/src/setup/table.rs"
            );
        }
        // The lock file has the archives of amd64.
        if Arch::host()?.debian == "amd64" {
            let own = fetched.iter().filter(|one| self.position(one).is_some());
            own.into_iter().try_for_each(|one| compare(&lock, one))?;
        }
        let record: Vec<_> = fetched.iter().map(|one| format!("{one}\n")).collect();
        fs::write(partial.join(RECORD), record.concat())?;
        fs::rename(&partial, &folder).with_context(|| format!("cannot make {}", folder.display()))
    }

    /// What calls a program with its libraries and arguments.
    fn script(&self, workspace: &Workspace, path: &str) -> Result<String> {
        let folder = self.folder(workspace);
        let at = folder.display().to_string();
        let Arch { multiarch, loader, .. } = Arch::host()?;
        // The last two: where packages keep libraries that only their own programs load.
        let folders = ["usr/lib/{}", "lib/{}", "usr/lib/{}/pulseaudio", "usr/lib/{}/systemd"]
            .map(|folder| format!("{at}/{}", folder.replace("{}", multiarch)));
        let folders = format!("'{}'${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}", folders.join(":"));
        let exec = match self.libraries {
            Libraries::Machine => "exec".to_owned(),
            Libraries::Unpacked => format!("LD_LIBRARY_PATH={folders} exec"),
            Libraries::UnpackedForItselfOnly => format!("exec {loader} --library-path {folders}"),
        };
        let arguments = self.arguments.iter().map(|one| format!("'{}' ", one.replace("{}", &at)));
        let program = folder.join(path);
        let arguments: String = arguments.collect();
        Ok(format!("#!/bin/sh\n{exec} '{}' {arguments}\"$@\"\n", program.display()))
    }
}

fn name(path: &str) -> &str {
    Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path)
}
