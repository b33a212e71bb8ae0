//! `guestmark-agent network`: creates and enters separate networks of machines, configures interfaces and describes
//! them.
//!
//! `netlink` and `ethtool` talk to the kernel, `links` describes and configures interfaces, `namespaces` creates and
//! enters networks, `probe` sends bytes through them, `processes` lists the processes in them, `vsock` describes a
//! guest's sockets to its hypervisor.

mod ethtool;
mod links;
mod namespaces;
mod netlink;
mod probe;
mod processes;
mod vsock;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use guestmark_wire::network::LinkState;
use lexopt::{Arg, Parser, ValueExt};

use self::links::{describe, set_up, Device, Setup};
use crate::options::to_io_error;
use crate::sys;

/// The pause between two checks of an interface that is not ready yet.
const PAUSE: Duration = Duration::from_millis(1);
const USAGE: &str = "network make|enter|link|vsock|processes|sink|burst …";

/// Runs the subcommand.
pub fn run(mut arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    match arguments
        .next()
        .as_deref()
        .and_then(std::ffi::OsStr::to_str)
    {
        Some("make") => namespaces::make(arguments),
        Some("enter") => namespaces::enter(arguments),
        Some("link") => configure(arguments),
        Some("vsock") => vsock::describe(),
        Some("processes") => processes::list(arguments),
        Some("sink") => probe::sink(arguments),
        Some("burst") => probe::burst(arguments),
        _ => Err(sys::usage(USAGE)),
    }
}

/// Configures an interface according to the options, and prints its description.
fn configure(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let (device, setup, wait) = parse(arguments).map_err(|error| to_io_error(&error))?;
    if setup != Setup::default() {
        set_up(&device, &setup)?;
    }
    let link = describe_addressed(&device, wait)?;
    let encoded = rmp_serde::to_vec_named(&link).map_err(io::Error::other)?;
    io::stdout().write_all(&encoded)?;
    Ok(ExitCode::SUCCESS)
}

/// Describes an interface once it is up and has an address, or after `wait`.
fn describe_addressed(device: &Device, wait: Duration) -> io::Result<LinkState> {
    let deadline = Instant::now() + wait;
    loop {
        let found = describe(device);
        let ready = found
            .as_ref()
            .is_ok_and(|link| link.up && !link.addresses.is_empty());
        if ready || Instant::now() >= deadline {
            return found;
        }
        std::thread::sleep(PAUSE);
    }
}

fn parse(
    arguments: impl Iterator<Item = OsString>,
) -> Result<(Device, Setup, Duration), lexopt::Error> {
    let (mut device, mut setup, mut wait) = (None, Setup::default(), Duration::ZERO);
    let mut parser = Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("name") => device = Some(Device::Name(parser.value()?.string()?)),
            Arg::Long("mac") => device = Some(Device::Mac(parser.value()?.string()?)),
            Arg::Long("towards") => device = Some(Device::Towards(parser.value()?.parse()?)),
            Arg::Long("address") => setup.address = Some(parser.value()?.parse()?),
            Arg::Long("mtu") => setup.mtu = Some(parser.value()?.parse()?),
            Arg::Long("offloads") => setup.offloads = Some(parser.value()? == "on"),
            Arg::Long("queues") => setup.queues = Some(parser.value()?.parse()?),
            Arg::Long("wait") => wait = Duration::from_millis(parser.value()?.parse()?),
            Arg::Long("ring") => setup.ring = Some(parser.value()?.parse()?),
            _ => return Err(argument.unexpected()),
        }
    }
    Ok((
        device.ok_or("--name, --mac or --towards is missing")?,
        setup,
        wait,
    ))
}
