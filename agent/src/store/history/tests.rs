mod storage;

use super::*;
use crate::{linux::clock, outputs::report::samples};
use coroner_core::time::{BootTime, Moment};
use std::{fs, os::unix::fs::PermissionsExt, path::Path};
use tempfile::TempDir;

fn options(directory: &Path) -> HistoryOptions {
    let (age, boot_id) = (Duration::from_secs(7 * 86_400), "b1".into());
    HistoryOptions {
        directory: Some(directory.into()),
        age,
        bytes: 4 << 20,
        boot_id,
        exports: true,
    }
}

/// Once the one before has closed it.
fn open(options: HistoryOptions) -> (History, Vec<KeptLeak>) {
    History::open(options).unwrap()
}

/// A report that ended just now.
fn report(name: &str) -> Box<PodTermination> {
    let mut report = samples::of("shop", name, name, 1);
    let moved = clock::boot_now().0.wrapping_sub(report.ended.boot.0);
    for at in [&mut report.began, &mut report.ended] {
        *at = Moment::of_boot(BootTime(at.boot.0.wrapping_add(moved)), &clock::anchor());
    }
    Box::new(report)
}

fn death(name: &str) -> Box<ContainerDeath> {
    let mut death = samples::graceful().containers.remove(0);
    (death.id, death.name) = (name.into(), name.into());
    Box::new(death)
}

fn leak(id: &str) -> Arc<Leak> {
    Arc::new(Leak { key: LeakKey::Sandbox { id: id.into() }, ..samples::leaked() })
}

async fn selected(history: &History, filter: Filter) -> Selected {
    history.select(Kind::Termination, filter, clock::anchor()).await.unwrap()
}

async fn names(history: &History, filter: Filter) -> Vec<String> {
    let ids = selected(history, filter).await.ids;
    let stored = history.stored(ids).await.unwrap();
    stored.iter().map(|one| one.read::<PodTermination>().unwrap().pod.name).collect()
}

#[tokio::test]
async fn it_goes_on_where_the_last_run_ended() {
    let folder = TempDir::new().unwrap();
    let state = folder.path().join("made");
    let (history, leaks) = open(options(&state));
    assert_eq!(leaks, []);
    history.terminated(report("a"), true);
    history.terminated(report("b"), false);
    history.died(death("c"), true);
    history.leak_opened(leak("posted"), true);
    history.leak_opened(leak("open"), false);
    history.leak_opened(leak("over"), false);
    let now = Moment::of_boot(clock::boot_now(), &clock::anchor());
    let resolved_at = Some(now);
    history.leak_resolved(Arc::new(Leak { resolved_at, ..Leak::clone(&leak("over")) }));
    let unsent = history.unsent(9).await;
    assert_eq!(unsent.len(), 2, "what is final");
    assert!(history.sent(vec![unsent[0].id]).await);
    let cursor = selected(&history, Filter::default()).await.cursor;
    let directory = state.join(FOLDER);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    for file in fs::read_dir(&directory).unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
    }
    let busy = History::open(options(&state)).unwrap_err();
    assert!(format!("{busy:#}").contains("no other agent"), "{busy:#}");
    history.end().await;

    let (history, leaks) = open(options(&state));
    let kept: Vec<_> = leaks.iter().map(|kept| (&kept.leak.key, kept.is_posted)).collect();
    assert_eq!(kept, [(&leak("open").key, false), (&leak("posted").key, true)]);
    assert_eq!(leaks[0].leak.first_observed, leak("").first_observed.boot);
    assert_eq!(names(&history, Filter::default()).await, ["b", "a"]);
    let after = |cursor: &String| Filter { after: Some(cursor.clone()), ..Filter::default() };
    let nothing = selected(&history, after(&cursor)).await;
    assert!(nothing.ids.is_empty() && !nothing.is_complete, "the cursor is still good");
    let due: Vec<_> = history.unsent(9).await.into_iter().map(|unsent| unsent.item).collect();
    assert!(
        matches!(&due[..], [Kept::Termination(b), Kept::Death(_)] if b.pod.name == "b"),
        "{due:?}"
    );
    history.leaks_gone(vec![leak("open").key.clone()]);
    history.end().await;

    let boot_id = "b2".into();
    let (history, leaks) = open(HistoryOptions { boot_id, ..options(&state) });
    assert_eq!(leaks, [], "leaks of another boot are gone with it");
    assert_eq!(names(&history, Filter::default()).await.len(), 2);
    let gone = history.select(Kind::Leak, Filter::default(), clock::anchor()).await.unwrap();
    let gone = history.stored(gone.ids).await.unwrap();
    assert_eq!(gone.len(), 3);
    let ended = |one: &Stored| one.ended.is_some_and(|ended| ended.time >= now.time);
    assert!(gone.iter().all(ended), "also those that were not there any more");
}

#[tokio::test]
async fn a_static_pod_that_comes_back_after_a_restart_is_another_termination() {
    let history = History::in_memory();
    let first = report("static");
    let mut next = first.clone();
    (next.began, next.ended) = (report("").ended, report("").ended);
    for report in [&first, &first, &next, &next] {
        history.terminated(report.clone(), true);
    }
    assert_eq!(names(&history, Filter::default()).await.len(), 2);
}

#[tokio::test]
async fn a_later_report_replaces_the_first() {
    let history = History::in_memory();
    history.terminated(report("a"), false);
    history.terminated(report("b"), false);
    let first = selected(&history, Filter::default()).await;
    let mut corrected = report("a");
    corrected.grace_seconds = Some(99);
    history.terminated(corrected.clone(), true);
    history.terminated(corrected, true);
    let after = Filter { after: Some(first.cursor), ..Filter::default() };
    let changed = selected(&history, after).await;
    let stored = history.stored(changed.ids).await.unwrap();
    assert_eq!(stored.len(), 1, "the same is no change");
    assert_eq!(stored[0].read::<PodTermination>().unwrap().grace_seconds, Some(99));
    assert_eq!(selected(&history, Filter::default()).await.ids.len(), 2);
    assert_eq!(history.unsent_count().await, 0, "without an exporter nothing is due");
}

#[tokio::test]
async fn the_oldest_makes_room() {
    let folder = TempDir::new().unwrap();
    let (history, _) = open(HistoryOptions { bytes: 1 << 20, ..options(folder.path()) });
    history.leak_opened(leak("open"), false);
    for number in 0..1200 {
        history.terminated(report(&number.to_string()), true);
        if number % 100 == 0 {
            history.flush().await;
        }
    }
    let all = names(&history, Filter::default()).await;
    assert!(all.len() > 100 && all.len() < 1200, "{}", all.len());
    assert_eq!(all[0], "1199");
    assert_eq!(
        all.last().unwrap(),
        &(1200 - all.len()).to_string(),
        "the newest are there, without a gap"
    );
    assert_eq!(history.faults()[&Fault::NotExported], 1200 - all.len() as u64);
    let files = fs::read_dir(folder.path().join(FOLDER)).unwrap();
    let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes <= 1 << 20, "{bytes}");
    history.end().await;
    let age = Duration::from_nanos(1);
    let (history, leaks) = open(HistoryOptions { age, ..options(folder.path()) });
    assert_eq!(names(&history, Filter::default()).await, [""; 0], "too old");
    assert_eq!(leaks.len(), 1, "a leak that exists is not");
}

#[tokio::test]
async fn what_is_not_a_history_of_this_version_is_set_aside() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join(FOLDER).join(FILE);
    open(options(folder.path())).0.end().await;
    let newer = "PRAGMA user_version = 2";
    rusqlite::Connection::open(&file).unwrap().execute_batch(newer).unwrap();
    for content in [None, Some("not a database at all".repeat(999))] {
        if let Some(content) = content {
            fs::write(&file, content).unwrap();
        }
        let before = fs::read(&file).unwrap();
        let (history, _) = open(options(folder.path()));
        history.terminated(report("a"), true);
        assert_eq!(names(&history, Filter::default()).await, ["a"]);
        assert_eq!(history.faults()[&Fault::SetAside], 1);
        let aside = fs::read(file.with_extension("db.bad")).unwrap();
        assert_eq!((aside.len(), &aside[..16]), (before.len(), &before[..16]));
        history.end().await;
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_left_out_and_counted() {
    let folder = TempDir::new().unwrap();
    let (history, _) = open(options(folder.path()));
    history.terminated(report("a"), true);
    history.terminated(report("b"), true);
    history.until_due().await; // stored without being asked for
    history.end().await;
    let file = folder.path().join(FOLDER).join(FILE);
    let spoil = "UPDATE reports SET report = x'00' WHERE id = (SELECT min(id) FROM reports)";
    rusqlite::Connection::open(&file).unwrap().execute_batch(spoil).unwrap();
    let (history, _) = open(options(folder.path()));
    let unsent = history.unsent(9).await;
    assert!(
        matches!(&unsent[..], [Unsent { item: Kept::Termination(b), .. }] if b.pod.name == "b"),
        "{unsent:?}"
    );
    assert_eq!((history.faults()[&Fault::Unreadable], history.unsent_count().await), (1, 1));
}

#[tokio::test]
async fn a_database_that_becomes_corrupt_is_set_aside() {
    let folder = TempDir::new().unwrap();
    let (history, _) = open(options(folder.path()));
    for number in 0..800 {
        // The more pages, the fewer are in SQLite's cache.
        history.terminated(report(&number.to_string()), true);
        if number % 50 == 0 {
            history.flush().await;
        }
    }
    let directory = folder.path().join(FOLDER);
    for file in [FILE.to_owned(), format!("{FILE}-wal")] {
        let file = directory.join(file);
        let length = fs::metadata(&file).unwrap().len();
        fs::write(&file, vec![0xff; usize::try_from(length).unwrap()]).unwrap();
    }
    let found = async {
        let found = history.select(Kind::Termination, Filter::default(), clock::anchor()).await?;
        history.stored(found.ids).await
    };
    assert!(found.await.unwrap_err().contains("malformed"));
    history.terminated(report("new"), true);
    assert_eq!(names(&history, Filter::default()).await, ["new"]);
    assert_eq!(history.faults()[&Fault::SetAside], 1);
    assert!(directory.join(format!("{FILE}.bad")).exists());
}

#[tokio::test]
async fn who_asks_and_does_not_wait_keeps_nobody_waiting() {
    let history = History::in_memory();
    let (release, held) = mpsc::channel::<()>();
    let mut first = std::pin::pin!(history.ask(move |_| Ok(held.recv().is_err())));
    let _ = futures::poll!(first.as_mut());
    let asked = Arc::new(AtomicU64::new(0));
    for _ in 0..9 {
        let asked = Arc::clone(&asked);
        let ask = history.ask(move |_| Ok(asked.fetch_add(1, Relaxed)));
        let _ = futures::poll!(std::pin::pin!(ask));
    }
    drop(release);
    assert_eq!(first.await, Ok(true));
    history.flush().await;
    assert_eq!(asked.load(Relaxed), 0);
}
