//! `guestmark-agent supervise`: runs a hypervisor so that no part of it outlives the controller, however the controller
//! exits.
//!
//! The controller holds the other end of the lifeline; the kernel closes it even when the controller is killed with
//! SIGKILL. If the supervisor itself is killed, so is the command (`PR_SET_PDEATHSIG`).

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lexopt::ValueExt;

use crate::exec::inherited_environment;
use crate::keep::{remove, require_removable, HeldDescriptors};
use crate::options::{read_until_command, to_io_error};
use crate::spawn::{self, Command, Step};
use crate::{reap, sys};

/// Exit statuses of our own failures, as those of `env` and `timeout`.
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// How long to wait for killed processes before their files are removed anyway.
const PATIENCE: Duration = Duration::from_secs(10);

struct Options {
    lifeline: i32,
    remove: Vec<PathBuf>,
    holds: HeldDescriptors,
    grace: Duration,
    spare_keepers: bool,
    keep_started: bool,
    command: Vec<OsString>,
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Options, lexopt::Error> {
    let mut lifeline = None;
    let mut options = Options {
        lifeline: -1,
        remove: Vec::new(),
        holds: HeldDescriptors::default(),
        grace: Duration::ZERO,
        spare_keepers: false,
        keep_started: false,
        command: Vec::new(),
    };
    let command = read_until_command(arguments, |name, parser| {
        match name {
            "lifeline" => lifeline = Some(parser.value()?.parse::<u16>()?),
            "remove" => options.remove.push(require_removable(parser.value()?)?),
            "hold" => options.holds.take(parser.value()?.parse()?)?,
            "grace" => {
                options.grace = Duration::from_millis(parser.value()?.parse::<u32>()?.into());
            }
            "spare-keepers" => options.spare_keepers = true,
            "keep-started" => options.keep_started = true,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    options.command = command;
    options.lifeline = lifeline
        .filter(|&fd| fd > 2)
        .ok_or("--lifeline needs a file descriptor above 2")?
        .into();
    Ok(options)
}

/// Runs a command until it or the controller exits. Exits with the command's status, or 128 plus its signal.
pub fn supervise(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let options = parse(arguments).map_err(|error| to_io_error(&error))?;
    if rustix::io::fcntl_getfd(borrow(options.lifeline)).is_err() {
        return Err(io::Error::other(format!(
            "--lifeline {}: not an open file descriptor",
            options.lifeline
        )));
    }
    // SAFETY: it is open, as was just seen, and nothing else in this process uses it.
    let lifeline = unsafe { OwnedFd::from_raw_fd(options.lifeline) };
    rustix::io::fcntl_setfd(&lifeline, rustix::io::FdFlags::CLOEXEC)?;
    let signals =
        sys::reset_and_block_signals(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP])?;
    sys::become_subreaper()?;
    let (status, by_itself) = match build_command(&options.command)?.spawn() {
        Ok((pid, _)) => watch(pid, &lifeline, &signals, &options),
        Err((step, error)) => {
            eprintln!(
                "guestmark-agent: {}: {error}",
                options.command[0].to_string_lossy()
            );
            let status = match (step, error.raw_os_error()) {
                (Step::Exec, Some(libc::ENOENT)) => NOT_FOUND,
                (Step::Exec, _) => NOT_EXECUTABLE,
                _ => FAILED,
            };
            (status, true)
        }
    };
    if !(options.keep_started && by_itself) {
        let doomed = |pid| !(options.spare_keepers && removes_what_others_made(pid));
        reap::sweep(signals.as_fd(), PATIENCE, doomed, drop);
    }
    for path in &options.remove {
        remove(path);
    }
    options.holds.remove_unkept();
    Ok(ExitCode::from(status))
}

/// Whether a process removes what others have created and then exits by itself: the keeper of a controller below us,
/// which must run this very file, because any process can be called `keep`; or Python's resource tracker.
fn removes_what_others_made(pid: libc::pid_t) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = arguments.split(|&byte| byte == 0);
    let is_keeper = words.clone().nth(1) == Some(b"keep") && sys::is_this_program(pid);
    is_keeper || words.any(|word| word.starts_with(b"from multiprocessing.resource_tracker import"))
}

fn borrow(fd: i32) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: used for one system call that copes with a descriptor that is not open.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}

fn build_command(words: &[OsString]) -> io::Result<Command> {
    let path = std::env::var_os("PATH");
    let files = spawn::list_candidates(
        words[0].as_bytes(),
        path.as_ref().map(|path| path.as_bytes()),
        None,
    );
    let c = |bytes: Vec<u8>| CString::new(bytes).map_err(io::Error::other);
    Ok(Command {
        files: files.into_iter().map(c).collect::<Result<_, _>>()?,
        argv: words
            .iter()
            .cloned()
            .map(|word| c(word.into_vec()))
            .collect::<Result<_, _>>()?,
        env: inherited_environment(),
        cwd: None,
        uid: None,
        gid: None,
        groups: None,
        stdio: None,
        terminal: false,
    })
}

/// Waits until the command ends; kills it if the controller has exited or a signal asks for it. Returns its status and
/// whether it ended by itself.
fn watch(pid: libc::pid_t, lifeline: &OwnedFd, signals: &OwnedFd, options: &Options) -> (u8, bool) {
    let mut kill_at = None;
    loop {
        let mut fds = [signals.as_raw_fd(), lifeline.as_raw_fd()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        if kill_at.is_some() {
            fds[1].fd = -1;
        }
        let wait = kill_at.map(|at: Instant| at.saturating_duration_since(Instant::now()));
        let _ = sys::poll(&mut fds, wait);
        while let Some(child) = sys::reap() {
            if child.pid == pid {
                let status = if libc::WIFEXITED(child.status) {
                    libc::WEXITSTATUS(child.status) as u8
                } else {
                    (128 + libc::WTERMSIG(child.status)) as u8
                };
                return (status, kill_at.is_none());
            }
        }
        let mut end = kill_at.is_none() && fds[1].revents != 0 && has_ended(lifeline);
        while let Some(signal) = sys::take_signal(signals.as_fd()) {
            end |= signal != libc::SIGCHLD;
        }
        if end && kill_at.is_none() {
            kill_at = Some(Instant::now() + options.grace);
            if !options.grace.is_zero() {
                let _ = sys::kill(-pid, libc::SIGTERM);
            }
        }
        if kill_at.is_some_and(|at| at <= Instant::now()) {
            // A spared process may be in the command's group; the sweep finds all others.
            if !options.spare_keepers {
                let _ = sys::kill(-pid, libc::SIGKILL);
            }
            let _ = sys::kill(pid, libc::SIGKILL);
            // It may be stuck in the kernel, so do not retry at once.
            kill_at = Some(Instant::now() + Duration::from_millis(100));
        }
    }
}

/// Whether the controller has closed its end of the lifeline. Bytes on the lifeline are ignored.
fn has_ended(lifeline: &OwnedFd) -> bool {
    matches!(
        sys::read(lifeline.as_raw_fd(), &mut [0; 256]),
        Ok(Some(0)) | Err(_)
    )
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    fn parse(words: &[&str]) -> Result<super::Options, String> {
        super::parse(words.iter().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_keeps_its_own_options() {
        let options = parse(&[
            "--lifeline",
            "7",
            "--grace=20",
            "--",
            "qemu",
            "--remove",
            "-x",
        ])
        .unwrap();
        assert_eq!(options.lifeline, 7);
        assert_eq!(options.grace.as_millis(), 20);
        assert_eq!(options.command, ["qemu", "--remove", "-x"]);
        assert!(options.remove.is_empty());
    }

    #[test]
    fn what_was_started_stays_only_where_asked_for() {
        let keeps = |words: &[&str]| parse(words).unwrap().keep_started;
        assert!(keeps(&["--lifeline", "7", "--keep-started", "true"]));
        assert!(!keeps(&["--lifeline", "7", "true", "--keep-started"]));
    }

    #[test]
    fn only_paths_named_as_ours_are_removed() {
        for path in ["/tmp/other", "guestmark-x", "/", "/tmp/guestmark-x/..", ""] {
            assert!(
                parse(&["--lifeline", "7", "--remove", path, "true"]).is_err(),
                "{path}"
            );
        }
        assert!(parse(&["--lifeline", "7", "--remove", "/tmp/guestmark-x", "true"]).is_ok());
    }

    #[test]
    fn what_is_missing_is_said() {
        assert!(parse(&["--", "true"]).is_err_and(|error| error.contains("--lifeline")));
        assert!(parse(&["--lifeline", "1", "true"]).is_err());
        assert!(parse(&["--lifeline", "7"]).is_err_and(|error| error.contains("command")));
    }
}
