//! Creates and enters a trial's network namespaces, and creates the links between them.
//!
//! `make` creates them and passes their descriptors on. They have no names: when the last descriptor is closed and the
//! last process in them has exited, the kernel removes them with everything in them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use lexopt::{Arg, Parser, ValueExt};

use super::links::{add_default_route, failed, set_up, Address, Device, Setup};
use super::netlink::{attribute, link_header, Netlink, Request};
use crate::options::{read_until_command, to_io_error};
use crate::sys::{self, check};

/// The connection between the two ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum LinkKind {
    /// No link is created here.
    #[default]
    Nothing,
    /// A pair of virtual interfaces, one in each of two namespaces.
    Veth,
    /// A tap in the peer's namespace, whose descriptors are passed on.
    Tap,
}

#[derive(Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each option without a value"
)]
struct Options {
    /// The socket to which the descriptors are sent.
    channel: RawFd,
    /// Whether everything is created inside a user namespace in which this user is root.
    own_users: bool,
    /// Whether there is a second namespace, for the machine.
    second: bool,
    link: LinkKind,
    /// Names of the peer's interface and of the machine's.
    names: [String; 2],
    peer: Option<Address>,
    machine: Option<Address>,
    mtu: Option<u32>,
    queues: u32,
    offloads: Option<bool>,
    /// Whether packets of the tap begin with a virtio header, which offloads require.
    headers: bool,
    /// Whether the peer's namespace has an interface that leads nowhere, for programs that refuse to work without one.
    dead_end: bool,
    /// Whether the tap persists as long as its namespace, for a program inside that opens it by name.
    stays: bool,
    /// The command that this process becomes in the peer's namespace, instead of passing descriptors on.
    command: Vec<OsString>,
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Options, lexopt::Error> {
    let mut options = Options {
        channel: -1,
        queues: 1,
        ..Options::default()
    };
    let mut parser = Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        let name = match argument {
            Arg::Long(name) => name,
            Arg::Value(first) => {
                options.command = vec![first];
                options.command.extend(parser.raw_args()?);
                break;
            }
            Arg::Short(_) => return Err(argument.unexpected()),
        };
        match name {
            "channel" => options.channel = parser.value()?.parse::<u16>()?.into(),
            "own-users" => options.own_users = true,
            "second" => options.second = true,
            "veth" => {
                (options.link, options.second) = (LinkKind::Veth, true);
                options.names = [parser.value()?.string()?, parser.value()?.string()?];
            }
            "tap" => {
                options.link = LinkKind::Tap;
                options.names[0] = parser.value()?.string()?;
            }
            "peer" => options.peer = Some(parser.value()?.parse()?),
            "machine" => options.machine = Some(parser.value()?.parse()?),
            "mtu" => options.mtu = Some(parser.value()?.parse()?),
            "queues" => options.queues = parser.value()?.parse::<u8>()?.max(1).into(),
            "offloads" => options.offloads = Some(parser.value()? == "on"),
            "headers" => options.headers = true,
            "dead-end" => options.dead_end = true,
            "stays" => options.stays = true,
            _ => return Err(argument.unexpected()),
        }
    }
    Ok(options)
}

/// `guestmark-agent network make`: creates the namespaces, sends their descriptors, and exits. The descriptors are
/// those of the user namespace, the peer and the machine, then those of the tap's queues, as far as these exist. With a
/// command, executes it in the peer's namespace, which then exists while the command runs.
pub fn make(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let options = parse(arguments).map_err(|error| to_io_error(&error))?;
    let mut descriptors = Vec::new();
    if options.own_users {
        // Read the ids before entering: inside the namespace nobody is mapped yet.
        let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
        unshare(libc::CLONE_NEWUSER, "a user namespace")?;
        sys::map_to_root(user.as_raw(), group.as_raw())
            .map_err(|error| failed("this user cannot be root in a namespace", &error))?;
        descriptors.push(open_own_namespace("user")?);
    }
    enter_new_network("a network namespace")?;
    let peer = open_own_namespace("net")?;
    if options.dead_end {
        make_dead_end(peer.as_fd())?;
    }
    let mut machine = None;
    if options.second {
        enter_new_network("a second network namespace")?;
        machine = Some(open_own_namespace("net")?);
        join(peer.as_fd(), libc::CLONE_NEWNET)?;
    }
    let mut taps = Vec::new();
    match (options.link, &machine) {
        (LinkKind::Veth, Some(machine)) => make_veth(&options, peer.as_fd(), machine.as_fd())?,
        (LinkKind::Tap, _) => taps = make_tap(&options)?,
        _ => {}
    }
    if let Some((program, arguments)) = options.command.split_first() {
        let error = Command::new(program).args(arguments).exec();
        return Err(failed(&program.to_string_lossy(), &error));
    }
    descriptors.push(peer);
    descriptors.extend(machine);
    descriptors.extend(taps);
    // SAFETY: it was inherited, and nothing else in this process uses it.
    let channel = unsafe { OwnedFd::from_raw_fd(options.channel) };
    send_descriptors(channel.as_fd(), &descriptors)?;
    Ok(ExitCode::SUCCESS)
}

fn unshare(what: libc::c_int, name: &str) -> io::Result<()> {
    // SAFETY: plain system call in a process with a single thread.
    check(unsafe { libc::unshare(what) })
        .map(drop)
        .map_err(|error| failed(&format!("{name} cannot be created"), &error))
}

/// Enters a new network namespace whose interfaces have no IPv6, so that an idle link is quiet.
fn enter_new_network(name: &str) -> io::Result<()> {
    unshare(libc::CLONE_NEWNET, name)?;
    // Kernels without IPv6 lack this file.
    let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    set_up(&Device::Name("lo".to_owned()), &Setup::default())
}

fn open_own_namespace(kind: &str) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/ns/{kind}");
    Ok(File::open(&path)
        .map_err(|error| failed(&path, &error))?
        .into())
}

fn join(namespace: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: plain system call on an open descriptor.
    check(unsafe { libc::setns(namespace.as_raw_fd(), kind) })
        .map(drop)
        .map_err(|error| failed("a namespace cannot be entered", &error))
}

/// Creates a pair of virtual interfaces; `finish` adds the attributes that both share, and the other end is moved to
/// `namespace`.
fn make_pair(
    names: [&str; 2],
    namespace: BorrowedFd<'_>,
    finish: impl Fn(&mut Request),
) -> io::Result<()> {
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let mut request = Request::of_link(libc::RTM_NEWLINK, flags, 0, false);
    request.put_name(attribute::IFLA_IFNAME, names[0]);
    finish(&mut request);
    request.nest(attribute::IFLA_LINKINFO, |information| {
        information.put_name(attribute::IFLA_INFO_KIND, "veth");
        information.nest(attribute::IFLA_INFO_DATA, |data| {
            data.nest(attribute::VETH_INFO_PEER, |other| {
                other.put_plain(&link_header(0, false));
                other.put_name(attribute::IFLA_IFNAME, names[1]);
                finish(other);
                let number = namespace.as_raw_fd() as u32;
                other.put_number(attribute::IFLA_NET_NS_FD, number);
            });
        });
    });
    Netlink::open()?
        .execute(request)
        .map_err(|error| failed("a pair of veth interfaces cannot be created", &error))
}

/// Creates the pair in the peer's namespace, with its other end in the machine's, and brings both ends up.
fn make_veth(options: &Options, peer: BorrowedFd<'_>, machine: BorrowedFd<'_>) -> io::Result<()> {
    let [ours, theirs] = &options.names;
    make_pair([ours, theirs], machine, |request| {
        request
            .put_number(attribute::IFLA_NUM_TX_QUEUES, options.queues)
            .put_number(attribute::IFLA_NUM_RX_QUEUES, options.queues);
    })?;
    let setup = |address| Setup {
        address,
        mtu: options.mtu,
        offloads: options.offloads,
        ..Setup::default()
    };
    set_up(&Device::Name(ours.clone()), &setup(options.peer))?;
    join(machine, libc::CLONE_NEWNET)?;
    set_up(&Device::Name(theirs.clone()), &setup(options.machine))?;
    join(peer, libc::CLONE_NEWNET)
}

/// Creates an interface with a default route on which nobody answers: both of its ends are in the same namespace.
fn make_dead_end(peer: BorrowedFd<'_>) -> io::Result<()> {
    const NAMES: [&str; 2] = ["nowhere0", "nowhere1"];
    make_pair(NAMES, peer, |_| ())?;
    for (name, address) in NAMES.into_iter().zip([Some("10.0.7.1/24"), None]) {
        let address = address.and_then(|address| address.parse().ok());
        let setup = Setup {
            address,
            ..Setup::default()
        };
        set_up(&Device::Name(name.to_owned()), &setup)?;
    }
    add_default_route(NAMES[0])
}

/// Creates a tap with its queues, and brings its interface up.
fn make_tap(options: &Options) -> io::Result<Vec<OwnedFd>> {
    const DEVICE: &str = "/dev/net/tun";
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI;
    if options.headers {
        flags |= libc::IFF_VNET_HDR;
    }
    if options.queues > 1 {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    let name = &options.names[0];
    let mut queues = Vec::new();
    for _ in 0..options.queues {
        let file = File::options()
            .read(true)
            .write(true)
            .open(DEVICE)
            .map_err(|error| failed(DEVICE, &error))?;
        // SAFETY: `request` is fully initialised, its name ends with a zero byte, and it outlives the call.
        let made = unsafe {
            let mut request = std::mem::zeroed::<libc::ifreq>();
            for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(15)) {
                *to = from as libc::c_char;
            }
            request.ifr_ifru.ifru_flags = flags as libc::c_short;
            check(libc::ioctl(
                file.as_raw_fd(),
                libc::TUNSETIFF as _,
                &raw mut request,
            ))
        };
        made.map_err(|error| failed("a tap cannot be created", &error))?;
        if options.stays {
            // SAFETY: a plain system call on an open descriptor, with a number as its argument.
            check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETPERSIST as _, 1) })
                .map_err(|error| failed("a tap cannot be made persistent", &error))?;
        }
        queues.push(OwnedFd::from(file));
    }
    let setup = Setup {
        address: options.peer,
        mtu: options.mtu,
        ..Setup::default()
    };
    set_up(&Device::Name(name.clone()), &setup)?;
    if options.stays {
        queues.clear();
    }
    Ok(queues)
}

/// Sends descriptors together with one byte.
fn send_descriptors(channel: BorrowedFd<'_>, descriptors: &[OwnedFd]) -> io::Result<()> {
    use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let rights = SendAncillaryMessage::ScmRights(&borrowed);
    let mut space = vec![std::mem::MaybeUninit::uninit(); rights.size()];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(rights);
    let data = [io::IoSlice::new(b"n")];
    sendmsg(channel, &data, &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// `guestmark-agent network enter [--users FD] --net FD | --of PID [--as UID:GID] [--close FD]... -- COMMAND` becomes
/// COMMAND inside the given namespaces, or inside the network namespace of a process.
pub fn enter(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let (mut users, mut net, mut caller) = (None, None, None);
    let mut of = None;
    let mut closed = Vec::new();
    let command = read_until_command(arguments, |name, parser| {
        match name {
            "users" => users = Some(parser.value()?.parse::<u16>()?.into()),
            "net" => net = Some(parser.value()?.parse::<u16>()?.into()),
            "of" => of = Some(parser.value()?.parse::<u32>()?),
            "as" => caller = Some(parser.value()?.string()?),
            "close" => closed.push(RawFd::from(parser.value()?.parse::<u16>()?)),
            _ => return Ok(false),
        }
        Ok(true)
    })
    .map_err(|error| to_io_error(&error))?;
    let of = of
        .map(|pid| format!("/proc/{pid}/ns/net"))
        .map(|path| File::open(&path).map_err(|error| failed(&path, &error)))
        .transpose()?;
    let net: RawFd = of
        .as_ref()
        .map(AsRawFd::as_raw_fd)
        .or(net)
        .ok_or_else(|| sys::usage("network enter --net FD | --of PID -- COMMAND"))?;
    for (namespace, kind) in [
        (users, libc::CLONE_NEWUSER),
        (Some(net), libc::CLONE_NEWNET),
    ] {
        if let Some(descriptor) = namespace {
            // SAFETY: it was inherited, and nothing in this process closes it.
            join(unsafe { BorrowedFd::borrow_raw(descriptor) }, kind)?;
        }
    }
    if let Some(caller) = caller {
        become_caller(&caller)?;
    }
    for descriptor in closed {
        // SAFETY: it was inherited, and nothing else in this process uses it.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
    let error = Command::new(&command[0]).args(&command[1..]).exec();
    Err(failed(&command[0].to_string_lossy(), &error))
}

/// Enters another user namespace, in which root is this user again, without privileges over the network.
fn become_caller(caller: &str) -> io::Result<()> {
    let wrong = || sys::usage("network enter --as UID:GID");
    let (user, group) = caller.split_once(':').ok_or_else(wrong)?;
    let user: u32 = user.parse().map_err(|_| wrong())?;
    let group: u32 = group.parse().map_err(|_| wrong())?;
    unshare(libc::CLONE_NEWUSER, "a second user namespace")?;
    let write = |file: &str, text: String| fs::write(format!("/proc/self/{file}"), text);
    write("setgroups", "deny".to_owned())?;
    write("gid_map", format!("{group} 0 1"))?;
    write("uid_map", format!("{user} 0 1"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{LinkKind, Options};

    fn parse(words: &[&str]) -> Result<Options, String> {
        super::parse(words.iter().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn what_joins_the_ends_is_read() {
        let words = [
            "--channel",
            "5",
            "--veth",
            "p0",
            "m0",
            "--peer",
            "10.0.6.1/24",
            "--offloads",
            "off",
        ];
        let options = parse(&words).unwrap();
        assert_eq!((options.channel, options.link), (5, LinkKind::Veth));
        assert!(options.second);
        assert_eq!(options.offloads, Some(false));
        let tap = parse(&["--channel=5", "--tap", "t0", "--queues", "4", "--headers"]).unwrap();
        assert_eq!(
            (tap.link, tap.queues, tap.headers),
            (LinkKind::Tap, 4, true)
        );
        assert!(!tap.second);
    }

    #[test]
    fn wrong_words_are_refused() {
        for words in [
            &["--peer", "10.0.6.1"][..],
            &["--peer", "10.0.6.1/33"],
            &["-x"],
            &["--queues", "x"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
