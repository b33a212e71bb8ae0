//! Joins standard input and output to the two directions of a connection to a local socket.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use crate::sys;

/// `guestmark-agent connect SOCKET` runs until the peer closes; the end of standard input ends only the sending
/// direction. A zero byte precedes everything that the peer sends, so that a reader which gets both output streams as
/// one knows that the connection was made.
pub fn connect(mut arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let (Some(path), None) = (arguments.next(), arguments.next()) else {
        return Err(sys::usage("connect SOCKET"));
    };
    let mut receiving = UnixStream::connect(&path).map_err(|error| sys::add_path(&path, &error))?;
    let mut sending = receiving.try_clone()?;
    std::thread::spawn(move || {
        // The receiving side notices when the peer has closed.
        let _ = io::copy(&mut io::stdin().lock(), &mut sending);
        let _ = sending.shutdown(Shutdown::Write);
    });
    let mut output = io::stdout().lock();
    output.write_all(&[0])?;
    output.flush()?;
    let mut buffer = [0; 16 << 10];
    loop {
        let count = match io::Read::read(&mut receiving, &mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if count == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        output.write_all(&buffer[..count])?;
        output.flush()?;
    }
}
