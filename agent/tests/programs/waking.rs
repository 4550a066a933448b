//! When the reader is woken. Nobody reads here: what would wake a reader is what wakes an epoll.

use crate::{
    actors::{Actor, Role},
    stage::{self, Pod, Session, with_cgroup2},
};
use aya::maps::loaded_maps;
use coroner::sources::kernel::KernelOptions;
use coroner_core::input::KernelFact;
use coroner_ebpf::{
    maps::{DETAIL, READ_PAUSE},
    record,
};
use libc::SIGHUP;
use rustix::event::{
    Timespec,
    epoll::{self, CreateFlags, EventData, EventFlags},
};
use std::{
    fs,
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Of each ring, where a page is not larger. Small, for a quarter of it must be filled within [`READ_PAUSE`], on
/// the slowest machine (one that is emulated).
const RING: u32 = 1 << 13;
/// Of a signal, in a ring: the kernel puts eight bytes before each record.
const RECORD: u32 = size_of::<record::Generate>() as u32 + 8;
/// The descriptor that this process has of a map of this name and size.
fn descriptor(name: &str, size: u32) -> BorrowedFd<'static> {
    let maps: Vec<u32> = loaded_maps()
        .flatten()
        .filter(|map| map.name_as_str() == Some(name) && map.max_entries() == size)
        .map(|map| map.id())
        .collect();
    let own = fs::read_dir("/proc/self/fdinfo").unwrap().flatten().find(|entry| {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let id = text.lines().find_map(|line| line.strip_prefix("map_id:"));
        id.is_some_and(|id| maps.contains(&id.trim().parse().unwrap()))
    });
    let own = own.unwrap().file_name().to_str().unwrap().parse().unwrap();
    // SAFETY: the kernel side has it open, and outlives what is done with it here.
    unsafe { BorrowedFd::borrow_raw(own) }
}

/// Woken since the last look: edges, for a ring in which something lies is always readable.
fn is_woken(epoll: &OwnedFd, timeout: Timespec) -> bool {
    let mut events = [MaybeUninit::uninit(); 1];
    !epoll::wait(epoll, &mut events, Some(&timeout)).unwrap().0.is_empty()
}

/// A moment: what wakes by an interrupt of its own CPU has done so long before.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// How long it is tried. The pause is a time, so only a run that takes less shows anything; on a busy
/// machine some take more.
const TRYING: Duration = Duration::from_secs(300);

#[test]
fn what_ends_nothing_wakes_once_in_a_while_and_at_a_quarter_of_its_ring() {
    with_cgroup2(|hierarchy| {
        let until = Instant::now() + TRYING;
        while !signals_wake(hierarchy) {
            let why = "never by the first in a long time, or it takes over";
            assert!(Instant::now() < until, "{why} {READ_PAUSE} ns");
        }
    });
}

/// False: the first did not wake, or it took longer than the pause and says nothing.
fn signals_wake(hierarchy: &Path) -> bool {
    let ring = RING.max(u32::try_from(rustix::param::page_size()).unwrap());
    let (few, more) = (ring / 8 / RECORD, ring / 4 / RECORD);
    let pause = Duration::from_nanos(READ_PAUSE);
    let kernel = stage::start(&KernelOptions { ring_bytes: ring, ..stage::options(hierarchy) });
    let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
    let edges = EventFlags::IN | EventFlags::ET;
    epoll::add(&epoll, descriptor(DETAIL, ring), EventData::new_u64(0), edges).unwrap();
    let pod = Pod::make(hierarchy);
    let role = Role { ignore: &[SIGHUP], ..Role::default() };
    let actor = Actor::start(&pod.container.path, role);
    let signal = |count| (0..count).for_each(|_| actor.kill(SIGHUP));
    // The pause after what has woken before this must be over. Longer does no harm.
    thread::sleep(2 * pause);
    is_woken(&epoll, Timespec::default()); // by what was there

    let began = Instant::now();
    signal(1);
    let by_first = is_woken(&epoll, MOMENT);
    signal(few);
    let by_few = is_woken(&epoll, MOMENT);
    signal(more);
    let by_more = is_woken(&epoll, MOMENT);
    // Another container on this machine may just have woken the reader.
    if began.elapsed() >= pause || !by_first {
        return false;
    }
    assert!(!by_few, "by {few} records after it");
    assert!(by_more, "by {few} and {more} records after it");

    let mut session = Session::run(hierarchy, kernel);
    session.settle();
    let about = session.about(pod.container.id);
    let told = about.iter().filter(|fact| matches!(fact, KernelFact::SignalGenerated(_))).count();
    assert_eq!(told as u32, 1 + few + more);
    session.assert_lossless();
    true
}
