//! The thread that writes: what it is given arrives, what it cannot write is counted and told.

use super::{NODES, header, live, reader};
use coroner::outputs::recording::Recorder;
use std::{
    io::{self, Write},
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);
const NO_LIMIT: u64 = u64::MAX;

/// A disk that can be stopped and looked at.
#[derive(Clone, Default)]
struct Disk {
    file: Arc<Mutex<Vec<u8>>>,
    stuck: Arc<(Mutex<bool>, Condvar)>,
}

impl Disk {
    fn stick(&self, stuck: bool) {
        *self.stuck.0.lock().unwrap() = stuck;
        self.stuck.1.notify_all();
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (stuck, changed) = &*self.stuck;
        drop(changed.wait_while(stuck.lock().unwrap(), |stuck| *stuck).unwrap());
        self.file.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A disk that is full after so many bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.checked_sub(bytes.len()) {
            Some(left) => {
                self.0 = left;
                Ok(bytes.len())
            }
            None => Err(io::Error::from(io::ErrorKind::StorageFull)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// More than fits into the queue before a disk that is stuck.
const WAITING: usize = 8192;

#[test]
fn a_stuck_disk_holds_nobody_up_and_what_it_cost_is_told() {
    let (anchor, inputs) = live(NODES[0]);
    let disk = Disk::default();
    disk.stick(true);
    let mut recorder = Recorder::start(disk.clone(), header(anchor), NO_LIMIT).unwrap();
    let given = inputs.iter().cycle().take(WAITING + 10);
    given.for_each(|input| recorder.record(input));
    disk.stick(false);
    recorder.end(PATIENCE);
    let file = disk.file.lock().unwrap().clone();
    let mut reader = reader(&file);
    assert!(reader.by_ref().zip(&inputs).all(|(read, given)| read == *given));
    reader.by_ref().for_each(drop);
    let status = reader.status();
    assert_eq!((status.inputs, status.dropped), (WAITING as u64, 10));
    assert!(!status.is_whole());
}

#[test]
fn a_full_disk_ends_the_recording_and_nothing_else() {
    let (anchor, inputs) = live(NODES[0]);
    for room in [0, 400] {
        let mut recorder = Recorder::start(Full(room), header(anchor), NO_LIMIT).unwrap();
        inputs.iter().for_each(|input| recorder.record(input));
        recorder.end(PATIENCE);
    }
}

#[test]
fn the_limit_ends_the_recording_with_a_word() {
    let (anchor, inputs) = live(NODES[0]);
    let disk = Disk::default();
    let mut recorder = Recorder::start(disk.clone(), header(anchor), 1).unwrap();
    inputs.iter().for_each(|input| recorder.record(input));
    recorder.end(PATIENCE);
    let file = disk.file.lock().unwrap().clone();
    let mut reader = reader(&file);
    assert!(reader.by_ref().count() < inputs.len());
    assert!(reader.status().to_string().contains("--record-limit"));
}
