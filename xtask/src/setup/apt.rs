//! Packages of one Debian suite, without root and without a change to the machine: resolved and verified by apt,
//! which has its state and its sources in a folder of the project. No package script runs, and no service starts.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::lock::Locked;
use crate::{
    host::Arch,
    steps::{note, output, step},
    workspace::Workspace,
};

/// Debian's public mirror, for a machine whose own sources name none.
const MIRROR: &str = "http://deb.debian.org/debian";

/// What apt takes for installed: what every machine with a C compiler has, and what only package scripts call,
/// which never run here. The machine's own list would give equal machines different tools.
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

/// apt with a state of its own.
pub(crate) struct Apt {
    home: PathBuf,
    /// One of Debian's; `None`: the machine's own sources.
    suite: Option<&'static str>,
    /// Of another architecture than the machine's.
    foreign: Option<&'static Arch>,
}

impl Apt {
    /// apt with one suite of Debian's archive, from the mirror that the machine uses.
    ///
    /// # Errors
    /// Debian's public keys are not available, or the folder cannot be written.
    pub(crate) fn of_suite(
        workspace: &Workspace,
        suite: &'static str,
        foreign: Option<&'static Arch>,
    ) -> Result<Self> {
        let name = [suite, foreign.map_or("", |arch| arch.debian)].join("");
        let apt = Self::at(workspace, &name, Some(suite), foreign)?;
        let keys = keyring(workspace)?;
        let line = |part: &str| {
            let mirror = debian_mirror(part);
            format!("deb [signed-by={}] {mirror} {suite}{part} main\n", keys.display())
        };
        // Its security updates have the compiler for BPF.
        let security = if suite == "bookworm" { line("-security") } else { String::new() };
        fs::write(apt.home.join("sources.list"), line("") + &security)?;
        Ok(apt)
    }

    fn at(
        workspace: &Workspace,
        name: &str,
        suite: Option<&'static str>,
        foreign: Option<&'static Arch>,
    ) -> Result<Self> {
        let home = workspace.tools().join("apt").join(name);
        for folder in ["cache/archives/partial", "lists/partial"] {
            let folder = home.join(folder);
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        fs::write(home.join("status"), INSTALLED)?;
        Ok(Self { home, suite, foreign })
    }

    /// Fetches `packages` and unpacks them into `root`; with `dependencies`, also what they depend on. Returns what
    /// they are.
    ///
    /// # Errors
    /// The suite has no such package, or it cannot be fetched or unpacked.
    pub(super) fn fetch(
        &self,
        packages: &[&str],
        dependencies: bool,
        root: &Path,
    ) -> Result<Vec<Locked>> {
        let archives = self.home.join("cache/archives");
        let lock = fs::File::create(self.home.join("lock"))?;
        lock.lock()?;
        // What an interrupted run left is not part of this one.
        for left in debs(&archives)? {
            fs::remove_file(left)?;
        }
        let fetch = || {
            let packages =
                packages.iter().map(|name| self.newest(name)).collect::<Result<Vec<_>>>()?;
            let mut command = self.command("apt-get");
            match dependencies {
                true => {
                    command.args(["install", "--yes", "--download-only", "--no-install-recommends"])
                }
                false => command.arg("download").current_dir(&archives),
            };
            step(&format!("fetching {}", packages.join(", ")), command.args(packages))
        };
        if !self.home.join("lists/updated").is_file() {
            self.update()?;
            fetch()?;
        } else if let Err(error) = fetch() {
            note(&format!("{error:#}\ntrying again with fresh package lists"));
            self.update()?;
            fetch()?;
        }
        debs(&archives)?.iter().map(|archive| self.unpack(archive, root)).collect()
    }

    /// Unpacks an archive and removes it.
    fn unpack(&self, archive: &Path, root: &Path) -> Result<Locked> {
        let bytes = fs::read(archive)?;
        let mut show = Command::new("dpkg-deb");
        show.args(["--show", "--showformat=${Package} ${Version} ${Architecture}"]).arg(archive);
        let fields = output(&mut show).unwrap_or_default();
        let [package, version, arch] = fields.split(' ').collect::<Vec<_>>()[..] else {
            bail!("{} does not say which package it is", archive.display());
        };
        // As apt itself names what is not of the machine's architecture.
        let is_foreign = self.foreign.is_some_and(|foreign| foreign.debian == arch);
        let package = if is_foreign { format!("{package}:{arch}") } else { package.to_owned() };
        fs::create_dir_all(root)?;
        let unpacked = Command::new("dpkg-deb").arg("--extract").arg(archive).arg(root).status()?;
        ensure!(unpacked.success(), "dpkg-deb cannot unpack {}", archive.display());
        fs::remove_file(archive)?;
        Ok(Locked::of_archive(self.suite.unwrap_or("machine"), &package, version, &bytes))
    }

    /// A package's name whose `*`, if it has one, stands for the highest numbers that there are.
    fn newest(&self, name: &str) -> Result<String> {
        let Some((prefix, suffix)) = name.split_once('*') else { return Ok(name.to_owned()) };
        let names =
            output(self.command("apt-cache").args(["pkgnames", prefix])).unwrap_or_default();
        let numbers = |name: &&str| -> Vec<u64> {
            let words = name.split(|letter: char| !letter.is_ascii_digit());
            words.filter_map(|digits| digits.parse().ok()).collect()
        };
        let rest = |name: &&str| name.strip_prefix(prefix)?.strip_suffix(suffix).map(str::to_owned);
        let is_version = |rest: String| rest.starts_with(|letter: char| letter.is_ascii_digit());
        let found =
            names.lines().filter(|name| rest(name).is_some_and(is_version)).max_by_key(numbers);
        found.map(str::to_owned).with_context(|| format!("there is no package {name}"))
    }

    fn update(&self) -> Result<()> {
        let mut command = self.command("apt-get");
        if self.suite.is_some() {
            // Otherwise apt warns, succeeds, and knows no package. Of the machine's own sources one that is not
            // needed may be broken.
            command.args(["-o", "APT::Update::Error-Mode=any"]);
        }
        let of = self.suite.unwrap_or("the machine's sources");
        step(&format!("fetching the package lists of {of}"), command.arg("update"))?;
        Ok(fs::write(self.home.join("lists/updated"), "")?)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let mut option = |key: &str, value: OsString| {
            let mut text = OsString::from(format!("{key}="));
            text.push(value);
            command.arg("-o").arg(text);
        };
        option("Debug::NoLocking", "true".into()); // nothing of the machine's is written
        option("APT::Sandbox::User", "".into()); // apt's own user cannot write into the project's folder
        option("APT::Update::Post-Invoke", "".into());
        option("APT::Update::Post-Invoke-Success", "".into());
        option("Acquire::Languages", "none".into());
        option("Acquire::Retries", "3".into());
        // sid's lists expire after a week, and mirrors lag; the lock file says which versions were tested.
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

fn debs(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(folder)?.flatten().map(|file| file.path());
    Ok(files.filter(|path| path.extension().is_some_and(|end| end == "deb")).collect())
}

/// The public keys of Debian's archive: the machine's own, or of the package that has them, from the machine's sources.
/// Without them the machine is no Debian, and its own archive is trusted already.
///
/// # Errors
/// The package cannot be fetched.
pub(crate) fn keyring(workspace: &Workspace) -> Result<PathBuf> {
    const PACKAGE: &str = "debian-archive-keyring";
    const FILE: &str = "usr/share/keyrings/debian-archive-keyring.gpg";
    let own = workspace.tools().join(PACKAGE);
    let [machine, fetched] = [Path::new("/").join(FILE), own.join(FILE)];
    if let Some(keys) = [&machine, &fetched].into_iter().find(|keys| keys.is_file()) {
        return Ok(keys.clone());
    }
    let why = || format!("please install the package {PACKAGE}");
    let apt = Apt::at(workspace, "machine", None, None)?;
    apt.fetch(&[PACKAGE], false, &own).with_context(why)?;
    fetched.is_file().then_some(fetched).with_context(why)
}

/// The mirror of Debian's archive that the machine uses, or the public one; `part`: `-security`, or nothing.
pub(crate) fn debian_mirror(part: &str) -> String {
    let format = ["indextargets", "--format", "$(REPO_URI)", "Origin: Debian"];
    let uris = output(Command::new("apt-get").args(format)).unwrap_or_default();
    let mut uris = uris.lines().map(|uri| uri.trim().trim_end_matches('/'));
    let found = uris.find(|uri| uri.ends_with(&format!("/debian{part}")));
    found.map_or_else(|| format!("{MIRROR}{part}"), str::to_owned)
}
