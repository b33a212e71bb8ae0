//! Starts a program with as little work as possible between the time stamp and the program's first instruction.
//!
//! `clone(CLONE_VM | CLONE_VFORK)` on a separate stack, like glibc's `posix_spawn`, but it also sets the user, the
//! groups and the controlling terminal, and omits the 64 signal calls: the agent keeps every disposition at its default
//! (see `sys::reset_and_block_signals`), so the child only has to unblock the signals.

use std::ffi::{c_void, CString};
use std::io;
use std::os::fd::RawFd;

use crate::sys;

/// The step in which the start of a program failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Creating the process.
    Clone,
    /// Session, terminal, descriptors.
    Setup,
    /// Entering the working directory.
    Chdir,
    /// Becoming the user.
    Credentials,
    /// Executing the file.
    Exec,
}

/// A program ready to be started.
pub struct Command {
    /// Files to try, in order; the first one that the kernel accepts is executed.
    pub files: Vec<CString>,
    /// Arguments.
    pub argv: Vec<CString>,
    /// Environment.
    pub env: Vec<CString>,
    /// Working directory.
    pub cwd: Option<CString>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Supplementary groups.
    pub groups: Option<Vec<u32>>,
    /// Standard descriptors, all above 2; `None` inherits ours.
    pub stdio: Option<[RawFd; 3]>,
    /// Whether the standard input becomes the controlling terminal.
    pub terminal: bool,
}

struct Plan<'a> {
    command: &'a Command,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    parent: libc::pid_t,
    step: Step,
    errno: libc::c_int,
}

const STACK: usize = 64 << 10;

impl Command {
    /// Starts the program in a session of its own; returns its process id and the `CLOCK_MONOTONIC` right before. The
    /// program is killed when the agent exits.
    pub fn spawn(&self) -> Result<(libc::pid_t, u64), (Step, io::Error)> {
        let pointers = |strings: &[CString]| {
            strings
                .iter()
                .map(|s| s.as_ptr())
                .chain([std::ptr::null()])
                .collect::<Vec<_>>()
        };
        let mut plan = Plan {
            command: self,
            argv: pointers(&self.argv),
            env: pointers(&self.env),
            parent: std::process::id() as libc::pid_t,
            step: Step::Clone,
            errno: 0,
        };
        let mut stack = Vec::<u128>::with_capacity(STACK / size_of::<u128>());
        // Touch the code that the start needs before reading the clock, so that fetching it is not measured.
        sys::leave_program_text(&[
            run_child as *const u8,
            prepare_and_exec as *const u8,
            libc::clone as *const u8,
            libc::setsid as *const u8,
            libc::dup2 as *const u8,
            libc::prctl as *const u8,
            libc::sigprocmask as *const u8,
            libc::execve as *const u8,
            libc::poll as *const u8,
            libc::wait4 as *const u8,
        ]);
        // This also resets the peak resident set size.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the end of an allocation is a valid pointer to compute.
        let top = unsafe { stack.as_mut_ptr().add(stack.capacity()) };
        let started_ns = sys::monotonic_ns();
        // SAFETY: CLONE_VFORK suspends us until the child has exec'ed or exited, so `stack` and `plan` outlive it and
        // nothing else runs in this memory; all signals are blocked, so no handler can.
        let pid = unsafe { libc::clone(run_child, top.cast(), flags, (&raw mut plan).cast()) };
        if pid < 0 {
            return Err((Step::Clone, io::Error::last_os_error()));
        }
        if plan.errno == 0 {
            return Ok((pid, started_ns));
        }
        // SAFETY: waits for the child that has just failed; no status is wanted.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) };
        Err((plan.step, io::Error::from_raw_os_error(plan.errno)))
    }
}

/// Runs the child: only system calls, no allocation, no panic.
extern "C" fn run_child(plan: *mut c_void) -> libc::c_int {
    // SAFETY: `spawn` passes its plan and waits while we use it.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    // SAFETY: we are the child of `spawn`.
    unsafe { prepare_and_exec(plan) };
    // SAFETY: reads this thread's error number.
    plan.errno = unsafe { *libc::__errno_location() };
    127
}

/// Sets the process up and executes the program. Returns only on failure, with `errno` set and the failed step in
/// `plan.step`.
unsafe fn prepare_and_exec(plan: &mut Plan<'_>) -> Option<()> {
    let ok = |value: libc::c_int| (value >= 0).then_some(());
    let command = plan.command;
    plan.step = Step::Setup;
    // SAFETY: system calls on numbers.
    unsafe {
        ok(libc::setsid())?;
        if let Some(stdio) = &command.stdio {
            for (target, &fd) in stdio.iter().enumerate() {
                ok(libc::dup2(fd, target as RawFd))?;
            }
        }
        if command.terminal {
            ok(libc::ioctl(0, libc::TIOCSCTTY, 0))?;
        }
    }
    plan.step = Step::Credentials;
    // Use raw system calls: glibc's wrappers would change other threads too. SAFETY: system calls on numbers and a live
    // vector.
    unsafe {
        if let Some(groups) = &command.groups {
            ok(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) as libc::c_int)?;
        }
        if let Some(gid) = command.gid {
            ok(libc::syscall(libc::SYS_setresgid, gid, gid, gid) as libc::c_int)?;
        }
        if let Some(uid) = command.uid {
            ok(libc::syscall(libc::SYS_setresuid, uid, uid, uid) as libc::c_int)?;
        }
    }
    if let Some(cwd) = &command.cwd {
        plan.step = Step::Chdir;
        // SAFETY: a live C string.
        ok(unsafe { libc::chdir(cwd.as_ptr()) })?;
    }
    plan.step = Step::Setup;
    // Set this after the change of user, which would clear it. If the agent has died before, there is no notification.
    // SAFETY: system calls on numbers; the set is initialised by sigemptyset and is valid when all zero.
    unsafe {
        ok(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0))?;
        if libc::getppid() != plan.parent {
            libc::_exit(127);
        }
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        ok(libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const none,
            std::ptr::null_mut(),
        ))?;
    }
    plan.step = Step::Exec;
    let mut denied = false;
    for file in &command.files {
        // SAFETY: live C strings and null-terminated vectors of such. On success this does not return.
        unsafe { libc::execve(file.as_ptr(), plan.argv.as_ptr(), plan.env.as_ptr()) };
        // SAFETY: reads this thread's error number.
        match unsafe { *libc::__errno_location() } {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR => {}
            _ => return None,
        }
    }
    // SAFETY: sets this thread's error number.
    unsafe { *libc::__errno_location() = if denied { libc::EACCES } else { libc::ENOENT } };
    None
}

/// Lists the files that `execvp` would try for `name` in `cwd`: `name` itself if it contains a slash, or else those in
/// the directories of `path`. Paths that are not files are left out.
pub fn list_candidates(name: &[u8], path: Option<&[u8]>, cwd: Option<&[u8]>) -> Vec<Vec<u8>> {
    if name.is_empty() {
        return Vec::new();
    }
    if name.contains(&b'/') {
        return vec![name.to_vec()];
    }
    let path = path.unwrap_or(b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    path.split(|&byte| byte == b':')
        .map(|directory| {
            if directory.is_empty() {
                b".".as_slice()
            } else {
                directory
            }
        })
        .map(|directory| [directory, b"/", name].concat())
        .filter(|file| is_file(&resolve_within(cwd, file)))
        .collect()
}

/// Resolves `file` relative to `cwd`.
pub fn resolve_within(cwd: Option<&[u8]>, file: &[u8]) -> Vec<u8> {
    match cwd {
        Some(cwd) if !file.starts_with(b"/") => [cwd, b"/", file].concat(),
        _ => file.to_vec(),
    }
}

/// Whether `file` is a regular file.
pub fn is_file(file: &[u8]) -> bool {
    use std::os::unix::ffi::OsStrExt;
    std::fs::metadata(std::ffi::OsStr::from_bytes(file)).is_ok_and(|data| data.is_file())
}
