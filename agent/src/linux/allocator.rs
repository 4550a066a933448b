//! Keeps the resident memory small: configures the allocator and returns free memory to the kernel.

/// Configures the allocator for a long-lived process that is single-threaded except for blocking calls. Must be
/// called before other threads start.
///
/// glibc's defaults favour speed: each thread has an arena, which keeps free memory below its last used chunk,
/// and the mmap threshold grows to the size of the largest freed chunk (a list of the runtime). With the
/// defaults the agent kept more free memory than it used.
pub(crate) fn configure_allocator() {
    #[cfg(target_env = "gnu")]
    {
        /// glibc's initial value, which it raises dynamically unless the value is set.
        const LARGE: libc::c_int = 128 << 10;
        // SAFETY: mallopt(3) has no preconditions while there is one thread.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
            libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
        }
    }
}

/// Returns free memory to the kernel. Otherwise the allocator would keep the memory of a peak (the kernel's BTF
/// at the start, a list of thousands of sandboxes). Takes some milliseconds.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) is MT-safe and has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Also drops the program's read-only pages. The kernel maps 64 KiB around each touched page, and most of them
/// were needed only at the start (command line, BTF, kubeconfig). Pages in use are mapped again from the page
/// cache.
pub(crate) fn drop_startup_pages() {
    trim_heap();
    // SAFETY: the callback takes what dl_iterate_phdr(3) gives it, and nothing else.
    unsafe { libc::dl_iterate_phdr(Some(advise_dontneed), std::ptr::null_mut()) };
}

/// Drops the read-only segments of the first object, which is the program itself.
unsafe extern "C" fn advise_dontneed(
    object: *mut libc::dl_phdr_info,
    _: libc::size_t,
    _: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: valid for the length of this call, dl_iterate_phdr(3).
    let object = unsafe { &*object };
    if !object.dlpi_phdr.is_null() {
        // SAFETY: dlpi_phnum headers are valid while the object is loaded.
        let headers =
            unsafe { std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
        let page = rustix::param::page_size();
        for header in headers {
            if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
                continue;
            }
            let Some((start, length)) = whole_pages(
                object.dlpi_addr as usize,
                header.p_vaddr as usize,
                header.p_filesz as usize,
                page,
            ) else {
                continue;
            };
            // SAFETY: a private mapping of a file that was never writable: what it shows after
            // this is what it showed before. A refusal changes nothing.
            unsafe {
                libc::madvise(
                    std::ptr::with_exposed_provenance_mut(start),
                    length,
                    libc::MADV_DONTNEED,
                )
            };
        }
    }
    1 // what follows are libraries, which are small
}

/// The pages that lie wholly in a segment: their address and length in bytes.
fn whole_pages(base: usize, address: usize, size: usize, page: usize) -> Option<(usize, usize)> {
    let start = base.checked_add(address)?;
    let end = start.checked_add(size)?;
    let (start, end) = (start.checked_next_multiple_of(page)?, end - end % page);
    (start < end).then(|| (start, end - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages() {
        assert_eq!(whole_pages(0x1000, 0x10, 0x3000, 0x1000), Some((0x2000, 0x2000)));
        assert_eq!(whole_pages(0x1000, 0, 0x2000, 0x1000), Some((0x1000, 0x2000)));
        assert_eq!(whole_pages(0x1000, 0x10, 0x1000, 0x1000), None);
        assert_eq!(whole_pages(usize::MAX, 1, 1, 0x1000), None);
    }
}
