//! Puts a program, and everything it starts, into namespaces of its own: processes, mounts, message queues, names,
//! networks.
//!
//! A cage has three processes. The *outer* one stays in the caller's namespaces, waits, and exits with the program's
//! status. The *first* one is process 1 of the namespace; when it exits, the kernel kills everything that is left
//! inside. It exits when the outer process, the controller or the program does. The third becomes the program.
//!
//! Where namespaces are not available, the outer process is the program's parent and reaps the processes that the
//! program leaves behind.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::time::Duration;

use super::connections::Connections;
use super::gauge::Gauge;
use crate::reap;
use crate::sys::{self, check};

/// How long to wait for killed processes where no namespace ends them.
const PATIENCE: Duration = Duration::from_secs(10);
/// The first process reports that it could not create the cage; the program has not been started.
const UNAVAILABLE: u8 = b'u';
/// The first process reports that the program has ended; the wait status follows.
const ENDED: u8 = b'e';
/// The first process reports that it failed and has printed the reason; the exit status follows.
const FAILED: u8 = b'f';

/// The kinds of separation between the program and its host.
#[derive(Clone, Copy, Default)]
pub struct Namespaces {
    pub user: bool,
    pub network: bool,
}

impl Namespaces {
    fn flags(self) -> libc::c_int {
        let mut flags =
            libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        if self.user {
            flags |= libc::CLONE_NEWUSER;
        }
        if self.network {
            flags |= libc::CLONE_NEWNET;
        }
        flags
    }
}

/// The process in which the call returns.
pub enum EnteredAs {
    /// The first process of a cage.
    Inside(First),
    /// The outer one, after the program's end.
    Done(ExitCode),
    /// The original process: no cage can be created here.
    Outside,
}

/// The first process's two pipes to the outer one: one to report to it, and one that closes when it exits.
pub struct First {
    said: OwnedFd,
    outer: OwnedFd,
}

/// Creates the cage; returns in both processes. `lifeline` closes when the controller exits.
pub fn enter_namespaces(
    namespaces: Namespaces,
    lifeline: Option<&OwnedFd>,
) -> io::Result<EnteredAs> {
    let (uid, gid) = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let (hear, said) = sys::pipe()?;
    let (outer, ours) = sys::pipe()?;
    match sys::fork_into(namespaces.flags()) {
        Err(error) if sys::is_unavailable(&error) => Ok(EnteredAs::Outside),
        Err(error) => Err(error),
        Ok(0) => {
            drop((hear, ours));
            end_with_parent()?;
            // The outer process forwards the signals of its process group, so the program gets each of them once.
            rustix::process::setsid()?;
            if namespaces.user {
                std::fs::write("/proc/self/setgroups", "deny")?;
                std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
                std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
            }
            Ok(EnteredAs::Inside(First { said, outer }))
        }
        Ok(pid) => {
            drop((said, outer));
            wait_for_cage(pid, &hear, lifeline, ours)
        }
    }
}

fn end_with_parent() -> io::Result<()> {
    // SAFETY: plain system call.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) }).map(drop)
}

/// Waits for the end of the cage.
fn wait_for_cage(
    first: libc::pid_t,
    hear: &OwnedFd,
    lifeline: Option<&OwnedFd>,
    ours: OwnedFd,
) -> io::Result<EnteredAs> {
    let signals = sys::reset_and_block_signals(FORWARDED)?;
    let mut message = Vec::new();
    let mut killed = false;
    loop {
        let mut fds = make_poll_entries([
            Some(hear.as_raw_fd()),
            Some(signals.as_raw_fd()),
            lifeline.map(AsRawFd::as_raw_fd).filter(|_| !killed),
        ]);
        sys::poll(&mut fds, None)?;
        while let Some(signal) = sys::take_signal(signals.as_fd()) {
            let _ = sys::kill(first, signal);
        }
        if fds[2].revents != 0 && has_ended(lifeline) {
            killed = true;
            let _ = sys::kill(first, libc::SIGKILL);
        }
        if fds[0].revents != 0 {
            let mut buffer = [0; 8];
            match sys::read(hear.as_raw_fd(), &mut buffer) {
                Ok(Some(0)) | Err(_) => break,
                Ok(Some(count)) => message.extend(&buffer[..count]),
                Ok(None) => {}
            }
        }
    }
    drop(ours);
    let mut status = 0;
    // SAFETY: waits for our own child; the out pointer is valid.
    unsafe { libc::waitpid(first, &raw mut status, libc::__WALL) };
    if killed {
        end_stopped_parent();
    }
    let number = message
        .get(1..5)
        .and_then(|bytes| bytes.try_into().ok())
        .map(i32::from_ne_bytes);
    match (message.first(), number) {
        (Some(&UNAVAILABLE), _) => {
            unblock_signals()?;
            Ok(EnteredAs::Outside)
        }
        (Some(&FAILED), Some(code)) => Ok(EnteredAs::Done(ExitCode::from(code as u8))),
        (Some(&ENDED), Some(status)) => Ok(EnteredAs::Done(exit_like_child(status))),
        _ => Ok(EnteredAs::Done(exit_like_child(status))),
    }
}

/// Kills the parent if it is stopped: such a supervisor, and everything that it holds, would outlive the controller.
fn end_stopped_parent() {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if reap::Stat::of(parent).is_some_and(|stat| stat.stopped) && sys::is_this_program(parent) {
        let _ = sys::kill(parent, libc::SIGKILL);
    }
}

/// Whether the other end of a lifeline is closed. Bytes on it mean nothing.
fn has_ended(lifeline: Option<&OwnedFd>) -> bool {
    lifeline.is_some_and(|lifeline| {
        matches!(
            sys::read(lifeline.as_raw_fd(), &mut [0; 256]),
            Ok(Some(0)) | Err(_)
        )
    })
}

const FORWARDED: &[libc::c_int] = &[
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

fn unblock_signals() -> io::Result<()> {
    // SAFETY: the set is initialised by `sigemptyset`, and is valid when all zero.
    check(unsafe {
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    })
    .map(drop)
}

/// Ends this process the way its child ended: returns the same exit status, or kills this process by the same signal.
pub fn exit_like_child(status: libc::c_int) -> ExitCode {
    if libc::WIFEXITED(status) {
        return ExitCode::from(libc::WEXITSTATUS(status) as u8);
    }
    let signal = libc::WTERMSIG(status);
    let _ = unblock_signals();
    // SAFETY: plain system calls; the limit outlives its call. No second core is written for the same end.
    unsafe {
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::kill(libc::getpid(), signal);
    }
    ExitCode::from((128 + signal) as u8)
}

impl First {
    /// Reports that nothing can be mounted inside; the outer process then continues without a cage.
    pub fn give_up(&self) -> ! {
        self.report(UNAVAILABLE, 0);
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) }
    }

    /// Ends the cage after a failure that has been printed.
    pub fn fail(&self, status: u8) -> ! {
        self.report(FAILED, status.into());
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) }
    }

    fn report(&self, what: u8, number: i32) {
        let mut message = vec![what];
        message.extend(number.to_ne_bytes());
        let _ = sys::write(self.said.as_raw_fd(), &message);
    }

    /// Forks, and returns in the process that is to become the program. Process 1 stays here until the program ends; it
    /// answers the questions of `connections` and checks the `gauge`.
    pub fn fork(
        self,
        lifeline: Option<&OwnedFd>,
        mut connections: Option<Connections>,
        mut gauge: Option<Gauge>,
    ) -> io::Result<()> {
        let signals = sys::reset_and_block_signals(&[&[libc::SIGCHLD], FORWARDED].concat())?;
        // SAFETY: this process has a single thread.
        let pid = check(unsafe { libc::fork() })?;
        if pid == 0 {
            unblock_signals()?;
            return end_with_parent();
        }
        harden_first_process(connections.is_some())?;
        let mut lifeline = lifeline;
        loop {
            let pause = gauge.as_ref().and_then(Gauge::pause);
            let mut fds = make_poll_entries([
                Some(signals.as_raw_fd()),
                Some(self.outer.as_raw_fd()),
                lifeline.map(AsRawFd::as_raw_fd),
                connections.as_ref().and_then(Connections::descriptor),
            ]);
            sys::poll(&mut fds, pause)?;
            if let Some(gauge) = gauge.as_mut() {
                gauge.check();
            }
            while let Some(signal) = sys::take_signal(signals.as_fd()) {
                if signal != libc::SIGCHLD {
                    let _ = sys::kill(pid, signal);
                }
            }
            while let Some(child) = sys::reap() {
                if child.pid == pid {
                    self.report(ENDED, child.status);
                    // SAFETY: ends this process, and with it every other in here.
                    unsafe { libc::_exit(0) }
                }
            }
            let orphaned = fds[1].revents != 0;
            if orphaned || (fds[2].revents != 0 && has_ended(lifeline)) {
                // SAFETY: as above.
                unsafe { libc::_exit(0) }
            }
            if fds[2].revents & libc::POLLNVAL != 0 {
                lifeline = None;
            }
            proceed(connections.as_mut(), fds[3].revents);
        }
    }
}

/// Makes poll entries for these descriptors; absent ones are skipped.
fn make_poll_entries<const N: usize>(fds: [Option<RawFd>; N]) -> [libc::pollfd; N] {
    fds.map(|fd| libc::pollfd {
        fd: fd.unwrap_or(-1),
        events: libc::POLLIN,
        revents: 0,
    })
}

fn proceed(connections: Option<&mut Connections>, events: libc::c_short) {
    if let (Some(connections), true) = (connections, events != 0) {
        connections.proceed(events & libc::POLLIN != 0);
    }
}

/// Makes process 1 useless for an escape: no process may trace it, and it keeps only the capability to kill other
/// processes and, with `look`, the one to inspect them.
fn harden_first_process(look: bool) -> io::Result<()> {
    // SAFETY: plain system calls on numbers and a live string.
    unsafe {
        check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0))?;
        libc::prctl(libc::PR_SET_NAME, c"guestmark-cage".as_ptr(), 0, 0, 0);
    }
    super::privileges::forbid_new_privileges()?;
    super::privileges::keep_kill_capability(look)
}

/// Supervises the program without a cage: this process remains the parent of the program and of all processes that the
/// program leaves behind, and kills them when the controller, its own parent or the program exits. Returns in the
/// process that is to become the program.
pub fn watch(
    lifeline: Option<&OwnedFd>,
    mut connections: Option<Connections>,
) -> io::Result<Option<ExitCode>> {
    let parent = rustix::process::getppid();
    let signals =
        sys::reset_and_block_signals(&[&[libc::SIGCHLD, PARENT_ENDED], FORWARDED].concat())?;
    sys::become_subreaper()?;
    // SAFETY: plain system call.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, PARENT_ENDED, 0, 0, 0) })?;
    // SAFETY: this process has a single thread.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        unblock_signals()?;
        end_with_parent()?;
        rustix::process::setsid()?;
        return Ok(None);
    }
    let mut ended = None;
    while ended.is_none() {
        let mut fds = make_poll_entries([
            Some(signals.as_raw_fd()),
            lifeline.map(AsRawFd::as_raw_fd),
            connections.as_ref().and_then(Connections::descriptor),
        ]);
        sys::poll(&mut fds, None)?;
        proceed(connections.as_mut(), fds[2].revents);
        let mut orphaned = rustix::process::getppid() != parent;
        while let Some(signal) = sys::take_signal(signals.as_fd()) {
            match signal {
                libc::SIGCHLD => {}
                PARENT_ENDED => orphaned = true,
                other => drop(sys::kill(pid, other)),
            }
        }
        while let Some(child) = sys::reap() {
            if child.pid == pid {
                ended = Some(child.status);
            }
        }
        if ended.is_none() && (orphaned || (fds[1].revents != 0 && has_ended(lifeline))) {
            ended = Some(libc::SIGKILL);
        }
    }
    reap::sweep(signals.as_fd(), PATIENCE, |_| true, drop);
    Ok(ended.map(exit_like_child))
}

/// The signal by which the kernel reports that the parent has exited; nothing else sends it.
const PARENT_ENDED: libc::c_int = libc::SIGPWR;
