//! Allocate memory for very many connections on huge pages, which makes page faults rarer and lookups cheaper.

use std::sync::OnceLock;

/// Allocate room for `count` items, on huge pages if the system has any.
#[must_use]
pub fn allocate_on_huge_pages<T>(count: usize) -> Vec<T> {
    let mut room: Vec<T> = Vec::with_capacity(count);
    let (page, start) = (read_page_size(), room.as_mut_ptr() as usize);
    let first = start.next_multiple_of(page);
    let end = (start + room.capacity() * size_of::<T>()) / page * page;
    if first < end {
        // SAFETY: the range lies inside the vector's own room, and the advice never changes what memory holds. If it
        // fails, accesses are slower, nothing else.
        unsafe { libc::madvise(first as *mut _, end - first, libc::MADV_HUGEPAGE) };
    }
    room
}

/// Return the size of a page.
pub(crate) fn read_page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    // SAFETY: only reads a number.
    *SIZE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize)
}
