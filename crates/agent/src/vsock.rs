//! Sockets between a guest and the kernel of its hypervisor, for which `std` has no type.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::sys::check;

/// `SO_VM_SOCKETS_CONNECT_TIMEOUT_OLD` of `linux/vm_sockets.h`, whose value is a `struct timeval` of this architecture.
const CONNECT_TIMEOUT: libc::c_int = 6;
/// `IOCTL_VM_SOCKETS_GET_LOCAL_CID` of `linux/vm_sockets.h`: `_IO(7, 0xb9)`.
const GET_LOCAL_CID: libc::Ioctl = if cfg!(any(target_arch = "powerpc64", target_arch = "sparc64"))
{
    // These architectures mark a request without data by a bit of its own.
    0x2000_07b9
} else {
    0x7b9
};
const BACKLOG: libc::c_int = 128;

/// Connects to a port of the machine with this context identifier. The kernel's own limit is two seconds, which is too
/// short for an emulated guest.
pub fn connect(cid: u32, port: u32, limit: Duration) -> io::Result<OwnedFd> {
    let socket = open()?;
    limit_connecting(&socket, limit)?;
    let (address, size) = make_address(cid, port);
    // SAFETY: a plain system call; the address is initialised, has the given size and outlives the call.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size) })?;
    Ok(socket)
}

/// Listens at a port.
pub fn listen(port: u16) -> io::Result<OwnedFd> {
    let socket = open()?;
    let (address, size) = make_address(libc::VMADDR_CID_ANY, u32::from(port));
    // SAFETY: a plain system call; the address is initialised, has the given size and outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) })?;
    // SAFETY: a plain system call on a descriptor of ours.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket)
}

/// Waits for a connection to a listening socket.
pub fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call that is not asked for the address; the descriptor that it returns is new.
    unsafe {
        let accepted = check(libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_CLOEXEC,
        ))?;
        Ok(OwnedFd::from_raw_fd(accepted))
    }
}

/// Returns the context identifier of this machine.
pub fn read_cid() -> io::Result<u32> {
    let device = std::fs::File::open("/dev/vsock")?;
    let mut cid: u32 = 0;
    // SAFETY: the request writes 32 bits to the address, which is valid meanwhile.
    check(unsafe { libc::ioctl(device.as_raw_fd(), GET_LOCAL_CID, &raw mut cid) })?;
    Ok(cid)
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call; the descriptor that it returns is new.
    unsafe {
        let socket = check(libc::socket(
            libc::AF_VSOCK,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
            0,
        ))?;
        Ok(OwnedFd::from_raw_fd(socket))
    }
}

// The fields have 32 bits on some architectures, 64 on others.
#[allow(clippy::cast_lossless)]
fn limit_connecting(socket: &OwnedFd, limit: Duration) -> io::Result<()> {
    // SAFETY: a plain value, for which zeroes are valid.
    let mut time = unsafe { std::mem::zeroed::<libc::timeval>() };
    time.tv_sec = limit.as_secs() as _;
    time.tv_usec = limit.subsec_micros() as _;
    // SAFETY: the option's value is valid and has the given length.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::AF_VSOCK,
            CONNECT_TIMEOUT,
            (&raw const time).cast(),
            size_of_val(&time) as libc::socklen_t,
        )
    })
    .map(drop)
}

fn make_address(cid: u32, port: u32) -> (libc::sockaddr_vm, libc::socklen_t) {
    // SAFETY: a plain value, for which zeroes are valid.
    let mut address = unsafe { std::mem::zeroed::<libc::sockaddr_vm>() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_cid = cid;
    address.svm_port = port;
    (address, size_of::<libc::sockaddr_vm>() as libc::socklen_t)
}
