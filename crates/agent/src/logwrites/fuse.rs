//! Speaks the part of the kernel's FUSE protocol (`linux/fuse.h`) that is needed to serve a single file mounted on a
//! file.

use std::fs::Metadata;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use crate::sys;

pub const FORGET: u32 = 2;
pub const GETATTR: u32 = 3;
pub const SETATTR: u32 = 4;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const STATFS: u32 = 17;
pub const RELEASE: u32 = 18;
pub const FSYNC: u32 = 20;
pub const FLUSH: u32 = 25;
pub const INIT: u32 = 26;
pub const INTERRUPT: u32 = 36;
pub const DESTROY: u32 = 38;
pub const IOCTL: u32 = 39;
pub const BATCH_FORGET: u32 = 42;
pub const FALLOCATE: u32 = 43;
pub const LSEEK: u32 = 46;

pub const FATTR_MODE: u32 = 1;
pub const FATTR_UID: u32 = 1 << 1;
pub const FATTR_GID: u32 = 1 << 2;
pub const FATTR_SIZE: u32 = 1 << 3;

const MAJOR: u32 = 7;
const MINOR: u32 = 31;
const ASYNC_READ: u32 = 1;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;
const HEADER: usize = 40;
const PAGE: usize = 4096;
const BLOCK: u32 = 4096;
const REGULAR: u32 = 0o100_000;

/// A request: its header and its body.
pub struct Request<'a> {
    pub operation: u32,
    pub unique: u64,
    pub body: &'a [u8],
}

impl<'a> Request<'a> {
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        Some(Self {
            operation: read_word(bytes, 4)?,
            unique: read_long(bytes, 8)?,
            body: bytes.get(HEADER..)?,
        })
    }
}

fn read_word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn read_long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn encode_words(values: &[u32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect()
}

fn encode_longs(values: &[u64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect()
}

/// The needed part of `fuse_setattr_in`.
pub struct Attributes {
    pub valid: u32,
    pub size: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Attributes {
    pub fn read(body: &[u8]) -> Option<Self> {
        Some(Self {
            valid: read_word(body, 0)?,
            size: read_long(body, 16)?,
            mode: read_word(body, 68)?,
            uid: read_word(body, 76)?,
            gid: read_word(body, 80)?,
        })
    }
}

/// Encodes `fuse_init_out`: no write cache, large writes.
pub fn encode_init(body: &[u8], max_write: usize) -> Option<Vec<u8>> {
    let offered = read_word(body, 12)?;
    let mut answer = encode_words(&[
        MAJOR,
        MINOR,
        0,
        offered & (ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES),
    ]);
    answer.extend_from_slice(&0_u32.to_ne_bytes()); // max_background, congestion_threshold: the kernel's defaults
    answer.extend(encode_words(&[max_write as u32, 1]));
    answer.extend_from_slice(&((max_write / PAGE) as u16).to_ne_bytes());
    answer.resize(64, 0);
    Some(answer)
}

/// Encodes `fuse_attr_out` so that it is not cached, because writes change the size.
pub fn encode_attributes(status: &Metadata, mode: u32, owner: (u32, u32)) -> Vec<u8> {
    let mut answer = encode_longs(&[0, 0]);
    answer.extend(encode_longs(&[
        1,
        status.len(),
        status.blocks(),
        status.atime() as u64,
        status.mtime() as u64,
        status.ctime() as u64,
    ]));
    answer.extend(encode_words(&[
        0,
        0,
        0,
        REGULAR | mode,
        1,
        owner.0,
        owner.1,
        0,
        BLOCK,
        0,
    ]));
    answer
}

/// Parses `fuse_read_in`: offset, size and the flags with which the file was opened.
pub fn parse_read(body: &[u8]) -> Option<(u64, usize, u32)> {
    Some((
        read_long(body, 8)?,
        read_word(body, 16)? as usize,
        read_word(body, 32)?,
    ))
}

/// Parses `fuse_write_in`: offset and data.
pub fn parse_write(body: &[u8]) -> Option<(u64, &[u8])> {
    let size = read_word(body, 16)? as usize;
    Some((read_long(body, 8)?, body.get(40..40 + size)?))
}

/// Parses `fuse_fallocate_in`: offset, length and mode.
pub fn parse_fallocate(body: &[u8]) -> Option<(u64, u64, u32)> {
    Some((
        read_long(body, 8)?,
        read_long(body, 16)?,
        read_word(body, 24)?,
    ))
}

/// Parses `fuse_lseek_in`: offset and whence.
pub fn parse_lseek(body: &[u8]) -> Option<(u64, i32)> {
    Some((read_long(body, 8)?, read_word(body, 16)? as i32))
}

/// Parses `fuse_ioctl_in`; returns the number of a mark, `_IOW('g', 1, u64)`.
pub fn parse_mark(body: &[u8]) -> Option<u64> {
    const MARK: u32 = 1 << 30 | 8 << 16 | (b'g' as u32) << 8 | 1;
    (read_word(body, 12)? == MARK).then(|| read_long(body, 32))?
}

/// Encodes `fuse_statfs_out`.
pub fn encode_statfs(found: &rustix::fs::StatFs) -> Vec<u8> {
    let mut answer = encode_longs(&[found.f_blocks, found.f_bfree, found.f_bavail, 1, 0]);
    answer.extend(encode_words(&[
        found.f_bsize as u32,
        255,
        found.f_bsize as u32,
        0,
    ]));
    answer.resize(80, 0);
    answer
}

pub fn reply(device: &OwnedFd, unique: u64, error: i32, data: &[u8]) -> io::Result<()> {
    let mut answer = encode_words(&[(16 + data.len()) as u32, error as u32]);
    answer.extend_from_slice(&unique.to_ne_bytes());
    answer.extend_from_slice(data);
    sys::write(device.as_raw_fd(), &answer).map(|_| ())
}

/// Mounts the filesystem on a file, by means of `fusermount3` if this user may not mount.
pub fn mount(at: &Path, max_read: usize) -> io::Result<OwnedFd> {
    let device = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")?;
    // SAFETY: they have no preconditions.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let options = format!(
        "fd={},rootmode={REGULAR:o},user_id={user},group_id={group},default_permissions,allow_other,max_read={max_read}",
        device.as_raw_fd()
    );
    let target = sys::make_cstring(at.as_os_str().as_bytes())?;
    let data = sys::make_cstring(options.as_bytes())?;
    // SAFETY: all pointers are to strings that end in zero and live until the call returns.
    let mounted = sys::check(unsafe {
        libc::mount(
            c"guestmark".as_ptr(),
            target.as_ptr(),
            c"fuse".as_ptr(),
            libc::MS_NOSUID | libc::MS_NODEV,
            data.as_ptr().cast(),
        )
    });
    match mounted {
        Ok(_) => Ok(device.into()),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let common = format!("default_permissions,fsname=guestmark,max_read={max_read}");
            mount_by_helper(at, &format!("{common},allow_other"))
                .or_else(|_| mount_by_helper(at, &common))
        }
        Err(error) => Err(error),
    }
}

/// Mounts by means of `fusermount3`, which sends the descriptor over a socket.
fn mount_by_helper(at: &Path, options: &str) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let inherited = sys::duplicate(theirs.as_raw_fd())?;
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty())?;
    let done = Command::new("fusermount3")
        .args(["-o", options, "--"])
        .arg(at)
        .env("_FUSE_COMMFD", inherited.as_raw_fd().to_string())
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("fusermount3: {error}")))?;
    if !done.status.success() {
        return Err(io::Error::other(
            String::from_utf8_lossy(&done.stderr).trim().to_owned(),
        ));
    }
    receive(&ours)
}

/// Receives the descriptor that comes with one byte.
fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0_u8];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control = [0_u64; 8];
    // SAFETY: a header is valid when all zero, and all its pointers outlive the call. The control message is looked at
    // within the bounds that the kernel has set, and its descriptor is nobody else's.
    unsafe {
        let mut header = std::mem::zeroed::<libc::msghdr>();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control) as _;
        if libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        if message.is_null() || (*message).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::Error::other("fusermount3 sent no descriptor"));
        }
        let fd = libc::CMSG_DATA(message)
            .cast::<libc::c_int>()
            .read_unaligned();
        Ok(OwnedFd::from_raw_fd(fd))
    }
}
