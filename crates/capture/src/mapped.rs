//! Windows onto a file in the page cache, read without copying it.
//!
//! Most of a packet is never looked at, and copying all of it costs as much as everything else together. What makes maps
//! awkward is a file that is cut while it is read: touching what is gone is a signal (SIGBUS). Here the handler puts empty
//! pages in the place of the lost ones and says so in [`Window::is_cut`], and the reader makes an error of it.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::OnceLock;

/// How much is mapped at once: what a process maps counts as its memory, and every change of maps costs both its time.
pub const WINDOW: usize = 16 << 20;

thread_local! {
    /// Start and end of the window that this thread reads: the signal comes to whoever touched the page.
    static WATCHED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    static CUT: Cell<bool> = const { Cell::new(false) };
}

/// Part of a file.
#[derive(Debug)]
pub struct Window {
    start: *mut c_void,
    len: usize,
}

impl Window {
    /// Map `file` from `offset` on: at least `wanted` bytes where the file has them. Returns the window and the position of
    /// `offset` in it, `None` at the file's end. One at a time for each thread: otherwise an error.
    pub fn new(file: &File, offset: u64, wanted: usize) -> io::Result<Option<(Self, usize)>> {
        watch()?;
        let page = page_size();
        let before = (offset % page as u64) as usize;
        let left = file
            .metadata()?
            .len()
            .checked_sub(offset)
            .ok_or_else(cut_short)?;
        let len = before + (wanted.max(WINDOW) as u64).min(left) as usize;
        if WATCHED.get() != (0, 0) {
            return Err(io::Error::other("another file is mapped"));
        }
        if len == before {
            return Ok(None);
        }
        let at = libc::off_t::try_from(offset - before as u64).map_err(io::Error::other)?;
        // SAFETY: a new map at an address that the kernel chooses touches no memory of ours.
        let start = unsafe {
            let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
            libc::mmap(
                ptr::null_mut(),
                len,
                protection,
                flags,
                file.as_raw_fd(),
                at,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        WATCHED.set((start as usize, start as usize + len));
        CUT.set(false);
        Ok(Some((Self { start, len }, before)))
    }

    /// What is in it.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped at `start` as long as `self` lives; they are bytes, so whatever another process
        // writes to the file they stay valid, and pages that the file loses are replaced by the signal's handler.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len) }
    }

    /// The file is known to have lost bytes of the window.
    pub fn note_cut(&self) {
        CUT.set(true);
    }

    /// True when the file lost bytes of the window; they read as zero.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        CUT.get()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        WATCHED.set((0, 0));
        // SAFETY: the map is ours and nothing borrows from it any more.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// What is said of a file that has become shorter.
#[must_use]
pub fn cut_short() -> io::Error {
    io::Error::other("the file became shorter while it was read")
}

/// The size of a page.
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    // SAFETY: asks for a number.
    *SIZE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize)
}

static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Take SIGBUS, once.
fn watch() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    page_size();
    let mut before = MaybeUninit::uninit();
    // SAFETY: all-zero is a valid action; the handler is async-signal-safe (see there) and stays for the process's life;
    // `before` is read only when the call has filled it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGBUS, &raw const action, before.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        // A second thread that came first has the real one.
        let _ = BEFORE.set(before.assume_init());
    }
    Ok(())
}

/// Async-signal-safe: two initialised thread-locals without destructors, and system calls.
extern "C" fn on_bus_error(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel hands a valid `info`, and this signal has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let (start, end) = WATCHED.get();
    if (start..end).contains(&address) {
        let page = address / page_size() * page_size();
        // SAFETY: replaces pages of the window, whose bytes are gone, by empty ones.
        let replaced = unsafe {
            libc::mmap(
                page as *mut c_void,
                end - page,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if replaced != libc::MAP_FAILED {
            CUT.set(true);
            return;
        }
    }
    // Not ours: it happens again under the action of before.
    if let Some(before) = BEFORE.get() {
        // SAFETY: puts back what the kernel gave.
        unsafe { libc::sigaction(libc::SIGBUS, before, ptr::null_mut()) };
    }
}
