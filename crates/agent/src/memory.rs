//! Allocates and touches memory, in the agent or in a child of it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use std::sync::Mutex;

use guestmark_wire::{Forked, Touched};

use crate::sys;

/// Address and size in bytes of the memory that the agent has touched.
static TAKEN: Mutex<Option<(usize, usize)>> = Mutex::new(None);

/// Bytes that a child sends when it starts to run, and when it has touched its memory.
const RUNS: u8 = 1;
const DONE: u8 = 2;

fn page_size() -> usize {
    // SAFETY: no arguments that could be wrong.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

fn count_faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the out pointer is valid; `rusage` is valid when all zero, should the call fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_minflt).unwrap_or(0)
}

fn round_to_pages(bytes: u64, page: usize) -> io::Result<usize> {
    usize::try_from(bytes)
        .ok()
        .and_then(|bytes| bytes.max(1).checked_next_multiple_of(page))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Maps private memory whose pages do not exist yet. Allocates nothing else.
fn map_memory(size: usize) -> io::Result<usize> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(start as usize)
}

/// Writes to each page of a mapping that [`map_memory`] created; returns the number of pages.
fn write_pages(start: usize, size: usize, page: usize) -> u64 {
    for at in (start..start + size).step_by(page) {
        // SAFETY: inside the mapping, which is nobody else's.
        unsafe { std::ptr::write_volatile(at as *mut u8, RUNS) };
    }
    (size / page) as u64
}

/// Allocates memory and writes to each page of it once. The memory is kept until the agent exits: a second call with
/// the same size writes to the same pages, and one with another size frees them first.
pub fn touch(bytes: u64) -> io::Result<Touched> {
    let page = page_size();
    let size = round_to_pages(bytes, page)?;
    let mut taken = TAKEN.lock().map_err(|_| io::Error::other("in use"))?;
    if let Some((start, old)) = taken.filter(|(_, old)| *old != size) {
        // SAFETY: a mapping of `map_memory`, which is forgotten.
        unsafe { libc::munmap(start as *mut libc::c_void, old) };
        *taken = None;
    }
    let before = count_faults();
    let started_ns = sys::monotonic_ns();
    let start = match *taken {
        Some((start, _)) => start,
        None => map_memory(size)?,
    };
    *taken = Some((start, size));
    let pages = write_pages(start, size, page);
    let ended_ns = sys::monotonic_ns();
    Ok(Touched {
        pages,
        faults: count_faults().saturating_sub(before),
        started_ns,
        ended_ns,
    })
}

/// Does the same in a child, which executes no other program and then exits.
pub fn touch_in_child(bytes: u64) -> io::Result<Forked> {
    let page = page_size();
    let size = round_to_pages(bytes, page)?;
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors, which are owned right away.
    let (from_child, to_parent) = unsafe {
        sys::check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    let asked_ns = sys::monotonic_ns();
    // SAFETY: the child only calls what may be called after a fork: it allocates nothing and takes no lock.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let first_ns = sys::monotonic_ns();
        let status = run_child(&to_parent, first_ns, size, page);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(status) };
    }
    let made_ns = sys::monotonic_ns();
    sys::check(child)?;
    drop(to_parent);
    let mut said = File::from(from_child);
    let result = read_reports(&mut said, asked_ns, made_ns);
    let mut status = 0;
    // SAFETY: the out pointer is valid.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    let mut found = result?;
    found.gone_ns = sys::monotonic_ns();
    Ok(found)
}

/// Runs the child; returns its exit status.
fn run_child(to_parent: &OwnedFd, first_ns: u64, size: usize, page: usize) -> libc::c_int {
    let mut first = [RUNS; 9];
    first[1..].copy_from_slice(&first_ns.to_le_bytes());
    if !write_all(to_parent, &first) {
        return 1;
    }
    let Ok(start) = map_memory(size) else {
        return 2;
    };
    let pages = write_pages(start, size, page);
    let mut last = [DONE; 9];
    last[1..].copy_from_slice(&pages.to_le_bytes());
    libc::c_int::from(!write_all(to_parent, &last))
}

fn write_all(to: &OwnedFd, bytes: &[u8]) -> bool {
    // SAFETY: the buffer is valid; so short a message is written to a pipe whole or not at all.
    let written = unsafe { libc::write(to.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(written).is_ok_and(|count| count == bytes.len())
}

fn read_reports(said: &mut File, asked_ns: u64, made_ns: u64) -> io::Result<Forked> {
    let (first_ns, answered_ns) = read_report(said, RUNS)?;
    let (pages, touched_ns) = read_report(said, DONE)?;
    Ok(Forked {
        asked_ns,
        made_ns,
        first_ns,
        answered_ns,
        touched_ns,
        gone_ns: touched_ns,
        pages,
    })
}

/// Reads the child's next report; returns the number in it, and when it arrived.
fn read_report(said: &mut File, word: u8) -> io::Result<(u64, u64)> {
    let mut message = [0; 9];
    said.read_exact(&mut message)
        .map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
    let now = sys::monotonic_ns();
    if message[0] != word {
        return Err(io::Error::from_raw_os_error(libc::EPROTO));
    }
    let mut number = [0; 8];
    number.copy_from_slice(&message[1..]);
    Ok((u64::from_le_bytes(number), now))
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_is_touched_page_by_page() {
        let found = super::touch(1 << 20).unwrap();
        assert_eq!(found.pages as usize, (1 << 20) / super::page_size());
        assert!(found.started_ns <= found.ended_ns);
        let again = super::touch(1 << 20).unwrap();
        assert_eq!(again.pages, found.pages);
        assert!(again.faults < found.faults.max(1));
    }

    #[test]
    fn a_child_takes_its_steps_in_order() {
        let found = super::touch_in_child(1 << 16).unwrap();
        let steps = [
            found.asked_ns,
            found.first_ns,
            found.answered_ns,
            found.touched_ns,
            found.gone_ns,
        ];
        assert!(steps.is_sorted(), "{steps:?}");
        assert!(found.made_ns >= found.asked_ns);
        assert_eq!(found.pages as usize, (1 << 16) / super::page_size());
    }

    #[test]
    fn more_memory_than_there_is_is_an_error() {
        assert!(super::touch(u64::MAX).is_err());
        assert!(super::touch_in_child(u64::MAX).is_err());
    }
}
