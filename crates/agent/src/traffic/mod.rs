//! `guestmark-agent traffic`: what the way between two machines carries, and how fast it answers.
//!
//! One program is both ends: `serve` on the peer, `measure` on the machine, which makes every connection, as not every
//! network lets the peer make one. Plain calls on the kernel's sockets, one for each block, message or datagram, so that
//! a figure is one of the way and not of a trick; `TCP_NODELAY` where requests wait for responses, and nowhere else.
//! Every wait has an end, and the program ends with its standard input.

mod client;
mod datagrams;
mod exchange;
mod histogram;
mod order;
mod serve;
mod socket;
mod stream;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use crate::sys;

/// `traffic serve …`, `traffic measure …` or `traffic reach …`.
pub fn run(mut arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    match arguments
        .next()
        .as_deref()
        .and_then(std::ffi::OsStr::to_str)
    {
        Some("serve") => serve::serve(arguments),
        Some("measure") => client::measure(arguments),
        Some("reach") => client::reach(arguments),
        _ => Err(sys::usage("traffic serve|measure|reach")),
    }
}
