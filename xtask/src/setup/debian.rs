//! Tools that are packages of one of Debian's suites, whatever the machine's own distribution is: each
//! unpacked into a folder of its own below `target/tools`.

use std::{
    fmt, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{
    apt::Apt,
    lock::{Locked, Verdict, look_up},
};
use crate::{
    host::{self, AARCH64, Arch},
    progress::note,
    toolchain::output,
    workspace::Workspace,
};

/// Written last: what was unpacked, a line each as in the lock file.
const RECORD: &str = "installed";
/// The versions that coroner was tested with; below the workspace.
pub(crate) const LOCK_FILE: &str = "xtask/tools.lock";

/// Programs of Debian's packages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    /// Its folder below `target/tools`, and what a person calls it.
    pub(crate) name: &'static str,
    /// The suites to take it from, the first that has it. Stable ones where they have it.
    suites: &'static [&'static str],
    /// The architecture whose packages these are, where it is not the machine's.
    foreign: Option<&'static Arch>,
    /// Its packages; the first one's version must begin with `line`.
    packages: &'static [&'static str],
    /// How the version of the first package begins, after its epoch: what the tests rely on.
    line: &'static str,
    /// Which libraries its programs use.
    libraries: Libraries,
    /// Its programs: paths in the packages.
    programs: &'static [&'static str],
    /// Where they are called from.
    called: Called,
    /// What its programs are always called with; `{}` is its folder.
    arguments: &'static [&'static str],
    /// What the first program is called with to print its version.
    asked_version: &'static [&'static str],
}

/// Which libraries a tool's programs use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Libraries {
    /// The machine's C library, or none.
    Machine,
    /// Those that their packages depend on, unpacked with them and named in `LD_LIBRARY_PATH`.
    Unpacked,
    /// The same, but named to the loader alone: these programs start programs of the machine, such as the C
    /// compiler, which need the machine's own libraries.
    UnpackedForItselfOnly,
}

/// Where a tool's programs are called from.
#[derive(Debug, PartialEq, Eq)]
enum Called {
    /// By name: they are in `target/tools/bin`.
    ByName,
    /// By path, from `bin` in the tool's folder: they must never stand in for the machine's of that name.
    ByPath,
}

const ALONE: Tool = Tool {
    name: "",
    suites: &[],
    foreign: None,
    packages: &[],
    line: "",
    libraries: Libraries::Machine,
    programs: &[],
    called: Called::ByName,
    arguments: &[],
    asked_version: &["--version"],
};
const WITH_LIBRARIES: Tool =
    Tool { suites: &["bookworm"], libraries: Libraries::Unpacked, ..ALONE };

/// A compiler with `core` for BPF, and its clippy. clippy-driver knows that it is called in rustc's place
/// by the name `rustc` of its first argument, so the compiler must have that name.
pub(crate) static BPF_RUST: Tool = Tool {
    name: "bpf-rust",
    packages: &["rustc-web", "libstd-rust-web-dev-bpf", "rust-web-clippy"],
    line: "1.96.", // of LLVM 22, as rustup's compiler, whose LLVM bpf-linker loads
    programs: &["usr/bin/rustc", "usr/bin/clippy-driver"],
    called: Called::ByPath,
    libraries: Libraries::UnpackedForItselfOnly,
    ..WITH_LIBRARIES
};

const CONTAINERD: Tool = Tool {
    packages: &["containerd"],
    programs: &["usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr"],
    called: Called::ByPath,
    ..ALONE
};

/// From the oldest that has the CRI's v1: 1.6 has no container events, those of 1.7 go to one subscriber,
/// and 2.x has other plugins and another configuration. The first is what the lab runs by default.
pub(crate) static CONTAINERDS: [Tool; 3] = [
    Tool {
        name: "containerd-1.6",
        suites: &["bookworm"],
        line: "1.6.",
        called: Called::ByName,
        ..CONTAINERD
    },
    Tool { name: "containerd-1.7", suites: &["trixie"], line: "1.7.", ..CONTAINERD },
    Tool { name: "containerd-2", suites: &["sid", "forky"], line: "2.", ..CONTAINERD },
];

/// The lab's OCI runtime. A later one wants a newer C library than Debian 12 has.
pub(crate) static RUNC: Tool =
    Tool { name: "runc", packages: &["runc"], programs: &["usr/sbin/runc"], ..WITH_LIBRARIES };

/// The other OCI runtime, which CRI-O starts by default.
pub(crate) static CRUN: Tool =
    Tool { name: "crun", packages: &["crun"], programs: &["usr/bin/crun"], ..WITH_LIBRARIES };

/// What makes cgroups on most clusters.
pub(crate) static SYSTEMD: Tool = Tool {
    name: "systemd",
    packages: &["systemd"],
    programs: &["lib/systemd/systemd", "bin/systemctl"],
    ..WITH_LIBRARIES
};

/// The machine for foreign kernels. It looks for its firmware where its package would have put it.
pub(crate) static QEMU: Tool = Tool {
    name: "qemu",
    packages: &["qemu-system-x86", "qemu-system-arm"],
    programs: &["usr/bin/qemu-system-x86_64", "usr/bin/qemu-system-aarch64"],
    arguments: &[
        "-L",
        "{}/usr/share/qemu",
        "-L",
        "{}/usr/share/seabios",
        "-L",
        "{}/usr/lib/ipxe/qemu",
    ],
    ..WITH_LIBRARIES
};

/// The user space of that machine.
pub(crate) static BUSYBOX: Tool = Tool {
    name: "busybox",
    suites: &["bookworm"],
    packages: &["busybox-static"],
    programs: &["bin/busybox"],
    ..ALONE
};

/// The user space of a machine for arm64. Of a suite that has it in usr/bin: bin is where the script that calls it goes.
pub(crate) static BUSYBOX_ARM64: Tool = Tool {
    name: "busybox-arm64",
    suites: &["trixie"],
    foreign: Some(&AARCH64),
    packages: &["busybox-static:arm64"],
    programs: &["usr/bin/busybox"],
    called: Called::ByPath,
    ..ALONE
};

/// Compiles and links for arm64: some dependencies are of C and assembly.
pub(crate) static GCC_ARM64: Tool = Tool {
    name: "gcc-arm64",
    packages: &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
    programs: &[
        "usr/bin/aarch64-linux-gnu-gcc",
        "usr/bin/aarch64-linux-gnu-ar",
        "usr/bin/aarch64-linux-gnu-strip",
    ],
    ..WITH_LIBRARIES
};

/// Runs programs for arm64.
pub(crate) static QEMU_USER: Tool = Tool {
    name: "qemu-user",
    packages: &["qemu-user"],
    programs: &["usr/bin/qemu-aarch64"],
    ..WITH_LIBRARIES
};

/// Reads AppArmor profiles, and loads them in guests.
pub(crate) static APPARMOR: Tool = Tool {
    name: "apparmor",
    suites: &["bookworm"],
    packages: &["apparmor"],
    programs: &["sbin/apparmor_parser"],
    ..ALONE
};

/// Runs `dashboards/generate.py`, and a pip to fetch Grafana's schemas with.
pub(crate) static PYTHON: Tool = Tool {
    name: "python",
    packages: &["python3", "python3-pip-whl"],
    line: "3.",
    programs: &["usr/bin/python3"],
    called: Called::ByPath,
    ..WITH_LIBRARIES
};

/// Runs the alert rules' unit tests. Debian 13 has 2.53, in which a range selector has one sample more.
pub(crate) static PROMTOOL: Tool = Tool {
    name: "promtool",
    suites: &["sid", "forky"],
    packages: &["promtool"],
    line: "3.",
    programs: &["usr/bin/promtool"],
    ..ALONE
};

/// The oldest that docs/alerts.md names.
pub(crate) static PROMTOOL_OLDEST: Tool = Tool {
    name: "promtool-2.42",
    suites: &["bookworm"],
    packages: &["prometheus"],
    line: "2.42.",
    programs: &["usr/bin/promtool"],
    called: Called::ByPath,
    ..ALONE
};

/// Answers the dashboards' queries.
pub(crate) static PROMETHEUS: Tool = Tool {
    name: "prometheus",
    suites: &["sid", "forky"],
    packages: &["prometheus"],
    line: "3.",
    programs: &["usr/bin/prometheus"],
    ..ALONE
};

/// Counts the engine's instructions.
pub(crate) static VALGRIND: Tool = Tool {
    name: "valgrind",
    packages: &["valgrind"],
    programs: &["usr/bin/valgrind"],
    ..WITH_LIBRARIES
};

/// What coroner is measured beside: traces by scripts.
pub(crate) static BPFTRACE: Tool = Tool {
    name: "bpftrace",
    packages: &["bpftrace"],
    programs: &["usr/bin/bpftrace"],
    ..WITH_LIBRARIES
};

/// What coroner is measured beside: tools that print signals, exits and connections.
pub(crate) static LIBBPF_TOOLS: Tool = Tool {
    name: "libbpf-tools",
    packages: &["libbpf-tools"],
    programs: &[
        "usr/sbin/sigsnoop",
        "usr/sbin/exitsnoop",
        "usr/sbin/tcpstates",
        "usr/sbin/tcplife",
    ],
    ..WITH_LIBRARIES
};

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Tool {
    /// Its packages and where they come from, for a person.
    pub(crate) fn source(&self) -> String {
        format!("{} of Debian's {}", self.packages.join(", "), self.suites.join(" or "))
    }

    /// The packages that it is made of, without their libraries.
    pub(crate) fn packages(&self) -> &'static [&'static str] {
        self.packages
    }

    /// The names of its programs.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &'static str> {
        self.programs.iter().map(|path| path.rsplit('/').next().unwrap_or(path))
    }

    /// How a person who cannot have it from Debian provides it.
    pub(crate) fn advice(&self) -> String {
        let names: Vec<&str> = self.programs().collect();
        let version = if self.line.is_empty() { String::new() } else { format!(" {}*", self.line) };
        let place = match self.called {
            Called::ByName => "on PATH".to_owned(),
            Called::ByPath => format!("on PATH or in target/tools/{}/usr/bin", self.name),
        };
        format!("install {}{version} {place}, then --system-tools", names.join(", "))
    }

    /// One of its programs that a person has provided, in the version that is needed.
    pub(crate) fn on_machine(&self, workspace: &Workspace) -> Option<PathBuf> {
        let own = self.folder(workspace).join("usr/bin");
        let programs: Option<Vec<PathBuf>> = self
            .programs()
            .map(|name| {
                let own = Some(own.join(name)).filter(|own| host::is_executable(own));
                own.or_else(|| host::find_program(name))
            })
            .collect();
        let first = programs?.into_iter().next()?;
        let said = output(Command::new(&first).args(self.asked_version));
        (self.line.is_empty() || self.is_said_in(&said?)).then_some(first)
    }

    /// Whether a version of the line is named in what a program said of itself.
    fn is_said_in(&self, said: &str) -> bool {
        let words = said.split(|letter: char| letter.is_whitespace() || letter == ',');
        words.map(|word| word.trim_start_matches('v')).any(|word| word.starts_with(self.line))
    }

    /// Where it is unpacked.
    pub(crate) fn folder(&self, workspace: &Workspace) -> PathBuf {
        workspace.tools().join(self.name)
    }

    /// Where one of its programs is called from, once it is installed.
    pub(crate) fn program(&self, workspace: &Workspace, name: &str) -> PathBuf {
        self.bin(workspace).join(name)
    }

    /// Its first program itself, not the script that calls it.
    pub(crate) fn itself(&self, workspace: &Workspace) -> PathBuf {
        self.folder(workspace).join(self.programs.first().copied().unwrap_or_default())
    }

    fn bin(&self, workspace: &Workspace) -> PathBuf {
        match self.called {
            Called::ByName => workspace.tools().join("bin"),
            Called::ByPath => self.folder(workspace).join("bin"),
        }
    }

    /// What was installed; `None`: nothing, what an older table asked for, or what was installed for
    /// another checkout: the scripts that call its programs name the folder.
    pub(crate) fn installed(&self, workspace: &Workspace) -> Option<Vec<Locked>> {
        let called = |path: &&str| {
            let (script, text) = self.script(workspace, path).ok()?;
            (fs::read_to_string(script).ok()? == text).then_some(())
        };
        self.programs.iter().all(|path| called(path).is_some()).then(|| self.unpacked(workspace))?
    }

    /// What was unpacked, whole and of this table.
    fn unpacked(&self, workspace: &Workspace) -> Option<Vec<Locked>> {
        let text = fs::read_to_string(self.folder(workspace).join(RECORD)).ok()?;
        let lines: Vec<Locked> = text.lines().filter_map(Locked::parse).collect();
        let named = |name: &&str| {
            lines.iter().any(|line| line.package == **name && self.suites.contains(&&*line.suite))
        };
        (self.packages.iter().all(named)
            && lines.first().is_some_and(|first| self.is_of_line(&first.version))
            && self.programs.iter().all(|path| self.folder(workspace).join(path).is_file()))
        .then_some(lines)
    }

    /// Debian's `1:7.2+dfsg-7` without its epoch begins with the line.
    fn is_of_line(&self, version: &str) -> bool {
        version.split_once(':').map_or(version, |(_, rest)| rest).starts_with(self.line)
    }

    /// Fetches and unpacks it, whole or not at all. What is unpacked already is not fetched again: it may
    /// have been moved or copied here.
    ///
    /// # Errors
    /// When no suite has it, it cannot be fetched, or it is not the archive that the lock file names.
    pub(crate) fn install(&self, workspace: &Workspace) -> Result<()> {
        if self.unpacked(workspace).is_some() {
            return self.programs.iter().try_for_each(|path| self.wrap(workspace, path));
        }
        let mut refused = Vec::new();
        for suite in self.suites {
            match self.install_from(workspace, suite) {
                Ok(()) => return Ok(()),
                Err(error) => refused.push(format!("{error:#}")),
            }
        }
        bail!("{self} cannot be had: {}", refused.join("; "))
    }

    fn install_from(&self, workspace: &Workspace, suite: &'static str) -> Result<()> {
        let apt = Apt::of_architecture(workspace, suite, self.foreign)?;
        let dependencies = self.libraries != Libraries::Machine;
        let mut archives = apt.fetch(&format!("fetching {self}"), self.packages, dependencies)?;
        let own = |package: &str| self.packages.iter().position(|name| *name == package);
        // Those that are asked for come first, in their order: `installed` looks at the first.
        archives.sort_by_key(|one| own(&one.locked.package).unwrap_or(usize::MAX));
        let partial = workspace.tools().join(format!("{}.partial", self.name));
        remove(&partial)?;
        fs::create_dir_all(&partial)
            .with_context(|| format!("cannot make {}", partial.display()))?;
        let mut record = String::new();
        match archives.first() {
            Some(first) if self.is_of_line(&first.locked.version) => {}
            Some(first) => bail!(
                "Debian's {suite} has {} {} now, and coroner needs {}*: change the table in \
                 xtask/src/setup/debian.rs",
                first.locked.package,
                first.locked.version,
                self.line
            ),
            None => bail!("apt fetched nothing for {self}"),
        }
        for archive in &archives {
            if own(&archive.locked.package).is_some() {
                compare(workspace, &archive.locked)?;
            }
            archive.unpack(&partial)?;
            record.push_str(&format!("{}\n", archive.locked));
        }
        fs::write(partial.join(RECORD), record)?;
        let folder = self.folder(workspace);
        remove(&folder)?;
        fs::rename(&partial, &folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        self.programs.iter().try_for_each(|path| self.wrap(workspace, path))
    }

    /// Puts a program where it is called from: a script that runs it with its own libraries.
    fn wrap(&self, workspace: &Workspace, path: &str) -> Result<()> {
        if !self.folder(workspace).join(path).is_file() {
            bail!("{} has no {path}", self.source());
        }
        let bin = self.bin(workspace);
        fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
        let (script, text) = self.script(workspace, path)?;
        fs::write(&script, text)
            .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)))
            .with_context(|| format!("cannot write {}", script.display()))
    }

    /// The script that calls the program at `path`, and what it must contain.
    fn script(&self, workspace: &Workspace, path: &str) -> Result<(PathBuf, String)> {
        let folder = self.folder(workspace);
        let script = self.bin(workspace).join(path.rsplit('/').next().unwrap_or(path));
        let text = wrapper(&folder, &folder.join(path), self.libraries, self.arguments)?;
        Ok((script, text))
    }
}

/// Holds a package to the lock file: a version that is not in it is named, with the line to add.
///
/// # Errors
/// When the version is in it with another checksum.
pub(crate) fn compare(workspace: &Workspace, found: &Locked) -> Result<()> {
    if Arch::host()?.debian != "amd64" {
        return Ok(()); // the lock file has the archives of amd64
    }
    let lock = fs::read_to_string(workspace.root().join(LOCK_FILE)).unwrap_or_default();
    match look_up(&lock, found) {
        Verdict::Known => {}
        Verdict::Altered => bail!(
            "{} {} of Debian's {} is not the archive that {LOCK_FILE} names: its SHA-256 is {}",
            found.package,
            found.version,
            found.suite,
            found.sha256
        ),
        Verdict::New(known) => note(&format!(
            "warning: coroner was not tested with this version yet (but with: {}); if all tests pass, \
             add this line to {LOCK_FILE}:\n{found}",
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        )),
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

fn wrapper(
    folder: &Path,
    program: &Path,
    libraries: Libraries,
    arguments: &[&str],
) -> Result<String> {
    let at = folder.display().to_string();
    let Arch { multiarch, loader, .. } = Arch::host()?;
    // The last two: where packages keep libraries that only their own programs load.
    let folders = ["usr/lib/{}", "lib/{}", "usr/lib/{}/pulseaudio", "usr/lib/{}/systemd"]
        .map(|folder| format!("{at}/{}", folder.replace("{}", multiarch)));
    let folders = format!("'{}'${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}", folders.join(":"));
    let exec = match libraries {
        Libraries::Machine => "exec".to_owned(),
        Libraries::Unpacked => format!("LD_LIBRARY_PATH={folders} exec"),
        Libraries::UnpackedForItselfOnly => format!("exec {loader} --library-path {folders}"),
    };
    let arguments: Vec<String> =
        arguments.iter().map(|one| format!("'{}' ", one.replace("{}", &at))).collect();
    Ok(format!("#!/bin/sh\n{exec} '{}' {}\"$@\"\n", program.display(), arguments.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_program_gets_its_libraries_and_its_arguments() {
        let text = wrapper(
            Path::new("/t"),
            Path::new("/t/usr/bin/qemu"),
            Libraries::Unpacked,
            &["-L", "{}/usr/share/seabios"],
        )
        .expect("this machine's architecture");
        assert!(text.starts_with("#!/bin/sh\nLD_LIBRARY_PATH='/t/usr/lib/"), "{text}");
        assert!(text.ends_with("exec '/t/usr/bin/qemu' '-L' '/t/usr/share/seabios' \"$@\"\n"));
        let alone = wrapper(Path::new("/t"), Path::new("/t/bin/x"), Libraries::Machine, &[]);
        assert_eq!(alone.expect("as above"), "#!/bin/sh\nexec '/t/bin/x' \"$@\"\n");
    }

    /// `cc` of a newer distribution fails with the older libraries of Debian's compiler.
    #[test]
    fn what_the_compiler_starts_does_not_get_its_libraries() {
        let sees = |libraries| {
            let env = host::find_program("env").expect("of coreutils");
            let text = wrapper(Path::new("/t"), &env, libraries, &[]).expect("this architecture");
            let output = Command::new("sh")
                .args(["-c", &text])
                .env_remove("LD_LIBRARY_PATH")
                .output()
                .expect("runs");
            assert!(output.status.success(), "{text}: {output:?}");
            String::from_utf8_lossy(&output.stdout).contains("LD_LIBRARY_PATH=")
        };
        assert!(sees(Libraries::Unpacked));
        assert!(!sees(Libraries::UnpackedForItselfOnly));
    }

    #[test]
    fn a_version_is_of_its_line_whatever_its_epoch() {
        let [old, middle, new] = &CONTAINERDS;
        assert!(old.is_of_line("1.6.20~ds1-1+deb12u3") && !old.is_of_line("1.7.24~ds1-6"));
        assert!(middle.is_of_line("1.7.24~ds1-6") && new.is_of_line("2.1.9+ds1-5"));
        assert!(QEMU.is_of_line("1:7.2+dfsg-7+deb12u18"));
    }

    /// As the programs print it.
    #[test]
    fn a_program_of_the_machine_is_held_to_the_line() {
        let [old, middle, new] = &CONTAINERDS;
        let debian = "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3";
        let upstream = "containerd github.com/containerd/containerd/v2 v2.1.9 fb4c30d4ede3531652d8";
        assert!(old.is_said_in(debian) && !middle.is_said_in(debian) && !new.is_said_in(debian));
        assert!(new.is_said_in(upstream) && !old.is_said_in(upstream));
        assert!(PROMTOOL.is_said_in("promtool, version 3.5.3 (branch: debian/sid, revision: 1)"));
        assert!(!PROMETHEUS.is_said_in("prometheus, version 2.53.3+ds1 (branch: debian/sid)"));
    }

    #[test]
    fn one_containerd_of_the_machine_is_not_three() {
        let root = tempfile::tempdir().expect("a folder");
        let workspace = Workspace::at(root.path());
        let at = |tool: &Tool, says: &str| {
            let bin = tool.folder(&workspace).join("usr/bin");
            fs::create_dir_all(&bin).expect("made");
            for name in tool.programs() {
                let program = bin.join(name);
                fs::write(&program, format!("#!/bin/sh\necho '{says}'\n")).expect("written");
                fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("chmod");
            }
        };
        let [old, middle, new] = &CONTAINERDS;
        for tool in [old, middle] {
            at(tool, "containerd containerd.io 1.7.27 05044ec0a9a7");
        }
        assert_eq!(old.on_machine(&workspace), None, "it is 1.7");
        assert!(middle.on_machine(&workspace).is_some());
        assert!(new.advice().contains("2.* on PATH or in target/tools/containerd-2/usr/bin"));
    }

    #[test]
    fn what_is_not_whole_is_not_installed() {
        let root = tempfile::tempdir().expect("a folder");
        let workspace = Workspace::at(root.path());
        let folder = BUSYBOX.folder(&workspace);
        fs::create_dir_all(&folder).expect("made");
        assert_eq!(BUSYBOX.installed(&workspace), None);
        let line = |suite: &str| format!("{suite} busybox-static 1:1.35 aa\n");
        fs::write(folder.join(RECORD), line("bookworm")).expect("written");
        assert_eq!(BUSYBOX.installed(&workspace), None, "its program is not there");
        fs::create_dir_all(folder.join("bin")).expect("made");
        fs::write(folder.join("bin/busybox"), "").expect("written");
        assert_eq!(BUSYBOX.installed(&workspace), None, "nothing calls it");
        BUSYBOX.install(&workspace).expect("nothing has to be fetched");
        assert!(BUSYBOX.installed(&workspace).is_some());
        fs::write(folder.join(RECORD), line("buzz")).expect("written");
        assert_eq!(BUSYBOX.installed(&workspace), None, "an older table's");
    }

    #[test]
    fn what_was_moved_is_called_from_its_new_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        let at_old = Workspace::at(&old);
        let tool = BUSYBOX.folder(&at_old);
        fs::create_dir_all(tool.join("bin")).expect("made");
        fs::write(tool.join("bin/busybox"), "#!/bin/sh\necho \"$0\"\n").expect("written");
        fs::set_permissions(tool.join("bin/busybox"), fs::Permissions::from_mode(0o755))
            .expect("chmod");
        fs::write(tool.join(RECORD), "bookworm busybox-static 1:1.35 aa\n").expect("written");
        BUSYBOX.install(&at_old).expect("nothing has to be fetched");
        fs::rename(&old, &new).expect("moved");
        let at_new = Workspace::at(&new);
        assert_eq!(BUSYBOX.installed(&at_new), None, "it is called at the old place");
        BUSYBOX.install(&at_new).expect("nothing has to be fetched");
        let called = Command::new(BUSYBOX.program(&at_new, "busybox")).output();
        let said = String::from_utf8(called.expect("runs").stdout).expect("a path");
        assert_eq!(said.trim(), BUSYBOX.folder(&at_new).join("bin/busybox").to_string_lossy());
    }

    const TOOLS: [&Tool; 20] = [
        &BPF_RUST,
        &CONTAINERDS[0],
        &CONTAINERDS[1],
        &CONTAINERDS[2],
        &RUNC,
        &CRUN,
        &SYSTEMD,
        &QEMU,
        &APPARMOR,
        &BUSYBOX,
        &BUSYBOX_ARM64,
        &GCC_ARM64,
        &QEMU_USER,
        &PYTHON,
        &PROMTOOL,
        &PROMETHEUS,
        &PROMTOOL_OLDEST,
        &VALGRIND,
        &BPFTRACE,
        &LIBBPF_TOOLS,
    ];

    #[test]
    fn no_two_tools_share_a_folder() {
        let names: std::collections::BTreeSet<_> = TOOLS.iter().map(|tool| tool.name).collect();
        assert_eq!(names.len(), TOOLS.len());
        assert!(!names.contains("bin") && !names.contains("apt"));
    }

    #[test]
    fn every_package_is_in_the_lock_file() {
        let lock = include_str!("../../tools.lock");
        let locked: Vec<Locked> = lock.lines().filter_map(Locked::parse).collect();
        for tool in TOOLS {
            for package in tool.packages {
                let known = |line: &&Locked| {
                    line.package == *package && tool.suites.contains(&&*line.suite)
                };
                let lines: Vec<&Locked> = locked.iter().filter(known).collect();
                assert!(!lines.is_empty(), "{package} of {:?}", tool.suites);
                let first = tool.packages.first() == Some(package);
                assert!(!first || lines.iter().any(|line| tool.is_of_line(&line.version)));
            }
        }
    }
}
