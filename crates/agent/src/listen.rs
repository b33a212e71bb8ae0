//! Answers machines that connect to their hypervisor by vsock: a process beside the hypervisor turns each such
//! connection into one to a local socket.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::sys;

/// `guestmark-agent listen SOCKET SERVER… -- COMMAND…` becomes COMMAND as soon as SOCKET accepts connections. SERVER
/// gets the first connection as its standard input and output, and is killed when COMMAND ends.
pub fn listen(mut arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let path = arguments.next();
    let mut server = Vec::new();
    while let Some(word) = arguments.next().filter(|word| word != "--") {
        server.push(word);
    }
    let command = arguments.collect::<Vec<_>>();
    let (Some(path), false, false) = (path, server.is_empty(), command.is_empty()) else {
        return Err(sys::usage(
            "listen SOCKET SERVER [ARGUMENT]... -- COMMAND [ARGUMENT]...",
        ));
    };
    let listener = UnixListener::bind(&path).map_err(|error| sys::add_path(&path, &error))?;
    let parent = rustix::process::getpid();
    // SAFETY: this process has a single thread, so the child may do anything.
    if sys::check(unsafe { libc::fork() })? == 0 {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        if rustix::process::getppid() != Some(parent) {
            return Ok(ExitCode::SUCCESS);
        }
        let connection = OwnedFd::from(listener.accept()?.0);
        let mut server = make_command(&server);
        server.stdin(connection.try_clone()?).stdout(connection);
        return Err(execute(&mut server));
    }
    Err(execute(&mut make_command(&command)))
}

fn make_command(words: &[OsString]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// Returns only if it fails.
fn execute(command: &mut Command) -> io::Error {
    let error = command.exec();
    sys::add_path(command.get_program(), &error)
}

/// `guestmark-agent relay FD` joins standard input and output to an inherited stream until either of them ends.
pub fn relay(mut arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let number = arguments
        .next()
        .and_then(|word| word.to_str()?.parse::<u16>().ok());
    let (Some(number), None) = (number.filter(|&number| number > 2), arguments.next()) else {
        return Err(sys::usage("relay FD"));
    };
    // SAFETY: it is only borrowed, and nothing in this process closes it.
    let other = unsafe { BorrowedFd::borrow_raw(number.into()) }.try_clone_to_owned()?;
    let (to, mut from) = (File::from(other.try_clone()?), File::from(other));
    std::thread::spawn(move || {
        let ended = io::copy(&mut *open_standard_stream(&io::stdin()), &mut &to);
        std::process::exit(i32::from(ended.is_err()));
    });
    io::copy(&mut from, &mut *open_standard_stream(&io::stdout()))?;
    Ok(ExitCode::SUCCESS)
}

/// Opens a standard stream without a buffer.
fn open_standard_stream(stream: &impl AsRawFd) -> ManuallyDrop<File> {
    // SAFETY: it stays open, as what is made of it is never dropped.
    ManuallyDrop::new(unsafe { File::from_raw_fd(stream.as_raw_fd()) })
}
