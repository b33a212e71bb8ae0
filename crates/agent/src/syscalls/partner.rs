//! Implements operations that need two processes.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use super::operation::{read_byte, write_byte, Operation};
use crate::sys;

/// A child that is killed when it is no longer needed.
struct Child(libc::pid_t);

impl Child {
    /// Forks; the child runs `work` until it fails or is killed.
    fn start(work: impl Fn() -> io::Result<()>) -> io::Result<Self> {
        // SAFETY: the program has one thread, so the child may do anything.
        let pid = sys::check(unsafe { libc::fork() })?;
        if pid > 0 {
            return Ok(Self(pid));
        }
        // SAFETY: plain system calls; we are the child, and no exit handler of the parent must run.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            while work().is_ok() {}
            libc::_exit(0);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = sys::kill(self.0, libc::SIGKILL);
        // SAFETY: waits for our own child; no status is wanted.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// Sends one byte to another process through a pipe, and gets one back through another: four system calls, two context
/// switches.
pub struct Pipes {
    child: Child,
    to: OwnedFd,
    from: OwnedFd,
}

impl Pipes {
    /// Starts the other process.
    pub fn new() -> io::Result<Self> {
        let (theirs, to) = sys::pipe()?;
        let (from, back) = sys::pipe()?;
        let child = Child::start(|| {
            read_byte(theirs.as_raw_fd())?;
            write_byte(back.as_raw_fd())
        })?;
        Ok(Self { child, to, from })
    }
}

impl Operation for Pipes {
    fn once(&mut self) -> io::Result<()> {
        write_byte(self.to.as_raw_fd())?;
        read_byte(self.from.as_raw_fd())
    }
    fn partner(&self) -> Option<libc::pid_t> {
        Some(self.child.0)
    }
}

/// Passes control to the other process and back: changes a word in shared memory, wakes its waiter, and waits. One
/// operation is one of the two hand-overs: a wake, a wait and the context switch.
pub struct Futexes {
    child: Child,
    word: &'static AtomicU32,
}

const OURS: u32 = 0;
const THEIRS: u32 = 1;

impl Futexes {
    /// Starts the other process.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a new shared mapping, zero at first and never unmapped, holds nothing but this word.
        let word = unsafe {
            let address = libc::mmap(
                std::ptr::null_mut(),
                size_of::<AtomicU32>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_ANONYMOUS | libc::MAP_SHARED,
                -1,
                0,
            );
            if address == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            &*address.cast::<AtomicU32>()
        };
        let child = Child::start(|| {
            wait_while(word, OURS)?;
            hand_to(word, OURS)
        })?;
        Ok(Self { child, word })
    }
}

impl Operation for Futexes {
    const EACH: u64 = 2;

    /// Passes control there and back.
    fn once(&mut self) -> io::Result<()> {
        hand_to(self.word, THEIRS)?;
        wait_while(self.word, THEIRS)
    }
    fn partner(&self) -> Option<libc::pid_t> {
        Some(self.child.0)
    }
}

fn hand_to(word: &AtomicU32, whom: u32) -> io::Result<()> {
    word.store(whom, Ordering::Release);
    call_futex(word, libc::FUTEX_WAKE, 1)
}

fn wait_while(word: &AtomicU32, value: u32) -> io::Result<()> {
    while word.load(Ordering::Acquire) == value {
        match call_futex(word, libc::FUTEX_WAIT, value) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(())
}

fn call_futex(word: &AtomicU32, how: libc::c_int, value: u32) -> io::Result<()> {
    // SAFETY: the word lives as long as the call; there is no time limit.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            how,
            value,
            std::ptr::null::<libc::timespec>(),
        )
    };
    sys::check(result as libc::c_int).map(drop)
}
