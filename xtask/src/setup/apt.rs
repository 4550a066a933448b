//! Debian's packages without root and without touching the machine: resolved and verified by apt,
//! unpacked by dpkg into a folder of the project. No package script runs, no service starts.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{host, progress::step, toolchain::output};

/// apt with its state in a folder of ours.
#[derive(Debug)]
pub(crate) struct Apt {
    home: PathBuf,
    /// Lists of our own instead of the machine's: they were missing or out of date, or the suite is another.
    own_lists: bool,
    /// A source list of our own: another suite than the machine's.
    sources: Option<PathBuf>,
}

/// Whether this machine is a Debian or a relative, with its tools.
pub(crate) fn available() -> bool {
    fs::read_to_string("/etc/os-release").is_ok_and(|text| is_debian_like(&text))
        && ["apt-get", "dpkg"].iter().all(|program| host::find_program(program).is_some())
}

/// Whether an os-release file is of Debian or a relative.
fn is_debian_like(os_release: &str) -> bool {
    os_release
        .lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(key, _)| ["ID", "ID_LIKE"].contains(key))
        .flat_map(|(_, value)| value.trim_matches('"').split_whitespace())
        .any(|id| id == "debian" || id == "ubuntu")
}

impl Apt {
    /// apt with the machine's sources, and its lists as long as they serve.
    pub(crate) fn of_machine(home: PathBuf) -> Self {
        let own_lists = home.join("lists/updated").is_file();
        Self { home, own_lists, sources: None }
    }

    /// apt with one suite of Debian's main archive, from the mirror that the machine uses.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub(crate) fn of_suite(home: PathBuf, suite: &str, keyring: &Path) -> Result<Self> {
        fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
        let sources = home.join("sources.list");
        let targets = output(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(REPO_URI)",
            "Created-By: Packages",
        ]));
        let mirror = targets.as_deref().and_then(debian_mirror);
        let mirror = mirror.unwrap_or("http://deb.debian.org/debian"); // Debian's public name
        let keyring = keyring.display();
        fs::write(&sources, format!("deb [signed-by={keyring}] {mirror} {suite} main\n"))?;
        fs::write(home.join("status"), "")?;
        Ok(Self { home, own_lists: true, sources: Some(sources) })
    }

    /// Unpacks `packages`, and what they depend on that the machine lacks, into `root`.
    ///
    /// # Errors
    /// When apt cannot resolve or fetch them, or a package does not unpack.
    pub(crate) fn unpack(&mut self, title: &str, packages: &[&str], root: &Path) -> Result<()> {
        self.fetch(title, |apt| {
            let mut command = apt.command("apt-get");
            command
                .args(["install", "--yes", "--download-only"])
                .args(["--no-install-recommends", "--reinstall"])
                .args(packages);
            Ok(command)
        })?;
        self.unpack_archives(root)
    }

    /// Unpacks one package alone.
    ///
    /// # Errors
    /// When there is none, or it cannot be fetched or unpacked.
    pub(crate) fn unpack_alone(&mut self, title: &str, package: &str, root: &Path) -> Result<()> {
        self.fetch(title, |apt| Ok(apt.download(package)))?;
        self.unpack_archives(root)
    }

    /// Unpacks the newest package whose name has this beginning and end, alone.
    ///
    /// # Errors
    /// When there is none, or it cannot be fetched or unpacked.
    pub(crate) fn unpack_newest(
        &mut self,
        title: &str,
        (prefix, suffix): (&str, &str),
        root: &Path,
    ) -> Result<()> {
        self.fetch(title, |apt| {
            let Some(name) = apt.newest(prefix, suffix) else {
                bail!("no package {prefix}*{suffix} in this suite");
            };
            Ok(apt.download(&name))
        })?;
        self.unpack_archives(root)
    }

    /// The name with this beginning and end, and a number after its beginning, that has the highest
    /// numbers.
    pub(crate) fn newest(&self, prefix: &str, suffix: &str) -> Option<String> {
        let names = output(self.command("apt-cache").args(["pkgnames", prefix]))?;
        newest(&names, (prefix, suffix)).map(str::to_owned)
    }

    /// Whether the sources have all of `packages`.
    pub(crate) fn has(&self, packages: &[&str]) -> bool {
        packages.iter().all(|package| {
            output(self.command("apt-cache").args(["policy", package]))
                .is_some_and(|text| has_candidate(&text))
        })
    }

    /// Fetches the lists anew, into our own folder.
    ///
    /// # Errors
    /// When the sources cannot be reached.
    pub(crate) fn update(&mut self) -> Result<()> {
        self.own_lists = true;
        self.make_folders()?;
        step("fetching the package lists", self.command("apt-get").arg("update"))?;
        fs::write(self.home.join("lists/updated"), "")?;
        Ok(())
    }

    /// Runs the command; when it fails, once more with fresh lists.
    fn fetch(&mut self, title: &str, command: impl Fn(&Self) -> Result<Command>) -> Result<()> {
        self.make_folders()?;
        if self.sources.is_some() && !self.home.join("lists/updated").is_file() {
            self.update()?;
        }
        let first = command(self).and_then(|mut command| step(title, &mut command));
        if first.is_err() {
            self.update()?;
            step(title, &mut command(self)?)?;
        }
        Ok(())
    }

    fn download(&self, package: &str) -> Command {
        let mut command = self.command("apt-get");
        command.args(["download", package]).current_dir(self.home.join("cache/archives"));
        command
    }

    fn make_folders(&self) -> Result<()> {
        for folder in ["cache/archives/partial", "lists/partial"] {
            let folder = self.home.join(folder);
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        Ok(())
    }

    fn unpack_archives(&self, root: &Path) -> Result<()> {
        let archives = self.home.join("cache/archives");
        for file in fs::read_dir(&archives)? {
            let path = file?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.extension().is_none_or(|extension| extension != "deb") {
                continue;
            }
            // The C library belongs to its loader, which is the machine's: another one beside it crashes.
            if !name.starts_with("libc6_") {
                let title = format!("unpacking {}", name.split('_').next().unwrap_or(&name));
                step(&title, Command::new("dpkg").arg("-x").arg(&path).arg(root))?;
            }
            fs::remove_file(&path)?;
        }
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
        option("Dir::Cache", self.home.join("cache").into());
        if self.own_lists {
            option("Dir::State::Lists", self.home.join("lists").into());
        }
        if let Some(sources) = &self.sources {
            option("Dir::Etc::SourceList", sources.into());
            option("Dir::Etc::SourceParts", "/dev/null".into());
            // What the machine has installed would count as a candidate, and can be no download.
            option("Dir::State::Status", self.home.join("status").into());
        }
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

/// Debian's main archive among the URIs that the machine is set up with.
fn debian_mirror(uris: &str) -> Option<&str> {
    uris.lines().map(|uri| uri.trim().trim_end_matches('/')).find(|uri| uri.ends_with("/debian"))
}

/// Whether `apt-cache policy` names a version that could be installed.
fn has_candidate(policy: &str) -> bool {
    policy
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Candidate:"))
        .any(|version| version.trim() != "(none)")
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
    fn relatives_of_debian_are_known_by_os_release() {
        assert!(is_debian_like("NAME=x\nID=debian\n"));
        assert!(is_debian_like("ID=pop\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian_like("ID=fedora\nNAME=\"debian lover\"\n"));
    }

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
    fn a_policy_without_candidate_is_no_package() {
        assert!(has_candidate("x:\n  Installed: (none)\n  Candidate: 1.2\n"));
        assert!(!has_candidate("x:\n  Installed: (none)\n  Candidate: (none)\n"));
        assert!(!has_candidate(""));
    }

    #[test]
    fn the_machine_s_mirror_is_used_for_other_suites() {
        let uris = "http://a.example/debian-security/\nhttp://a.example/debian/\n";
        assert_eq!(debian_mirror(uris), Some("http://a.example/debian"));
        assert_eq!(debian_mirror("http://a.example/ubuntu\n"), None);
    }
}
