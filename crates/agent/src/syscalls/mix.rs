//! Implements the operations of the mix. Each consists of one or a few frequent system calls, chosen so that only the
//! kernel, the processor and the hypervisor matter: no file of the shared root is used, since the cost of sharing is
//! not to be measured here.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::operation::{read_byte, write_byte, Operation};
use super::partner::{Futexes, Pipes};
use crate::sys;

/// An operation with its loop, which is compiled separately for each operation, so that one indirect call runs a whole
/// batch.
pub trait BatchedOperation {
    /// Runs that many iterations; returns the number of operations, and the nanoseconds from before the first to after
    /// the last.
    fn batch(&mut self, turns: u64) -> io::Result<(u64, u64)>;
    /// Returns [`Operation::partner`].
    fn partner(&self) -> Option<libc::pid_t>;
}

impl<T: Operation> BatchedOperation for T {
    fn batch(&mut self, turns: u64) -> io::Result<(u64, u64)> {
        let begin = sys::monotonic_ns();
        for turn in 0..turns {
            black_box(turn);
            self.once()?;
        }
        let took = sys::monotonic_ns() - begin;
        self.check(turns)?;
        Ok((turns * T::EACH, took))
    }

    fn partner(&self) -> Option<libc::pid_t> {
        Operation::partner(self)
    }
}

/// Does nothing, to measure the loop.
pub struct Nothing;

impl Operation for Nothing {
    fn once(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Make = fn() -> io::Result<Box<dyn BatchedOperation>>;

/// All operations in the order in which they are measured.
pub const ALL: &[(&str, Make)] = &[
    ("null", || Ok(Box::new(Null))),
    ("read", || Ok(Box::new(ReadByte(File::open("/dev/zero")?)))),
    ("write", || {
        Ok(Box::new(WriteByte(
            File::options().write(true).open("/dev/null")?,
        )))
    }),
    ("stat", || Ok(Box::new(Stat))),
    ("open", || Ok(Box::new(Open))),
    ("futex", || Ok(Box::new(Futex(0)))),
    ("signal", || Ok(Box::new(Signal::new()?))),
    ("mmap", || Ok(Box::new(Mmap::new()))),
    ("fault", || Ok(Box::new(Fault::new()?))),
    ("pipe", || Ok(Box::new(Pipes::new()?))),
    ("switch", || Ok(Box::new(Futexes::new()?))),
    ("exec", || Ok(Box::new(Exec(File::open("/proc/self/exe")?)))),
];

const DEVICE: &std::ffi::CStr = c"/dev/null";

/// `getppid`: into the kernel and back.
struct Null;

impl Operation for Null {
    fn once(&mut self) -> io::Result<()> {
        // SAFETY: plain system call.
        black_box(unsafe { libc::getppid() });
        Ok(())
    }
}

/// `read` of one byte from `/dev/zero`.
struct ReadByte(File);

impl Operation for ReadByte {
    fn once(&mut self) -> io::Result<()> {
        read_byte(self.0.as_raw_fd())
    }
}

/// `write` of one byte to `/dev/null`.
struct WriteByte(File);

impl Operation for WriteByte {
    fn once(&mut self) -> io::Result<()> {
        write_byte(self.0.as_raw_fd())
    }
}

/// `stat` of `/dev/null`.
struct Stat;

impl Operation for Stat {
    fn once(&mut self) -> io::Result<()> {
        let mut data = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: a live C string and room for the result.
        sys::check(unsafe { libc::stat(DEVICE.as_ptr(), data.as_mut_ptr()) }).map(drop)
    }
}

/// `open` and `close` of `/dev/null`.
struct Open;

impl Operation for Open {
    fn once(&mut self) -> io::Result<()> {
        // SAFETY: a live C string; the descriptor is ours and closed once.
        unsafe {
            let fd = sys::check(libc::open(
                DEVICE.as_ptr(),
                libc::O_RDONLY | libc::O_CLOEXEC,
            ))?;
            sys::check(libc::close(fd)).map(drop)
        }
    }
}

/// `FUTEX_WAKE` without a waiter.
struct Futex(u32);

impl Operation for Futex {
    fn once(&mut self) -> io::Result<()> {
        let how = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word lives as long as the call.
        let woken = unsafe { libc::syscall(libc::SYS_futex, &raw const self.0, how, 1) };
        sys::check(woken as libc::c_int).map(drop)
    }
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// A signal to ourselves and the return from its handler: `kill`, delivery, `sigreturn`.
struct Signal {
    own: libc::pid_t,
    handled: u64,
}

impl Signal {
    fn new() -> io::Result<Self> {
        // SAFETY: the action is plain data, valid when all zero; the handler only adds to an atomic.
        unsafe {
            let mut action = std::mem::zeroed::<libc::sigaction>();
            action.sa_sigaction = handler as extern "C" fn(libc::c_int) as libc::sighandler_t;
            sys::check(libc::sigaction(
                libc::SIGUSR1,
                &raw const action,
                std::ptr::null_mut(),
            ))?;
        }
        Ok(Self {
            own: std::process::id() as libc::pid_t,
            handled: 0,
        })
    }
}

impl Operation for Signal {
    fn once(&mut self) -> io::Result<()> {
        sys::kill(self.own, libc::SIGUSR1)
    }
    fn check(&mut self, turns: u64) -> io::Result<()> {
        self.handled += turns;
        if HANDLED.load(Ordering::Relaxed) == self.handled {
            Ok(())
        } else {
            Err(io::Error::other("signals were lost"))
        }
    }
}

const MAPPED: usize = 16; // pages

/// Maps anonymous memory that has not been touched.
fn map(length: usize, flags: libc::c_int) -> io::Result<*mut u8> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(address.cast())
}

/// `mmap` and `munmap` of 16 pages that nobody touches.
struct Mmap {
    length: usize,
}

impl Mmap {
    fn new() -> Self {
        Self {
            length: MAPPED * rustix::param::page_size(),
        }
    }
}

impl Operation for Mmap {
    fn once(&mut self) -> io::Result<()> {
        let address = map(self.length, libc::MAP_PRIVATE)?;
        // SAFETY: the mapping is ours and nothing points into it.
        sys::check(unsafe { libc::munmap(address.cast(), self.length) }).map(drop)
    }
}

const FAULTING: usize = 256;

/// First write to a page of anonymous memory. Every 256 writes include one `madvise` that frees the pages.
struct Fault {
    region: *mut u8,
    page: usize, // bytes: 8 KiB on sparc64, 64 KiB on ppc64el
    next: usize,
}

impl Fault {
    fn new() -> io::Result<Self> {
        let page = rustix::param::page_size();
        let region = map(FAULTING * page, libc::MAP_PRIVATE)?;
        // SAFETY: the region is ours. Kernels without huge pages refuse the advice and do not need it.
        unsafe { libc::madvise(region.cast(), FAULTING * page, libc::MADV_NOHUGEPAGE) };
        Ok(Self {
            region,
            page,
            next: 0,
        })
    }
}

impl Operation for Fault {
    fn once(&mut self) -> io::Result<()> {
        if self.next == FAULTING {
            self.next = 0;
            // SAFETY: the region is ours, and nobody relies on what it holds.
            sys::check(unsafe {
                libc::madvise(
                    self.region.cast(),
                    FAULTING * self.page,
                    libc::MADV_DONTNEED,
                )
            })?;
        }
        // SAFETY: inside of the region.
        unsafe { self.region.add(self.next * self.page).write_volatile(1) };
        self.next += 1;
        Ok(())
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing points into it any more.
        unsafe { libc::munmap(self.region.cast(), FAULTING * self.page) };
    }
}

/// `fork`, `exec` of this very program (which ends at once), `wait`. The program's pages are in memory, because it is
/// running.
struct Exec(File);

impl Operation for Exec {
    fn once(&mut self) -> io::Result<()> {
        let argv = [
            c"guestmark-agent".as_ptr(),
            c"nothing".as_ptr(),
            std::ptr::null(),
        ];
        let environment = [std::ptr::null::<libc::c_char>()];
        // SAFETY: the program has one thread, so the child may do anything; it only makes system calls. The vectors and
        // strings are live and end with a null.
        unsafe {
            let pid = sys::check(libc::fork())?;
            if pid == 0 {
                libc::syscall(
                    libc::SYS_execveat,
                    self.0.as_raw_fd(),
                    c"".as_ptr(),
                    argv.as_ptr(),
                    environment.as_ptr(),
                    libc::AT_EMPTY_PATH,
                );
                libc::_exit(127);
            }
            let mut status = 0;
            sys::check(libc::waitpid(pid, &raw mut status, 0))?;
            if status == 0 {
                Ok(())
            } else {
                Err(io::Error::other("the program could not be executed"))
            }
        }
    }
}
