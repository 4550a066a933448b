//! Packages of one Debian suite, without root and without touching the machine: resolved and verified by
//! apt, unpacked by dpkg into a folder of the project. No package script runs, no service starts.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::lock::{Locked, sha256};
use crate::{
    host::{self, Arch},
    progress::step,
    toolchain::output,
    workspace::Workspace,
};

/// Debian's public mirror, where the machine names none.
const MIRROR: &str = "http://deb.debian.org/debian";
/// Suites whose security updates are a suite of their own that we use: the compiler for BPF comes from there.
const WITH_SECURITY: [&str; 1] = ["bookworm"];

/// What apt takes for installed: what every machine with a C compiler has, and what only package scripts
/// call, which never run here. The machine's own list is not used: equal machines would get other tools.
const INSTALLED: &str = "\
Package: coroner-machine
Status: install ok installed
Architecture: all
Version: 1
Maintainer: coroner
Provides: adduser (= 99), base-files (= 99), binutils (= 99), c-compiler, debconf (= 99), debconf-2.0,
 debianutils (= 99), dpkg (= 99), gcc (= 99:99), init-system-helpers (= 99), libc-dev, libc6 (= 99),
 libc6-dev (= 99), libjs-jquery (= 99), lsb-base (= 99), media-types (= 99), passwd (= 99), perl (= 99),
 perl-base (= 99), sensible-utils (= 99), sysvinit-utils (= 99), tzdata (= 99), ucf (= 99)
Description: what is taken from the machine
";

/// A package that was fetched.
#[derive(Debug)]
pub(crate) struct Archive {
    path: PathBuf,
    /// What it is, for the lock file.
    pub(crate) locked: Locked,
}

/// apt with its state, and mostly its sources, in a folder of ours.
#[derive(Debug)]
pub(crate) struct Apt {
    home: PathBuf,
    /// One of Debian's; `None`: whatever the machine's own sources have.
    suite: Option<&'static str>,
    /// Of another architecture than the machine's.
    foreign: Option<&'static Arch>,
}

/// Whether this machine has Debian's tools.
pub(crate) fn available() -> bool {
    ["apt-get", "apt-cache", "dpkg"].iter().all(|program| host::find_program(program).is_some())
}

impl Apt {
    /// apt with one suite of Debian's archive, from the mirror that the machine uses.
    ///
    /// # Errors
    /// When there is no apt, Debian's public keys cannot be had, or the folder cannot be written.
    pub(crate) fn of_suite(workspace: &Workspace, suite: &'static str) -> Result<Self> {
        Self::of_architecture(workspace, suite, None)
    }

    /// The same with the packages of another architecture.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn of_architecture(
        workspace: &Workspace,
        suite: &'static str,
        foreign: Option<&'static Arch>,
    ) -> Result<Self> {
        if !available() {
            bail!("packages of Debian's {suite} take apt-get and dpkg, which are not here");
        }
        let apt = Self::at(workspace, Some(suite), foreign)?;
        let signed = format!("[signed-by={}]", DEBIAN_KEYS.file(workspace)?.display());
        let mut sources = format!("deb {signed} {} {suite} main\n", debian_mirror(""));
        if WITH_SECURITY.contains(&suite) {
            let mirror = debian_mirror("-security");
            sources.push_str(&format!("deb {signed} {mirror} {suite}-security main\n"));
        }
        fs::write(apt.home.join("sources.list"), sources)?;
        Ok(apt)
    }

    /// apt with the sources and keys that the machine is set up with.
    fn of_machine(workspace: &Workspace) -> Result<Self> {
        Self::at(workspace, None, None)
    }

    fn at(
        workspace: &Workspace,
        suite: Option<&'static str>,
        foreign: Option<&'static Arch>,
    ) -> Result<Self> {
        let suffix = foreign.map(|arch| format!("-{}", arch.debian)).unwrap_or_default();
        let name = format!("{}{suffix}", suite.unwrap_or("machine"));
        let home = workspace.tools().join("apt").join(name);
        for folder in ["cache/archives/partial", "lists/partial"] {
            fs::create_dir_all(home.join(folder))
                .with_context(|| format!("cannot make {}", home.display()))?;
        }
        fs::write(home.join("status"), INSTALLED)?;
        Ok(Self { home, suite, foreign })
    }

    /// Where its packages are from, for a person.
    fn source(&self) -> String {
        self.suite.map_or("this machine's sources".to_owned(), |suite| format!("Debian's {suite}"))
    }

    /// Fetches `packages`; with `dependencies`, also what they depend on.
    ///
    /// # Errors
    /// When the suite has no such package, or it cannot be fetched.
    pub(crate) fn fetch(
        &self,
        title: &str,
        packages: &[&str],
        dependencies: bool,
    ) -> Result<Vec<Archive>> {
        let archives = self.home.join("cache/archives");
        // What an interrupted run left is not for this one.
        let debs =
            || fs::read_dir(&archives).into_iter().flatten().flatten().map(|file| file.path());
        let is_deb = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
        for left in debs().filter(is_deb) {
            fs::remove_file(&left).with_context(|| format!("cannot remove {}", left.display()))?;
        }
        self.with_fresh_lists(title, |apt| {
            let mut command = apt.command("apt-get");
            if dependencies {
                command.args(["install", "--yes", "--download-only", "--no-install-recommends"]);
            } else {
                command.arg("download").current_dir(&archives);
            }
            command.args(packages);
            Ok(command)
        })?;
        debs().filter(is_deb).map(|path| self.archive(path)).collect()
    }

    /// The name with this beginning and end, and a number after its beginning, that has the highest
    /// numbers.
    ///
    /// # Errors
    /// When there is none, or the package lists cannot be fetched.
    pub(crate) fn newest(&self, prefix: &str, suffix: &str) -> Result<String> {
        let find = || {
            let names = output(self.command("apt-cache").args(["pkgnames", prefix]))?;
            newest(&names, (prefix, suffix)).map(str::to_owned)
        };
        if let Some(name) = find() {
            return Ok(name);
        }
        self.update()?;
        find().with_context(|| format!("no package {prefix}*{suffix} in {}", self.source()))
    }

    fn archive(&self, path: PathBuf) -> Result<Archive> {
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let fields = output(Command::new("dpkg-deb").arg("--field").arg(&path).args([
            "Package",
            "Version",
            "Architecture",
        ]));
        let field = |name: &str| {
            let lines = fields.as_deref().unwrap_or_default().lines();
            let value = lines.filter_map(|line| line.strip_prefix(name)).next();
            value.map(|value| value.trim().to_owned())
        };
        let (Some(package), Some(version)) = (field("Package:"), field("Version:")) else {
            bail!("{} does not say which package it is", path.display());
        };
        // As apt itself names what is not of the machine's architecture.
        let foreign =
            self.foreign.filter(|arch| field("Architecture:").as_deref() == Some(arch.debian));
        let package = foreign.map_or(package.clone(), |arch| format!("{package}:{}", arch.debian));
        let suite = self.suite.unwrap_or("machine").to_owned();
        Ok(Archive { path, locked: Locked { suite, package, version, sha256: sha256(&bytes) } })
    }

    /// Runs the command; when it fails, once more with fresh lists.
    fn with_fresh_lists(
        &self,
        title: &str,
        command: impl Fn(&Self) -> Result<Command>,
    ) -> Result<()> {
        if !self.home.join("lists/updated").is_file() {
            self.update()?;
        }
        if command(self).and_then(|mut command| step(title, &mut command)).is_err() {
            self.update()?;
            step(title, &mut command(self)?)?;
        }
        Ok(())
    }

    fn update(&self) -> Result<()> {
        let title = format!("fetching the package lists of {}", self.source());
        let mut command = self.command("apt-get");
        if self.suite.is_some() {
            // Otherwise apt warns, succeeds, and then knows no package. The machine's own sources may have
            // one that is broken and not needed.
            command.args(["-o", "APT::Update::Error-Mode=any"]);
        }
        step(&title, command.arg("update"))?;
        fs::write(self.home.join("lists/updated"), "")?;
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let mut option = |key: &str, value: OsString| {
            let mut text = OsString::from(format!("{key}="));
            text.push(value);
            command.arg("-o").arg(text);
        };
        option("Debug::NoLocking", "true".into()); // nothing of the machine's is written
        option("APT::Sandbox::User", "".into()); // apt's own user cannot write into our folder
        option("APT::Update::Post-Invoke", "".into());
        option("APT::Update::Post-Invoke-Success", "".into());
        option("Acquire::Languages", "none".into());
        option("Acquire::Retries", "3".into());
        // sid's lists expire after a week, and mirrors lag; the lock file says which versions will do.
        option("Acquire::Check-Valid-Until", "false".into());
        option("Dir::Cache", self.home.join("cache").into());
        option("Dir::State::Lists", self.home.join("lists").into());
        option("Dir::State::Status", self.home.join("status").into());
        if let Some(Arch { debian, .. }) = self.foreign {
            option("APT::Architecture", (*debian).into());
            option("APT::Architectures", (*debian).into());
        }
        if self.suite.is_some() {
            option("Dir::Etc::SourceList", self.home.join("sources.list").into());
            option("Dir::Etc::SourceParts", "/dev/null".into());
        }
        option("Dir::Etc::Preferences", "/dev/null".into());
        option("Dir::Etc::PreferencesParts", "/dev/null".into());
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

impl Archive {
    /// Unpacks it into `root`, and removes it.
    ///
    /// # Errors
    /// When it does not unpack.
    pub(crate) fn unpack(&self, root: &Path) -> Result<()> {
        let title = format!("unpacking {}", self.locked.package);
        step(&title, Command::new("dpkg-deb").arg("--extract").arg(&self.path).arg(root))?;
        fs::remove_file(&self.path)
            .with_context(|| format!("cannot remove {}", self.path.display()))
    }
}

/// The public keys of a distribution's archive, which both Debian and Ubuntu have of each other.
#[derive(Debug)]
pub(crate) struct Keys {
    /// The package that has them.
    package: &'static str,
    /// Where in it, and where the machine has them if it has that package.
    file: &'static str,
    /// A Debian suite to take the package from; `None`: the machine's own sources.
    suite: Option<&'static str>,
}

/// Debian's. Where they are missing, the machine is no Debian, and its own archive is trusted already.
pub(crate) static DEBIAN_KEYS: Keys = Keys {
    package: "debian-archive-keyring",
    file: "usr/share/keyrings/debian-archive-keyring.gpg",
    suite: None,
};

/// Ubuntu's.
pub(crate) static UBUNTU_KEYS: Keys = Keys {
    package: "ubuntu-keyring",
    file: "usr/share/keyrings/ubuntu-archive-keyring.gpg",
    suite: Some("trixie"),
};

impl Keys {
    /// The file with them: the machine's own, or one that is fetched the first time.
    ///
    /// # Errors
    /// When their package cannot be fetched.
    pub(crate) fn file(&self, workspace: &Workspace) -> Result<PathBuf> {
        let Self { package, file, suite } = *self;
        let root = workspace.tools().join(package);
        for keys in [Path::new("/").join(file), root.join(file)] {
            if keys.is_file() {
                return Ok(keys);
            }
        }
        let apt = match suite {
            Some(suite) => Apt::of_suite(workspace, suite)?,
            None => Apt::of_machine(workspace)?,
        };
        let archives = apt
            .fetch(&format!("fetching {package}"), &[package], false)
            .with_context(|| format!("please install the package {package}"))?;
        fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
        archives.iter().try_for_each(|archive| archive.unpack(&root))?;
        let keys = root.join(file);
        if !keys.is_file() {
            bail!("{package} of {} has no {file}", apt.source());
        }
        Ok(keys)
    }
}

/// The mirror of Debian's archive that the machine uses, or the public one; `part`: `-security`, or nothing.
pub(crate) fn debian_mirror(part: &str) -> String {
    let format = ["indextargets", "--format", "$(REPO_URI)", "Origin: Debian"];
    let uris = output(Command::new("apt-get").args(format));
    let uris = uris.unwrap_or_default();
    let found = mirror(&uris, &format!("/debian{part}")).map(str::to_owned);
    found.unwrap_or_else(|| format!("{MIRROR}{part}"))
}

/// The archive whose path ends so among the URIs that the machine is set up with.
fn mirror<'a>(uris: &'a str, end: &str) -> Option<&'a str> {
    uris.lines().map(|uri| uri.trim().trim_end_matches('/')).find(|uri| uri.ends_with(end))
}

/// The name with the highest numbers of those that begin with `prefix` and a number, and end in `suffix`.
fn newest<'a>(names: &'a str, (prefix, suffix): (&str, &str)) -> Option<&'a str> {
    names
        .lines()
        .map(str::trim)
        .filter(|name| name.ends_with(suffix))
        .filter(|name| {
            let rest = name.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
        })
        .max_by_key(|name| numbers(name))
}

fn numbers(name: &str) -> Vec<u64> {
    name.split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_chosen_by_number_not_by_letter() {
        let names = "linux-image-6.1.0-9-cloud-amd64\nlinux-image-6.1.0-48-cloud-amd64\n\
                     linux-image-6.1.0-50-amd64\nlinux-image-6.1.0-49-cloud-amd64-unsigned\n\
                     linux-image-unsigned-6.1.0-51-cloud-amd64\n";
        let of = |names| newest(names, ("linux-image-", "-cloud-amd64"));
        assert_eq!(of(names), Some("linux-image-6.1.0-48-cloud-amd64"));
        assert_eq!(of("other\n"), None);
    }

    #[test]
    fn the_machine_s_mirror_is_used_for_other_suites() {
        let uris = "http://a.example/debian-security/\nhttp://a.example/debian/\n";
        assert_eq!(mirror(uris, "/debian"), Some("http://a.example/debian"));
        assert_eq!(mirror(uris, "/debian-security"), Some("http://a.example/debian-security"));
        assert_eq!(mirror("http://a.example/ubuntu\n", "/debian"), None);
    }
}
