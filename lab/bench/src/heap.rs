//! What this process has allocated: counted by its allocator, only while somebody wants to know.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
};

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, with a count.
#[derive(Clone, Copy, Debug)]
pub struct Counting;

// SAFETY: each call is passed on as it came; the counts are of no consequence to it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size(), 0);
        // SAFETY: the caller keeps to this method's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, size, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        note(0, 0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn note(allocations: u64, more: usize, less: usize) {
    if COUNTING.load(Relaxed) {
        ALLOCATIONS.fetch_add(allocations, Relaxed);
        // No allocation is larger than isize::MAX.
        LIVE.fetch_add(more as i64 - less as i64, Relaxed);
    }
}

/// Counts for as long as it lives. One at a time.
#[derive(Debug)]
pub struct Count(());

impl Count {
    /// Begins at nothing.
    pub fn start() -> Self {
        ALLOCATIONS.store(0, Relaxed);
        LIVE.store(0, Relaxed);
        COUNTING.store(true, Relaxed);
        Self(())
    }

    /// Allocations since the beginning, those that only grew or shrank included.
    pub fn allocations(&self) -> u64 {
        ALLOCATIONS.load(Relaxed)
    }

    /// Bytes that were allocated since the beginning, less those that were freed.
    pub fn live(&self) -> i64 {
        LIVE.load(Relaxed)
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        COUNTING.store(false, Relaxed);
    }
}
