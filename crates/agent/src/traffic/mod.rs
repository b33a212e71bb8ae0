//! `guestmark-agent traffic`: measures throughput and response times of the path between two machines.
//!
//! The same program serves as both ends: `serve` on the peer, `measure` on the machine, which opens every connection,
//! because some networks do not let the peer do so. It makes plain calls on kernel sockets, one for each block, message
//! or datagram, so that a figure describes the path and not an optimisation; it sets `TCP_NODELAY` only where requests
//! wait for responses. Every wait has a limit, and the program exits at the end of its standard input.

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

/// Runs `traffic serve …`, `traffic measure …` or `traffic reach …`.
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
