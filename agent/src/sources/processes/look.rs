//! One look at one container.

use crate::linux::{
    cgroupfs, clock,
    procfs::{
        parse::{self, Stat},
        read_stat,
    },
};
use coroner_core::{
    exit_blockers::same_start,
    ids::Tgid,
    input::{ProcProcess, ProcReport, TaskState},
    output::InspectProcesses,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    rc::Rc,
};

/// Processes of one report; the others are only counted.
const MAX_PROCESSES: usize = 8;
/// Functions of a stack.
const MAX_STACK: usize = 16;
/// Processes of one container that are looked at: a fork bomb has more, and none of them tells
/// more than these.
const MAX_LOOKED_AT: usize = 4096;
/// Cgroups of one container that are looked into.
const MAX_CGROUPS: usize = 4096;
/// Where the freezer of cgroup v1, or that of a suspended machine, holds a process (`kernel/freezer.c`).
const REFRIGERATOR: &str = "__refrigerator";

/// A process and how it is found below /proc.
struct InspectedProcess {
    process: ProcProcess,
    folder: PathBuf,
}

/// Looks at what is left of a container. What cannot be read is left out; it does not fail.
///
/// Processes are found by the container's cgroup, as this process' PID namespace numbers them; if
/// that is not the host's, the main process is still found by the kernel's number where the host's
/// /proc is mounted. Its start time makes sure that it is the same process.
pub(super) fn look(proc: &Path, cgroup_root: &Path, wanted: InspectProcesses) -> ProcReport {
    let looked = clock::boot_now();
    let members = members(cgroup_root, wanted);
    let listed = members.iter().flat_map(BTreeMap::keys).copied();
    let listed = listed.filter(|pid| *pid != 0).take(MAX_LOOKED_AT);
    let mut found: Vec<InspectedProcess> = listed.filter_map(|pid| process(proc, pid)).collect();
    let is_main = |process: &ProcProcess| {
        wanted.main == Some(process.tgid)
            && wanted.started.is_none_or(|known| same_start(known, process.started))
    };
    if let (Some(main), Some(_)) = (wanted.main, wanted.started)
        && !found.iter().any(|known| known.process.tgid == main)
    {
        found.extend(process(proc, main.0).filter(|other| is_main(&other.process)));
    }
    let is_alive = |found: &InspectedProcess| found.process.state != TaskState::Zombie;
    let count = u32::try_from(found.iter().filter(|f| is_alive(f)).count()).unwrap_or(u32::MAX);
    // Some of it cannot be seen from here.
    let hidden = members.as_ref().is_none_or(|members| members.contains_key(&0));
    let alive = (count > 0 || !hidden).then_some(count);

    let cgroup = found.first().and_then(|any| members.as_ref()?.get(&any.process.tgid.0));
    let mut frozen = cgroup.and_then(|folder| frozen(folder));
    found.retain(|f| is_alive(f) || is_main(&f.process));
    found.sort_by_key(|f| (f.process.state, !is_main(&f.process), f.process.tgid));
    found.truncate(MAX_PROCESSES);
    let processes: Vec<ProcProcess> = found.into_iter().map(whereabouts).collect();
    if processes.iter().any(|p| p.wchan.as_deref() == Some(REFRIGERATOR)) {
        frozen = Some(true);
    }
    ProcReport { cgroup: wanted.cgroup, looked, alive, processes, frozen }
}

/// The pids in a cgroup and below, each with the directory of its cgroup; 0 is one that this PID namespace has no
/// number for. Nothing if the cgroup is gone, `None` if the hierarchy cannot be read or has too many cgroups.
fn members(root: &Path, wanted: InspectProcesses) -> Option<BTreeMap<u32, Rc<Path>>> {
    fs::read_dir(root).ok()?;
    let mut members = BTreeMap::new();
    let found = cgroupfs::find_cgroup(root, wanted.cgroup).ok()?;
    let mut open: Vec<PathBuf> = found.into_iter().collect();
    let mut visited = 0;
    while let Some(folder) = open.pop() {
        let shared: Rc<Path> = folder.as_path().into();
        members.extend(cgroupfs::pids(&folder).into_iter().map(|pid| (pid, Rc::clone(&shared))));
        visited += 1;
        if visited >= MAX_CGROUPS {
            members.insert(0, shared); // there may be others, which are not seen
            break;
        }
        open.extend(cgroupfs::directories(&folder));
    }
    Some(members)
}

fn process(proc: &Path, pid: u32) -> Option<InspectedProcess> {
    let mut folder = proc.join(pid.to_string());
    let stat = read_stat(&folder)?;
    let (started, Stat { comm, mut state, .. }) = (stat.started_ns(), stat);
    let mut thread = None;
    if state == TaskState::Zombie
        && let Some((tid, left)) = thread_left(&folder, pid)
    {
        (thread, state) = (Some(tid), left);
        folder = folder.join(format!("task/{tid}"));
    }
    let process = ProcProcess {
        tgid: Tgid(pid),
        comm,
        started,
        state,
        thread,
        wchan: None,
        stack: Vec::new(),
    };
    Some(InspectedProcess { process, folder })
}

/// Of a process whose leader has ended, the thread that holds up the most.
fn thread_left(folder: &Path, pid: u32) -> Option<(u32, TaskState)> {
    let tasks = fs::read_dir(folder.join("task")).ok()?;
    tasks
        .flatten()
        .filter_map(|entry| {
            let tid: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((read_stat(&entry.path())?.state, tid))
        })
        .filter(|(state, tid)| *state != TaskState::Zombie && *tid != pid)
        .min()
        .map(|(state, tid)| (tid, state))
}

fn whereabouts(found: InspectedProcess) -> ProcProcess {
    let InspectedProcess { mut process, folder } = found;
    let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
    if process.state != TaskState::Zombie {
        process.wchan = parse::wchan(&read("wchan"));
        process.stack = parse::stack(&read("stack"));
        process.stack.truncate(MAX_STACK);
    }
    process
}

/// Whether a cgroup, or one above it, is frozen.
fn frozen(folder: &Path) -> Option<bool> {
    parse::events_frozen(&fs::read_to_string(folder.join("cgroup.events")).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_core::ids::CgroupId;

    const TICK: u64 = 10_000_000;

    /// A hierarchy and a /proc of our own.
    struct FakeHost {
        folder: tempfile::TempDir,
        cgroup: CgroupId,
    }

    impl FakeHost {
        fn new(pids: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let cgroup_root = folder.path().join("cgroup");
            let own = cgroup_root.join("kubepods/pod1/c1");
            fs::create_dir_all(own.join("nested")).unwrap();
            fs::write(own.join("cgroup.procs"), pids).unwrap();
            let cgroup = CgroupId(cgroupfs::inode(&own).unwrap());
            Self { folder, cgroup }
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn task(&self, path: &str, name: &str, state: char, started: u64) {
            let zeros = "0 ".repeat(18);
            let stat = format!("1 ({name}) {state} {zeros}{started} 0");
            self.file(&format!("proc/{path}/stat"), &stat);
        }

        fn look(&self, main: u32, started: Option<u64>) -> ProcReport {
            let main = Some(Tgid(main));
            self.look_for(InspectProcesses { cgroup: self.cgroup, main, started })
        }

        fn look_for(&self, wanted: InspectProcesses) -> ProcReport {
            let root = self.folder.path();
            look(&root.join("proc"), &root.join("cgroup"), wanted)
        }
    }

    #[test]
    fn what_hangs_comes_first_and_zombies_do_not_count() {
        let fake = FakeHost::new("10\n11\n12\n13\n");
        fake.file("cgroup/kubepods/pod1/c1/nested/cgroup.procs", "14\n");
        fake.task("10", "app", 'S', 100);
        fake.file("proc/10/wchan", "zap_pid_ns_processes");
        fake.task("11", "dead", 'Z', 101);
        fake.task("12", "busy", 'R', 102);
        fake.file("proc/12/wchan", "0");
        // 13 has gone in the meantime.
        fake.task("14", "nested", 'D', 103);
        fake.file("proc/14/wchan", "io_schedule");
        fake.file("proc/14/stack", "[<0>] io_schedule+0x1/0x2\n[<0>] read_page+0x3/0x4\n");
        let report = fake.look(10, None);
        assert_eq!((report.cgroup, report.alive, report.frozen), (fake.cgroup, Some(3), None));
        let names: Vec<&str> = report.processes.iter().map(|p| p.comm.as_str()).collect();
        assert_eq!(names, ["nested", "busy", "app"]);
        assert_eq!(report.processes[0].stack, ["io_schedule", "read_page"]);
        assert_eq!(report.processes[0].started, 103 * TICK);
        assert_eq!(report.processes[1].wchan, None);
        assert_eq!(report.processes[2].wchan.as_deref(), Some("zap_pid_ns_processes"));
    }

    #[test]
    fn a_dead_leader_is_told_from_its_threads() {
        let fake = FakeHost::new("10\n");
        fake.task("10", "app", 'Z', 100);
        fake.task("10/task/10", "app", 'Z', 100);
        let report = fake.look(10, None);
        assert_eq!(report.alive, Some(0));
        assert_eq!(report.processes[0].state, TaskState::Zombie);
        fake.task("10/task/17", "app", 'S', 100);
        fake.task("10/task/18", "app", 'D', 100);
        fake.file("proc/10/task/18/wchan", "fuse_wait");
        let report = fake.look(10, None);
        let process = &report.processes[0];
        assert_eq!((report.alive, process.thread), (Some(1), Some(18)));
        assert_eq!(process.state, TaskState::Uninterruptible);
        assert_eq!(process.wchan.as_deref(), Some("fuse_wait"));
    }

    #[test]
    fn the_main_process_is_found_by_its_start_where_the_cgroup_does_not_list_it() {
        for listed in ["", "0\n"] {
            let fake = FakeHost::new(listed);
            fake.task("10", "app", 'D', 100);
            let report = fake.look(10, Some(100 * TICK + 7));
            assert_eq!((report.alive, report.processes.len()), (Some(1), 1), "{listed:?}");
            let other = fake.look(10, Some(101 * TICK));
            let unknown = fake.look(10, None);
            for report in [other, unknown] {
                assert!(report.processes.is_empty(), "another process: {report:?}");
                // One that cannot be seen from here is not nobody.
                assert_eq!(report.alive, listed.is_empty().then_some(0), "{listed:?}");
            }
        }
    }

    #[test]
    fn a_cgroup_that_is_gone_holds_nobody() {
        let fake = FakeHost::new("10\n");
        fake.task("10", "app", 'D', 100);
        let gone = InspectProcesses { cgroup: CgroupId(1), main: None, started: None };
        assert_eq!(fake.look_for(gone).alive, Some(0));
        assert_eq!(look(Path::new("/proc"), Path::new("/nonexistent"), gone).alive, None);
    }
}
