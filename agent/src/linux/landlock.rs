//! Keeps a thread to the files that it needs (Landlock, since Linux 5.13), for good. For threads that look at no other
//! process: the kernel then refuses them `/proc/PID/{root,cwd,exe,ns,mem,environ}` of all others, too, whatever their
//! capabilities (`hook_ptrace_access_check`, security/landlock/task.c).

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use std::path::PathBuf;

/// Each kernel refuses what it knows of these.
const KNOWN: ABI = ABI::V10;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileAccess {
    Opened,
    /// Files below these directories, to read.
    Read(Vec<PathBuf>),
    /// Files below this directory, to make, read, write, rename and remove.
    Write(PathBuf),
    /// All but new devices: it may run a program that needs anything.
    Any,
}

/// Restricts the calling thread, and the threads and processes that it starts, to these files. Unless they are any, it
/// may also listen on no TCP port, nor connect to an abstract unix socket. What is open stays open.
pub fn restrict(files: &FileAccess) -> Result<(), String> {
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let writes =
        reads | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
    let (paths, allowed): (&[PathBuf], BitFlags<AccessFs>) = match files {
        FileAccess::Opened | FileAccess::Any => (&[], reads),
        FileAccess::Read(below) => (below, reads),
        FileAccess::Write(below) => (std::slice::from_ref(below), writes),
    };
    let restricted = || -> Result<RulesetStatus, RulesetError> {
        let ruleset = match files {
            FileAccess::Any => {
                Ruleset::default().handle_access(AccessFs::MakeChar | AccessFs::MakeBlock)?
            }
            _ => Ruleset::default()
                .handle_access(AccessFs::from_all(KNOWN))?
                .handle_access(AccessNet::BindTcp)?
                .scope(Scope::AbstractUnixSocket)?,
        };
        let ruleset = ruleset.create()?.add_rules(path_beneath_rules(paths, allowed))?;
        Ok(ruleset.restrict_self()?.ruleset)
    };
    match restricted() {
        Ok(RulesetStatus::NotEnforced) => Err(lacking()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether this kernel can restrict threads.
pub fn probe() -> Result<(), String> {
    let required = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let made = required.handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create);
    made.map(drop).map_err(|_| lacking())
}

fn lacking() -> String {
    "the kernel has no Landlock (Linux 5.13, CONFIG_SECURITY_LANDLOCK, lsm=landlock)".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, File},
        io::ErrorKind,
        os::unix::net::UnixListener,
        process::Command,
        thread,
    };

    /// What must not work is tried; whatever works elsewhere still works there.
    #[test]
    fn a_thread_reaches_its_own_files_and_no_others() {
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = other.path().join("secret");
        fs::write(&secret, "s").unwrap();
        let child = Command::new("sleep").arg("600").spawn();
        let mut child = child.unwrap();
        let of_child = |what: &str| PathBuf::from(format!("/proc/{}/{what}", child.id()));
        let (root, environ) = (of_child("root"), of_child("environ"));
        fs::read_link(&root).unwrap();
        let tried = thread::scope(|scope| {
            let tried = scope.spawn(|| {
                let mut open = File::create(other.path().join("open")).unwrap();
                if let Err(why) = restrict(&FileAccess::Write(own.path().to_owned())) {
                    assert!(probe().is_err(), "{why}");
                    return false;
                }
                let refused = |kind| kind == ErrorKind::PermissionDenied;
                let fails = |what: Result<(), std::io::Error>| refused(what.unwrap_err().kind());
                let (new, kept) = (own.path().join("new"), own.path().join("kept"));
                fs::write(&new, "n").unwrap();
                fs::rename(&new, &kept).unwrap();
                fs::write(&kept, "again").unwrap();
                assert_eq!(fs::read_to_string(&kept).unwrap(), "again");
                fs::read_dir(own.path()).unwrap();
                std::io::Write::write_all(&mut open, b"what is open stays open").unwrap();
                assert!(fails(fs::read(&secret).map(drop)));
                assert!(fails(fs::write(other.path().join("new"), "")));
                assert!(fails(fs::remove_file(&secret)));
                assert!(
                    fails(fs::rename(&kept, other.path().join("moved")).map(drop))
                        || !kept.exists()
                );
                assert!(fails(UnixListener::bind(own.path().join("socket")).map(drop)));
                assert!(fails(fs::read_link(&root).map(drop)));
                assert!(fails(fs::read(&environ).map(drop)));
                let inherited = thread::spawn({
                    let secret = secret.clone();
                    move || fs::read(secret).map(drop)
                });
                assert!(fails(inherited.join().unwrap()));
                true
            });
            tried.join().unwrap()
        });
        assert_eq!(tried, probe().is_ok());
        // The others are as free as before.
        fs::read(&secret).unwrap();
        fs::read_link(&root).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_thread_that_reads_writes_nowhere_and_one_that_may_do_anything_sees_no_other_process() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "f").unwrap();
        let parent = format!("/proc/{}/root", std::os::unix::process::parent_id());
        let reads = thread::spawn(move || {
            if restrict(&FileAccess::Read(vec![folder.path().to_owned()])).is_err() {
                return;
            }
            assert_eq!(fs::read_to_string(&file).unwrap(), "f");
            assert!(fs::write(&file, "").is_err() && fs::remove_file(&file).is_err());
            // Since Linux 6.7.
            let required = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
            let refuses = required.handle_access(AccessNet::BindTcp).and_then(Ruleset::create);
            let bound = std::net::TcpListener::bind("127.0.0.1:0");
            assert!(bound.is_err() || refuses.is_err());
        });
        reads.join().unwrap();
        fs::read_link(&parent).unwrap();
        let any = thread::spawn(move || {
            if restrict(&FileAccess::Any).is_err() {
                return;
            }
            let own = tempfile::tempdir().unwrap();
            fs::write(own.path().join("file"), "").unwrap();
            assert!(Command::new("true").status().unwrap().success());
            fs::read_link(parent).unwrap_err();
        });
        any.join().unwrap();
    }
}
