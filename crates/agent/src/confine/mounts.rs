//! A mount namespace in which everything is read-only but a few paths.

use std::ffi::{CStr, CString};
use std::io;

use crate::sys::check;

const AT_RECURSIVE: libc::c_uint = 0x8000;
const MOUNT_ATTR_RDONLY: u64 = 1;

/// `struct mount_attr` of `mount_setattr(2)`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Makes every mount read-only but for the `writable` files and directories. Whoever is not root gets a user namespace
/// of its own for it, with its own user and group and nobody else's. False where that is not to be had.
pub fn make_read_only(writable: &[CString], is_root: bool) -> io::Result<bool> {
    if !has_mount_setattr() {
        return Ok(false);
    }
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let namespaces = if is_root {
        libc::CLONE_NEWNS
    } else {
        libc::CLONE_NEWNS | libc::CLONE_NEWUSER
    };
    // SAFETY: plain system call; this process has a single thread.
    match check(unsafe { libc::unshare(namespaces) }) {
        Err(error) if super::is_unavailable(&error) => return Ok(false),
        other => other?,
    };
    if !is_root {
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/gid_map", format!("{0} {0} 1", gid.as_raw()))?;
        std::fs::write("/proc/self/uid_map", format!("{0} {0} 1", uid.as_raw()))?;
    }
    match mount(None, c"/", libc::MS_REC | libc::MS_PRIVATE) {
        // A user namespace without rights of its own, as some distributions make them.
        Err(error) if super::is_unavailable(&error) => return Ok(false),
        other => other?,
    }
    for path in writable {
        mount(Some(path), path, libc::MS_BIND)?;
    }
    let read_only = Attributes {
        set: MOUNT_ATTR_RDONLY,
        ..Attributes::default()
    };
    set_attributes(c"/", AT_RECURSIVE, &read_only)?;
    let writable_again = Attributes {
        clear: MOUNT_ATTR_RDONLY,
        ..Attributes::default()
    };
    for path in writable {
        set_attributes(path, 0, &writable_again)?;
    }
    // The working directory is still that of the mount below, which is read-only now.
    std::env::set_current_dir(std::env::current_dir()?)?;
    Ok(true)
}

/// Asked before anything is changed: kernels before 5.12 would leave us with half of it.
fn has_mount_setattr() -> bool {
    // SAFETY: a null pointer of size 0 is refused before it is looked at.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c"/".as_ptr(),
            0,
            std::ptr::null::<Attributes>(),
            0,
        )
    };
    asked >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

fn mount(source: Option<&CStr>, target: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    let source = source.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: strings end with null; type and data may be null for these kinds of mounts.
    check(unsafe {
        libc::mount(
            source,
            target.as_ptr(),
            std::ptr::null(),
            flags,
            std::ptr::null(),
        )
    })
    .map(drop)
}

fn set_attributes(path: &CStr, flags: libc::c_uint, attributes: &Attributes) -> io::Result<()> {
    // SAFETY: the string ends with null, and the size is that of the structure.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<Attributes>(),
        )
    };
    check(done as libc::c_int).map(drop)
}
