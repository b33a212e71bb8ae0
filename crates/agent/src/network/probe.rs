//! Sends a few bytes through a network, to show which processes carry its traffic.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

use super::links::failed;
use crate::endpoint::{Endpoint, Listener};
use crate::options::to_io_error;
use crate::sys::check;

const PATIENCE: Duration = Duration::from_secs(10);
const PIECE: usize = 64 << 10;
/// Initial time to live of the packets that Linux sends; each router decrements it.
const FRESH: libc::c_int = 64;

struct Options {
    at: Endpoint,
    bytes: u64,
    /// Whether packets that came through a router are ignored.
    direct: bool,
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Options, lexopt::Error> {
    let (mut at, mut bytes, mut direct) = (None, 0, false);
    let mut parser = Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("bytes") => bytes = parser.value()?.parse()?,
            Arg::Long("direct") => direct = true,
            Arg::Value(value) => at = Some(value.parse()?),
            _ => return Err(argument.unexpected()),
        }
    }
    Ok(Options {
        at: at.ok_or("no address given")?,
        bytes,
        direct,
    })
}

/// `guestmark-agent network sink ADDRESS:PORT|vsock:CID:PORT --bytes N [--direct]` prints its port, receives that many bytes and
/// answers with one.
pub fn sink(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let options = parse(arguments).map_err(|error| to_io_error(&error))?;
    let listener = Listener::bind(options.at)?;
    if let (true, Listener::Ip(socket)) = (options.direct, &listener) {
        refuse_routed(socket)?;
    }
    println!("{}", listener.port()?);
    let mut stream = listener.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let received = io::copy(&mut (&mut stream).take(options.bytes), &mut io::sink())?;
    if received != options.bytes {
        let what = format!("{received} of {} bytes arrived", options.bytes);
        return Err(io::Error::other(what));
    }
    stream.write_all(b"k")?;
    Ok(ExitCode::SUCCESS)
}

/// `guestmark-agent network burst ADDRESS:PORT --bytes N [--direct]` sends that many bytes and waits for the answer.
pub fn burst(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let options = parse(arguments).map_err(|error| to_io_error(&error))?;
    let mut stream = options
        .at
        .connect(Some(PATIENCE))
        .map_err(|error| failed(&options.at.to_string(), &error))?;
    if options.direct {
        refuse_routed(&stream)?;
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let piece = vec![0; PIECE];
    let mut left = options.bytes as usize;
    while left > 0 {
        left -= stream.write(&piece[..left.min(PIECE)])?;
    }
    stream.read_exact(&mut [0])?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the kernel drop packets whose time to live has been decremented.
fn refuse_routed(socket: &impl AsRawFd) -> io::Result<()> {
    // `IP_MINTTL` of `linux/in.h`.
    const MINIMUM: libc::c_int = 21;
    let fresh = FRESH;
    // SAFETY: a plain system call; the value outlives it.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            MINIMUM,
            (&raw const fresh).cast(),
            size_of_val(&fresh) as libc::socklen_t,
        )
    })
    .map(drop)
}
