//! Defines the trait of all operations of the mix, and two building blocks: writing one byte and reading one byte.

use std::io;
use std::os::fd::RawFd;

/// An operation that is repeated many times.
pub trait Operation {
    /// Number of operations per iteration of the loop.
    const EACH: u64 = 1;
    /// Performs one iteration of the loop.
    fn once(&mut self) -> io::Result<()>;
    /// Checks that all iterations of a batch had their effect.
    fn check(&mut self, _turns: u64) -> io::Result<()> {
        Ok(())
    }
    /// Returns the process id of the other process that takes part, if there is one.
    fn partner(&self) -> Option<libc::pid_t> {
        None
    }
}

/// Returns an error unless one byte was transferred.
fn require_one_byte(count: libc::ssize_t) -> io::Result<()> {
    match count {
        1 => Ok(()),
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes one byte.
pub fn write_byte(fd: RawFd) -> io::Result<()> {
    // SAFETY: one byte is read from a live array.
    require_one_byte(unsafe { libc::write(fd, [0_u8].as_ptr().cast(), 1) })
}

/// Reads one byte.
pub fn read_byte(fd: RawFd) -> io::Result<()> {
    let mut byte = [0_u8];
    // SAFETY: one byte is written to a live array.
    require_one_byte(unsafe { libc::read(fd, byte.as_mut_ptr().cast(), 1) })
}
