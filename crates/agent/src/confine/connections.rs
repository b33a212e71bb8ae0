//! Lets a confined program connect only to the Unix sockets below its writable paths.
//!
//! A filter cannot read an address, which is in the program's memory, so the kernel passes the call to the process that
//! waits for the program. That process reads the address once, connects a socket of its own to it, and replaces the
//! program's socket by that one. It therefore does not matter if the program overwrites the address in the meantime.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::net;

use crate::sys::{as_os_path, check};

const RECEIVE: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
const IS_VALID: libc::c_ulong = 0x4008_2102;
const ADD_DESCRIPTOR: libc::c_ulong = 0x4018_2103;
const AT_THIS_NUMBER: u32 = 1;
/// `struct sockaddr_un`.
const ADDRESS_BYTES: usize = 110;
const FAMILY_BYTES: usize = 2;

/// `struct seccomp_notif`.
#[repr(C)]
#[derive(Default)]
struct Request {
    id: u64,
    pid: u32,
    flags: u32,
    number: i32,
    architecture: u32,
    instruction: u64,
    arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Reply {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct seccomp_notif_addfd`.
#[repr(C)]
struct Added {
    id: u64,
    flags: u32,
    source: u32,
    target: u32,
    target_flags: u32,
}

/// The part of the supervising process that decides about the program's connections.
pub struct Connections {
    places: Vec<(PathBuf, OwnedFd)>,
    asked_by: Option<Asked>,
}

enum Asked {
    /// The socket over which the filter's descriptor arrives.
    Channel(OwnedFd),
    Filter(OwnedFd),
}

impl Connections {
    /// Creates the state for sockets in `places`. Also returns the socket to which the program's process sends its
    /// filter.
    pub fn new<'a>(places: impl Iterator<Item = &'a CStr>) -> io::Result<(Self, OwnedFd)> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let places = places
            .map(|place| {
                let opened = rustix::fs::open(place, flags, Mode::empty())?;
                Ok((
                    Path::new(as_os_path(place.to_bytes())).to_path_buf(),
                    opened,
                ))
            })
            .collect::<io::Result<Vec<_>>>()?;
        let (ours, theirs) = net::socketpair(
            net::AddressFamily::UNIX,
            net::SocketType::STREAM,
            net::SocketFlags::CLOEXEC,
            None,
        )?;
        let asked_by = Some(Asked::Channel(ours));
        Ok((Self { places, asked_by }, theirs))
    }

    /// The descriptor that becomes readable when there is something to do.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.asked_by.as_ref().map(|asked_by| match asked_by {
            Asked::Channel(fd) | Asked::Filter(fd) => fd.as_raw_fd(),
        })
    }

    /// Handles what is pending; `readable` is false when the other end has closed.
    pub fn proceed(&mut self, readable: bool) {
        self.asked_by = match self.asked_by.take() {
            Some(Asked::Channel(channel)) => receive_descriptor(&channel).map(Asked::Filter),
            Some(Asked::Filter(filter)) if readable => {
                self.answer(&filter);
                Some(Asked::Filter(filter))
            }
            _ => None,
        };
    }

    fn answer(&self, filter: &OwnedFd) {
        let mut request = Request::default();
        if call_ioctl(filter, RECEIVE, &raw mut request).is_err() {
            return;
        }
        let connected = self.connect(filter, &request);
        let mut reply = Reply {
            id: request.id,
            value: 0,
            error: connected
                .err()
                .map_or(0, |error| -error.raw_os_error().unwrap_or(libc::EACCES)),
            flags: 0,
        };
        // The calling process may have exited.
        let _ = call_ioctl(filter, SEND, &raw mut reply);
    }

    fn connect(&self, filter: &OwnedFd, request: &Request) -> io::Result<()> {
        let [descriptor, address, length, ..] = request.arguments;
        let process = PathBuf::from(format!("/proc/{}", request.pid));
        let mut bytes = [0; ADDRESS_BYTES];
        let bytes = usize::try_from(length)
            .ok()
            .filter(|length| *length > FAMILY_BYTES)
            .and_then(|length| bytes.get_mut(..length))
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        File::open(process.join("mem"))?.read_exact_at(bytes, address)?;
        let status = fs::read_to_string(process.join(format!("fdinfo/{descriptor}")))?;
        let directory = fs::read_link(process.join("cwd"))?;
        // Make sure that all of this was read from the calling process, and not from a later one with the same process
        // id.
        call_ioctl(filter, IS_VALID, (&raw const request.id).cast_mut())?;
        let file = self.open_socket(&directory.join(parse_path(bytes)?))?;
        let flags = parse_flags(&status);
        let socket = net::socket_with(
            net::AddressFamily::UNIX,
            net::SocketType::STREAM,
            net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK,
            None,
        )?;
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        net::connect(&socket, &net::SocketAddrUnix::new(name)?)?;
        if flags & libc::O_NONBLOCK == 0 {
            rustix::fs::fcntl_setfl(&socket, OFlags::empty())?;
        }
        let mut added = Added {
            id: request.id,
            flags: AT_THIS_NUMBER,
            source: socket.as_raw_fd() as u32,
            target: descriptor as u32,
            target_flags: (flags & libc::O_CLOEXEC) as u32,
        };
        call_ioctl(filter, ADD_DESCRIPTOR, &raw mut added)
    }

    /// Opens the socket at an absolute path, unless a link leads out of the writable paths.
    fn open_socket(&self, path: &Path) -> io::Result<OwnedFd> {
        let refused = || io::Error::from_raw_os_error(libc::EACCES);
        let (place, rest) = self
            .places
            .iter()
            .filter_map(|(place, opened)| Some((opened, path.strip_prefix(place).ok()?)))
            .min_by_key(|(_, rest)| rest.as_os_str().len())
            .ok_or_else(refused)?;
        let file = if rest.as_os_str().is_empty() {
            place.try_clone()?
        } else {
            rustix::fs::openat2(
                place,
                rest,
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
                ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
            )?
        };
        match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
            FileType::Socket => Ok(file),
            _ => Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)),
        }
    }
}

/// Sends the filter's descriptor to the supervising process.
pub fn send_filter(filter: &OwnedFd, channel: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = net::SendAncillaryBuffer::new(&mut space);
    let descriptors = [filter.as_fd()];
    control.push(net::SendAncillaryMessage::ScmRights(&descriptors));
    let message = [IoSlice::new(b"x")];
    net::sendmsg(channel, &message, &mut control, net::SendFlags::empty())?;
    Ok(())
}

fn receive_descriptor(channel: &OwnedFd) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = net::RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = net::RecvFlags::CMSG_CLOEXEC;
    net::recvmsg(
        channel,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        flags,
    )
    .ok()?;
    control.drain().find_map(|message| match message {
        net::RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

/// Returns the path in a socket's address. Sockets without a path are refused.
fn parse_path(address: &[u8]) -> io::Result<&Path> {
    let (family, name) = address.split_at(FAMILY_BYTES);
    if family != (libc::AF_UNIX as u16).to_ne_bytes() {
        return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
    }
    match name.split(|&byte| byte == 0).next() {
        Some(path) if !path.is_empty() => Ok(Path::new(std::ffi::OsStr::from_bytes(path))),
        _ => Err(io::Error::from_raw_os_error(libc::EACCES)),
    }
}

/// Parses the flags in `/proc/PID/fdinfo/FD`.
fn parse_flags(status: &str) -> libc::c_int {
    status
        .lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .and_then(|text| libc::c_int::from_str_radix(text.trim(), 8).ok())
        .unwrap_or_default()
}

fn call_ioctl<T>(filter: &OwnedFd, request: libc::c_ulong, about: *mut T) -> io::Result<()> {
    // SAFETY: each request takes a structure of the type that it is called with, which outlives the call.
    check(unsafe { libc::ioctl(filter.as_raw_fd(), request as _, about) }).map(drop)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::{parse_flags, parse_path, Connections};

    #[test]
    fn sockets_are_found_in_places_and_nowhere_else() {
        let outer = tempfile();
        let (inside, outside) = (outer.join("in"), outer.join("out"));
        std::fs::create_dir(&inside).unwrap();
        std::fs::create_dir(&outside).unwrap();
        let _sockets =
            [inside.join("s"), outside.join("s")].map(|at| UnixListener::bind(at).unwrap());
        symlink("s", inside.join("alias")).unwrap();
        symlink(outside.join("s"), inside.join("link")).unwrap();
        symlink(&outside, inside.join("way")).unwrap();
        std::fs::write(inside.join("file"), "").unwrap();
        let place = CString::new(inside.as_os_str().as_bytes()).unwrap();
        let (connections, _channel) = Connections::new(std::iter::once(place.as_c_str())).unwrap();
        for name in ["s", "alias", "./s", "nothing/../s"] {
            let found = connections.open_socket(&inside.join(name));
            assert_eq!(found.is_ok(), !name.starts_with("nothing"), "{name}");
        }
        for name in ["link", "way/s", "../out/s", "file", "", ".."] {
            assert!(
                connections.open_socket(&inside.join(name)).is_err(),
                "{name}"
            );
        }
        assert!(connections.open_socket(&outside.join("s")).is_err());
        assert!(connections.open_socket(&outer.join("in2")).is_err());
        std::fs::remove_dir_all(outer).unwrap();
    }

    fn tempfile() -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("guestmark-test-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn addresses_are_paths() {
        let address = |family: i32, name: &[u8]| [&(family as u16).to_ne_bytes(), name].concat();
        let path = |bytes: &[u8]| parse_path(bytes).ok().map(|path| path.as_os_str().len());
        assert_eq!(path(&address(libc::AF_UNIX, b"/run/x\0rest")), Some(6));
        assert_eq!(path(&address(libc::AF_UNIX, b"x")), Some(1));
        assert_eq!(path(&address(libc::AF_UNIX, b"\0abstract")), None);
        assert_eq!(path(&address(libc::AF_INET, b"/run/x")), None);
    }

    #[test]
    fn flags_are_octal() {
        assert_eq!(parse_flags("pos:\t0\nflags:\t02004002\n"), 0o2_004_002);
        assert_eq!(parse_flags(""), 0);
    }
}
