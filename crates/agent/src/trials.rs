//! `guestmark-agent trials`: serves a controller's conversations, one after the other on the same standard input and
//! output.
//!
//! Each conversation has its own agent, a new process that this process starts and outlives. Nothing of a conversation
//! is left to the next one: all descendants of its agent are killed, and its directory is emptied.

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use lexopt::{Arg, ValueExt};
use rustix::fs::{memfd_create, MemfdFlags};

use crate::exec::inherited_environment;
use crate::keep::{remove, require_removable};
use crate::serve::LEFT;
use crate::spawn::Command;
use crate::{reap, sys};

/// How long to wait for killed processes to end.
const PATIENCE: Duration = Duration::from_secs(5);

struct Options {
    directory: PathBuf,
    alive: Option<u16>,
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Options, lexopt::Error> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let (mut directory, mut alive) = (None, None);
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("directory") => directory = Some(require_removable(parser.value()?)?),
            Arg::Long("alive") => alive = Some(parser.value()?.parse()?),
            other => return Err(other.unexpected()),
        }
    }
    let directory = directory.ok_or("--directory is missing")?;
    Ok(Options { directory, alive })
}

/// Serves until the controller has disconnected; then kills everything that was started, and removes the directory.
pub fn serve_trials(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let options = parse(arguments).map_err(|error| io::Error::other(error.to_string()))?;
    let signals =
        sys::reset_and_block_signals(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP])?;
    sys::close_inherited_on_exec();
    sys::become_subreaper()?;
    let ended = serve_conversations(&options, &signals);
    reap::sweep(signals.as_fd(), PATIENCE, |_| true, drop);
    remove(&options.directory);
    ended.map(ExitCode::from)
}

fn serve_conversations(options: &Options, signals: &OwnedFd) -> io::Result<u8> {
    let ahead = File::from(memfd_create("ahead", MemfdFlags::empty())?);
    loop {
        let (pid, _) = build_agent_command(options, &ahead)?
            .spawn()
            .map_err(|(_, error)| error)?;
        let status = wait_for_end(pid, signals);
        if status != LEFT {
            return Ok(status);
        }
        reap::sweep(signals.as_fd(), PATIENCE, |_| true, drop);
        if !reap::list_children().is_empty() {
            return Err(io::Error::other(
                "a process of the last trial cannot be killed",
            ));
        }
        empty_directory(&options.directory)?;
    }
}

fn build_agent_command(options: &Options, ahead: &File) -> io::Result<Command> {
    let mut words = vec!["guestmark-agent".to_owned(), "serve".to_owned()];
    words.push(format!("--ahead={}", ahead.as_raw_fd()));
    words.extend(options.alive.map(|seconds| format!("--alive={seconds}")));
    let words = words.into_iter().map(String::into_bytes);
    // If this process is killed, the agent removes the directory.
    let directory = [
        b"--remove=".as_slice(),
        options.directory.as_os_str().as_bytes(),
    ]
    .concat();
    let argv = words.chain([directory]).map(CString::new);
    Ok(Command {
        files: vec![c"/proc/self/exe".to_owned()],
        argv: argv.collect::<Result<_, _>>().map_err(io::Error::other)?,
        env: inherited_environment(),
        cwd: None,
        uid: None,
        gid: None,
        groups: None,
        stdio: None,
        terminal: false,
    })
}

/// Waits until an agent exits, and passes on the signals that we receive; returns its exit status, or 128 plus its
/// signal.
fn wait_for_end(agent: libc::pid_t, signals: &OwnedFd) -> u8 {
    loop {
        while let Some(child) = sys::reap() {
            if child.pid == agent {
                return if libc::WIFEXITED(child.status) {
                    libc::WEXITSTATUS(child.status) as u8
                } else {
                    (128 + libc::WTERMSIG(child.status)) as u8
                };
            }
        }
        let mut fds = [libc::pollfd {
            fd: signals.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        let _ = sys::poll(&mut fds, None);
        while let Some(signal) = sys::take_signal(signals.as_fd()) {
            if signal != libc::SIGCHLD {
                let _ = sys::kill(agent, signal);
            }
        }
    }
}

/// Empties the directory but keeps it, because only its user may enter it.
fn empty_directory(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    rustix::fs::chmod(directory, rustix::fs::Mode::RWXU)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    #[test]
    fn a_directory_of_its_own_is_needed() {
        let parse = |words: &[&str]| super::parse(words.iter().map(OsString::from)).is_ok();
        assert!(parse(&["--directory", "/tmp/guestmark-d", "--alive=30"]));
        assert!(!parse(&["--alive=30"]));
        assert!(!parse(&["--directory", "guestmark-d"]));
        assert!(!parse(&["--directory", "/tmp/other"]));
        assert!(!parse(&["--directory", "/tmp/guestmark-d", "more"]));
    }
}
