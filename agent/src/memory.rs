//! What was needed for a moment, given back.

/// What a passing need took (the kernel's BTF at the start, a list of thousands of sandboxes) would
/// stay in the allocator's pools for the rest of a long life. Takes some milliseconds.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) is MT-safe and has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}
