//! Makes system calls that neither `std` nor `rustix` provides in the form needed here.
//!
//! The agent has a single thread, apart from those of [`crate::bulk`], which only transfer data between files.

use std::ffi::{CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Turns a system call's return value into a result.
pub fn check(value: libc::c_int) -> io::Result<libc::c_int> {
    if value < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(value)
    }
}

/// Prefixes the error with what failed.
pub fn add_context(what: impl std::fmt::Display, error: &io::Error) -> io::Error {
    io::Error::other(format!("{what}: {error}"))
}

/// Adds the file's path to an error.
pub fn add_path(path: &OsStr, error: &io::Error) -> io::Error {
    let path = std::path::Path::new(path).display();
    io::Error::new(error.kind(), format!("{path}: {error}"))
}

/// Makes the error for a wrong command line: the usage of the agent's subcommand.
pub fn usage(how: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("usage: guestmark-agent {how}"),
    )
}

/// Converts a path or argument to a C string.
pub fn make_cstring(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Converts bytes to a path for `std`.
pub fn as_os_path(bytes: &[u8]) -> &OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

/// Returns the processor time of this process in user mode and in the kernel, in microseconds.
pub fn processor_time_us() -> (u64, u64) {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the out pointer is valid; `rusage` is valid when all zero, should the call fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (us(usage.ru_utime), us(usage.ru_stime))
}

/// Returns the processor time of all children that have ended and been waited for, in nanoseconds.
pub fn read_children_ns() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the out pointer is valid; `rusage` is valid when all zero, should the call fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// Returns the processor time of a process in nanoseconds.
pub fn read_process_cpu_ns(pid: libc::pid_t) -> io::Result<u64> {
    let mut clock = 0;
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both out pointers are valid.
    unsafe {
        match libc::clock_getcpuclockid(pid, &raw mut clock) {
            0 => check(libc::clock_gettime(clock, &raw mut now))?,
            error => return Err(io::Error::from_raw_os_error(error)),
        };
    }
    Ok(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Reads a clock, in nanoseconds.
pub fn clock_ns(clock: rustix::time::ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the number of online processors that the C library finds in `/sys`, in `/proc/stat`, or from the scheduler.
pub fn count_processors() -> u32 {
    // SAFETY: no arguments that could be wrong.
    let found = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u32::try_from(found).unwrap_or(1).max(1)
}

/// Reads `CLOCK_MONOTONIC`, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock_ns(rustix::time::ClockId::Monotonic)
}

/// Waits until one of `fds` is ready or `timeout` is over; after an interruption by a signal, none is ready.
pub fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs() as libc::time_t,
        // Below 10^9; `tv_nsec` is a 32-bit `long` on some architectures.
        tv_nsec: i32::try_from(t.subsec_nanos()).unwrap_or_default().into(),
    });
    let timeout = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `fds` and `timeout` outlive the call; a null signal mask leaves the mask alone.
    let ready = unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            timeout,
            std::ptr::null(),
        )
    };
    match check(ready) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            for fd in fds {
                fd.revents = 0;
            }
            Ok(())
        }
        other => other.map(drop),
    }
}

/// Repeats `call` while signals interrupt it; returns `None` if it would block.
fn transfer(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<Option<usize>> {
    loop {
        let count = call();
        if count >= 0 {
            return Ok(Some(count as usize));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(error),
        }
    }
}

/// Reads into `buffer`; returns `None` if nothing is available yet.
pub fn read(fd: RawFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`.
    transfer(|| unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) })
}

/// Writes from `buffer`; returns `None` if nothing can be accepted now.
pub fn write(fd: RawFd, buffer: &[u8]) -> io::Result<Option<usize>> {
    // SAFETY: the kernel reads at most `buffer.len()` bytes from `buffer`.
    transfer(|| unsafe { libc::write(fd, buffer.as_ptr().cast(), buffer.len()) })
}

/// Makes `fd` non-blocking.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(
        fd,
        flags | rustix::fs::OFlags::NONBLOCK,
    )?)
}

/// Creates a pipe (read end, write end), closed on exec.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds: [RawFd; 2] = [-1; 2];
    // SAFETY: `fds` has room for two descriptors.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: the kernel has just made both and nobody else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Duplicates `fd` above the standard descriptors, closed on exec.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: plain system call on a number.
    let copy = check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) })?;
    // SAFETY: the kernel has just made it and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Makes `fd` the descriptor number `as_fd`, inherited on exec.
pub fn duplicate_onto(fd: BorrowedFd<'_>, as_fd: RawFd) -> io::Result<()> {
    // SAFETY: plain system call on numbers; callers pass standard descriptors, which nothing in Rust owns.
    check(unsafe { libc::dup2(fd.as_raw_fd(), as_fd) }).map(drop)
}

/// Marks every descriptor from 3 up to be closed on exec, so that programs inherit none that our parent leaked.
pub fn close_inherited_on_exec() {
    // SAFETY: changes flags only. Kernels before 5.11 refuse the call, and programs then inherit those descriptors.
    unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 4_u32) };
}

/// Forks into new namespaces (`CLONE_NEW…`): returns 0 in the child, and the child's process id in the parent, which
/// stays in its namespaces.
///
/// The caller must be single-threaded. The C library's `clone` is not used because it needs a stack and a function, nor
/// is `clone3`, which the filters of older container runtimes refuse.
pub fn fork_into(namespaces: libc::c_int) -> io::Result<libc::pid_t> {
    require_copies_return_twice()?;
    let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
    // `CONFIG_CLONE_BACKWARDS2` of the kernel: the stack comes first.
    let (first, second): (libc::c_long, libc::c_long) = if cfg!(target_arch = "s390x") {
        (0, flags)
    } else {
        (flags, 0)
    };
    let none: libc::c_long = 0;
    // SAFETY: without a stack of its own the child continues as a copy of this single-threaded process.
    let pid = unsafe { libc::syscall(libc::SYS_clone, first, second, none, none, none) };
    check(pid as libc::c_int)
}

/// Like [`fork_into`], but creates the child in a control group of version 2, given as an open directory.
pub fn fork_into_group(namespaces: libc::c_int, group: BorrowedFd<'_>) -> io::Result<libc::pid_t> {
    require_copies_return_twice()?;
    let arguments = CloneArguments {
        flags: namespaces as u64 | INTO_CGROUP,
        exit_signal: libc::SIGCHLD as u64,
        cgroup: group.as_raw_fd() as u64,
        ..CloneArguments::default()
    };
    let size = size_of::<CloneArguments>();
    // SAFETY: as for `fork_into`; the arguments outlive the call and have the given size.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size) };
    check(pid as libc::c_int)
}

/// Fails with `ENOSYS` on SPARC, where child and parent are distinguished by a second register, which `syscall` does
/// not return.
fn require_copies_return_twice() -> io::Result<()> {
    if cfg!(target_arch = "sparc64") {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    Ok(())
}

/// `struct clone_args` of `linux/sched.h` as of Linux 5.7; the libc crate has it for some targets only.
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// `CLONE_INTO_CGROUP` of `linux/sched.h`.
const INTO_CGROUP: u64 = 0x2_0000_0000;

/// Maps a user to root in the user namespace that this process has just created.
pub fn map_to_root(user: u32, group: u32) -> io::Result<()> {
    use std::fs::write;
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/gid_map", format!("0 {group} 1"))?;
    write("/proc/self/uid_map", format!("0 {user} 1"))
}

/// Makes orphaned descendants become our children.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: plain system call.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// Gives every signal its default disposition, blocks all of them and returns a descriptor that becomes readable when
/// one of `signals` is pending. Started programs get an empty signal mask, as after a fresh login.
pub fn reset_and_block_signals(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut wanted = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are initialised by sigfillset and sigemptyset before they are used; dispositions are set to
    // default only, so no handler of ours can ever run.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::sigfillset(all.as_mut_ptr());
        check(libc::sigprocmask(
            libc::SIG_SETMASK,
            all.as_ptr(),
            std::ptr::null_mut(),
        ))?;
        libc::sigemptyset(wanted.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(wanted.as_mut_ptr(), signal);
        }
        let fd = check(libc::signalfd(
            -1,
            wanted.as_ptr(),
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        ))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Takes one pending signal; returns its number.
pub fn take_signal(signals: BorrowedFd<'_>) -> Option<libc::c_int> {
    let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
    match read(signals.as_raw_fd(), &mut info) {
        Ok(Some(count)) if count == info.len() => {
            Some(u32::from_ne_bytes([info[0], info[1], info[2], info[3]]) as libc::c_int)
        }
        _ => None,
    }
}

/// Whether a process runs this very file, since any program can have our name.
pub fn is_this_program(pid: libc::pid_t) -> bool {
    use std::os::unix::fs::MetadataExt;
    let file = |name: &str| {
        std::fs::metadata(name)
            .ok()
            .map(|data| (data.dev(), data.ino()))
    };
    let own = file("/proc/self/exe");
    own.is_some() && file(&format!("/proc/{pid}/exe")) == own
}

/// Sends `signal` to a process, or to a group when `pid` is negative.
pub fn kill(pid: libc::pid_t, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: plain system call.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// A child that has ended: process id, wait status, resources.
pub struct Reaped {
    /// Its process id.
    pub pid: libc::pid_t,
    /// Status as of `wait(2)`.
    pub status: libc::c_int,
    /// Resources it and its waited-for children used.
    pub usage: libc::rusage,
}

/// Reaps one child that has ended, if there is one.
pub fn reap() -> Option<Reaped> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both out pointers are valid; `rusage` is valid when all zero.
    let (pid, usage) = unsafe {
        let pid = libc::wait4(
            -1,
            &raw mut status,
            libc::WNOHANG | libc::__WALL,
            usage.as_mut_ptr(),
        );
        (pid, usage.assume_init())
    };
    (pid > 0).then_some(Reaped { pid, status, usage })
}

/// Makes the allocator return freed memory to the kernel at once: memory used for a large output must not be part of
/// the resident set with which the next program starts.
pub fn release_freed_memory_eagerly() {
    // SAFETY: sets a tunable of the allocator.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10) };
}

extern "C" {
    /// Start of the program, defined by the linker.
    static __executable_start: u8;
    /// End of its instructions.
    static etext: u8;
}

/// Drops the memory of the agent's own instructions and constants, except for the pages of `needed`; pages that are
/// used again come back from the page cache. A started program inherits the peak resident set size of its process,
/// which is ours until the process executes the program: with our code it would exceed that of a small program.
pub fn leave_program_text(needed: &[*const u8]) {
    let page = rustix::param::page_size();
    let (begin, end) = (&raw const __executable_start, &raw const etext);
    let length = (end as usize - begin as usize) / page * page;
    // SAFETY: the range is mapped from the program's file and never written to, so that its content comes back.
    unsafe { libc::madvise(begin.cast_mut().cast(), length, libc::MADV_DONTNEED) };
    for place in needed {
        // SAFETY: callers pass addresses of functions.
        unsafe { place.read_volatile() };
    }
}

/// Whether an error means that the kernel lacks a feature or that the environment does not permit it.
pub fn is_unavailable(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ENOSYS
                | libc::EPERM
                | libc::EOPNOTSUPP
                | libc::EACCES
                | libc::ENOSPC
                | libc::EINVAL
        )
    )
}
