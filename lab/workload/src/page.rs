//! A page of memory that a container and its observer share, through a file on tmpfs that is
//! mounted into the container. What stands in it survives the death of the one who wrote it, to
//! the last store: that is what makes it a truth about the moment of death.
//!
//! All times are nanoseconds of CLOCK_BOOTTIME; 0 is "not yet".

use std::{
    fs::File,
    io,
    mem::MaybeUninit,
    ops::Deref,
    os::fd::AsRawFd as _,
    path::Path,
    ptr::{self, NonNull},
    sync::atomic::AtomicU64,
};

/// Bytes of the file.
pub const SIZE: usize = 4096;

/// What stands in the page. Each word has one writer.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Page {
    /// Workload: its handlers are in place.
    pub ready: AtomicU64,
    /// Workload: the last heartbeat. Read from the clock before it is stored, so that the process
    /// certainly lived at that time.
    pub beat: AtomicU64,
    /// Workload: the heartbeat before that.
    pub beat_before: AtomicU64,
    /// Workload: the first thing that the stop signal's handler did.
    pub term: AtomicU64,
    /// Workload: a heartbeat that was certainly before the stop signal was sent.
    pub before_term: AtomicU64,
    /// Observer: from then on the heart beats fast, for the end is near.
    pub fast_from: AtomicU64,
    /// Observer: then the workload ends by itself.
    pub end_at: AtomicU64,
}

/// A page that is mapped into this process.
#[derive(Debug)]
pub struct Mapping {
    page: NonNull<Page>,
}

// SAFETY: the memory is the mapping's own until it is dropped, and all access is atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes the file, all zeros, and maps it.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        file.set_len(SIZE as u64)?;
        Self::of(&file)
    }

    /// Maps a file that somebody else made.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() < SIZE as u64 {
            return Err(io::Error::other("the page's file is too short"));
        }
        Self::of(&file)
    }

    fn of(file: &File) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice, backed by SIZE bytes.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                // Present from the beginning: a page fault is no part of a heartbeat.
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(address.cast()) {
            Some(page) if address != libc::MAP_FAILED => Ok(Self { page }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Deref for Mapping {
    type Target = Page;

    fn deref(&self) -> &Page {
        // SAFETY: mapped, page-aligned and long enough until dropped; every bit pattern is valid.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody can hold a reference into it any more.
        unsafe { libc::munmap(self.page.as_ptr().cast(), SIZE) };
    }
}

/// CLOCK_BOOTTIME now, ns. Async-signal-safe.
pub fn boot_now() -> u64 {
    clock(libc::CLOCK_BOOTTIME)
}

/// CLOCK_REALTIME now, ns since the epoch.
pub fn wall_now() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: room for the one timespec, which all zeros make valid.
    let now = unsafe {
        libc::clock_gettime(id, now.as_mut_ptr());
        now.assume_init()
    };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn two_mappings_of_a_file_are_one_page() {
        let path = std::env::temp_dir().join(format!("coroner-page-{}", std::process::id()));
        let ours = Mapping::create(&path).unwrap();
        let theirs = Mapping::open(&path).unwrap();
        assert!(Mapping::create(&path).is_err(), "an existing page is nobody's to take over");
        theirs.beat.store(7, Relaxed);
        drop(theirs);
        assert_eq!(ours.beat.load(Relaxed), 7, "it outlives the one who wrote it");
        std::fs::write(&path, b"short").unwrap();
        assert!(Mapping::open(&path).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
