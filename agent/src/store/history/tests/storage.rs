//! What happens to the history when the agent is killed, the disk is full, or the power goes.

use super::*;
use parking_lot::Mutex;
use rusqlite::ffi::*;
use std::{
    collections::BTreeMap,
    env,
    ffi::{CStr, c_char, c_int, c_void},
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    ptr,
    sync::{
        Once,
        atomic::{AtomicBool, AtomicUsize},
    },
    thread,
};

/// In the name of a directory on the faulty disk.
const FAULTY: &str = "faulty-disk";
static IS_FULL: AtomicBool = AtomicBool::new(false);
/// Reports that were stored, now and when a file was last synced.
static STORED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
/// Open files, with SQLite's own functions.
static FILES: Mutex<BTreeMap<usize, (PathBuf, sqlite3_io_methods)>> = Mutex::new(BTreeMap::new());

/// Lets SQLite use files by functions of this test: below [`FAULTY`], each sync copies the file to FILE.synced, which is what
/// a loss of power leaves, and nothing can be written while [`IS_FULL`].
fn faulty_disk() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| unsafe {
        let original = sqlite3_vfs_find(ptr::null());
        let faulty = Box::leak(Box::new(*original));
        (faulty.zName, faulty.pAppData) = (c"faulty".as_ptr(), original.cast::<c_void>());
        faulty.xOpen = Some(open_file);
        assert_eq!(sqlite3_vfs_register(faulty, 1), SQLITE_OK);
    });
}

unsafe extern "C" fn open_file(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    opened: *mut c_int,
) -> c_int {
    unsafe {
        let original = (*vfs).pAppData.cast::<sqlite3_vfs>();
        let result = (*original).xOpen.unwrap()(original, name, file, flags, opened);
        let path = (!name.is_null()).then(|| CStr::from_ptr(name).to_str().unwrap());
        if let Some(path) = path.filter(|path| result == SQLITE_OK && path.contains(FAULTY)) {
            let original = *(*file).pMethods;
            let faulty = sqlite3_io_methods { xSync: Some(sync), xWrite: Some(write), ..original };
            FILES.lock().insert(file as usize, (path.into(), original));
            (*file).pMethods = Box::leak(Box::new(faulty));
        }
        result
    }
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    bytes: *const c_void,
    count: c_int,
    at: sqlite3_int64,
) -> c_int {
    match IS_FULL.load(Relaxed) {
        true => SQLITE_FULL,
        false => unsafe { known(file).1.xWrite.unwrap()(file, bytes, count, at) },
    }
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    let (path, original) = known(file);
    let result = unsafe { original.xSync.unwrap()(file, flags) };
    // The last sync may come after the directory was removed.
    let _ = fs::copy(&path, synced(&path));
    STORED[1].store(STORED[0].load(Relaxed), Relaxed);
    result
}

fn known(file: *mut sqlite3_file) -> (PathBuf, sqlite3_io_methods) {
    FILES.lock()[&(file as usize)].clone()
}

fn synced(path: &Path) -> PathBuf {
    format!("{}.synced", path.display()).into()
}

/// One after the other, as they share the disk.
#[tokio::test]
async fn a_full_disk_loses_nothing_and_a_loss_of_power_what_was_not_synced() {
    faulty_disk();
    let folder = TempDir::with_prefix(FAULTY).unwrap();
    let state = folder.path().join("full");
    let (history, _) = open(options(&state));
    history.terminated(report("before"), true);
    history.flush().await;
    IS_FULL.store(true, Relaxed);
    let most = ROOM / (1 + report("").containers.len());
    for number in 0..=most {
        history.terminated(report(&number.to_string()), true);
    }
    history.flush().await;
    assert_eq!(names(&history, Filter::default()).await, ["before"], "what is stored can be read");
    let unsent = history.unsent(1).await;
    assert!(!history.sent(vec![unsent[0].id]).await, "nor is a mark");
    let faults = history.faults();
    assert!(faults[&Fault::WriteFailed] > 0 && faults[&Fault::NoRoom] == 1, "{faults:?}");
    IS_FULL.store(false, Relaxed);
    let stored = selected(&history, Filter::default()).await.ids.len();
    assert_eq!(stored, 1 + most, "and what waited is stored");
    history.terminated(report("unfinished"), false);
    history.leak_opened(leak("open"), true);
    history.end().await;
    IS_FULL.store(true, Relaxed);
    let (history, leaks) = open(options(&state));
    assert_eq!((history.unsent_count().await, leaks.len()), (stored as u64, 1), "it starts");
    let (new, _) = open(options(&folder.path().join("new")));
    new.terminated(report("in memory"), true);
    assert_eq!(names(&new, Filter::default()).await, ["in memory"]);
    IS_FULL.store(false, Relaxed);
    history.end().await;

    let state = folder.path().join("power");
    let (history, _) = open(options(&state));
    let mut reported = 0;
    // The last sync may have had the report that was just stored.
    while reported < 400 || STORED[1].load(Relaxed) + 1 >= reported {
        history.terminated(report(&reported.to_string()), true);
        history.flush().await;
        reported += 1;
        STORED[0].store(reported, Relaxed);
    }
    let after = folder.path().join("after");
    fs::create_dir_all(after.join(FOLDER)).unwrap();
    for name in [FILE.to_owned(), format!("{FILE}-wal")] {
        let left = synced(&state.join(FOLDER).join(&name));
        fs::copy(left, after.join(FOLDER).join(&name)).unwrap();
    }
    let least = STORED[1].load(Relaxed);
    let (after, _) = open(options(&after));
    let mut kept = names(&after, Filter::default()).await;
    kept.reverse();
    assert!(least > 0 && least <= kept.len() && kept.len() < reported, "{least}, {}", kept.len());
    let all: Vec<_> = (0..kept.len()).map(|number| number.to_string()).collect();
    assert_eq!((kept, after.faults()[&Fault::SetAside]), (all, 0));
}

const DIRECTORY: &str = "CORONER_TEST_HISTORY";
const ROUNDS: usize = 25;

/// This test runs itself again as what is killed: at a random moment, 100 times, 25 in each of four directories.
#[test]
fn what_was_stored_outlives_sigkill() {
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    if let Some(round) = env::var_os(DIRECTORY) {
        return runtime().block_on(churn(Path::new(&round)));
    }
    let in_one = || {
        let folder = TempDir::new().unwrap();
        let mut stored = 0;
        for round in 0..ROUNDS {
            stored += killed(&folder.path().join(round.to_string()));
            let found = runtime().block_on(async {
                let (history, _) = open(options(folder.path()));
                let found = selected(&history, Filter::default()).await.ids.len();
                assert_eq!(history.faults()[&Fault::SetAside], 0);
                history.end().await;
                found
            });
            assert!(found >= stored, "{found} of {stored} in round {round}");
            stored = found;
        }
        assert!(stored > ROUNDS);
    };
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(in_one))));
}

/// How many reports were stored before the kill.
fn killed(round: &Path) -> usize {
    let name = "store::history::tests::storage::what_was_stored_outlives_sigkill";
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(DIRECTORY, round)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let stored = lines.map_while(Result::ok).filter(|line| line == "stored");
    let (mut count, kill_at) = (0, fastrand::usize(1..12));
    for _ in stored {
        count += 1;
        if count == kill_at {
            thread::sleep(Duration::from_micros(fastrand::u64(..5_000)));
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    count * 3
}

/// Stores three reports at a time, and corrects one of them.
async fn churn(round: &Path) {
    let (history, _) = open(options(round.parent().unwrap()));
    let round = round.file_name().unwrap().to_str().unwrap();
    for number in 0..1_000_000 {
        for part in ["a", "b", "c"] {
            history.terminated(report(&format!("{round}-{number}-{part}")), false);
        }
        history.terminated(report(&format!("{round}-{number}-a")), true);
        history.flush().await;
        println!("\nstored");
    }
}
