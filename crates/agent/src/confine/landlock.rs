//! Restricts with Landlock (kernel 5.13 and later) where files can be written, created and removed.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::sys::check;

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: libc::c_int = 1;
const WRITE_FILE: u64 = 1 << 1;
const REMOVE_AND_MAKE: u64 = 0x1ff0; // remove directories and files; create files of all seven types
const REFER: u64 = 1 << 13; // version 2
const TRUNCATE: u64 = 1 << 14; // version 3
const REQUESTS: u64 = 1 << 15; // version 5: `ioctl` of devices that were opened in here
const BIND_AND_CONNECT_TCP: u64 = 3; // version 4
const SIGNALS_AND_ABSTRACT_SOCKETS: u64 = 3; // version 6
/// Devices that are harmless, or that hypervisors need. Disks and terminals are not among them.
const DEVICES: [&CStr; 5] = [
    c"/dev/null",
    c"/dev/zero",
    c"/dev/full",
    c"/dev/kvm",
    c"/dev/net/tun",
];

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct Handled {
    files: u64,
    network: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    parent: i32,
}

/// The version of the kernel's Landlock.
#[derive(Clone, Copy)]
pub struct Abi(u32);

impl Abi {
    /// Returns the kernel's version; `None` if it has no Landlock, or if Landlock is disabled.
    pub fn detect() -> Option<Self> {
        // SAFETY: asks for a number.
        let version = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                std::ptr::null::<Handled>(),
                0,
                CREATE_RULESET_VERSION,
            )
        };
        u32::try_from(version)
            .ok()
            .filter(|&version| version > 0)
            .map(Self)
    }

    /// Whether it can restrict truncation.
    pub fn knows_truncation(self) -> bool {
        self.0 >= 3
    }

    /// Restricts this process and its children: they can write only beneath `writable` and to harmless devices, send
    /// `ioctl` requests only to those devices, send no signals to other processes, and, without `network`, neither open
    /// nor accept TCP connections.
    pub fn restrict(self, writable: &[CString], network: bool) -> io::Result<bool> {
        let files = self.list_file_rights();
        let handled = Handled {
            files,
            network: if self.0 >= 4 && !network {
                BIND_AND_CONNECT_TCP
            } else {
                0
            },
            scoped: if self.0 >= 6 {
                SIGNALS_AND_ABSTRACT_SOCKETS
            } else {
                0
            },
        };
        // Older kernels know a shorter structure.
        let size = match self.0 {
            ..4 => 8,
            4 | 5 => 16,
            _ => size_of::<Handled>(),
        };
        // SAFETY: the structure is at least as long as `size`.
        let made = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const handled,
                size,
                0,
            )
        };
        let made = check(made as libc::c_int)?;
        // SAFETY: the kernel has just made it and nobody else owns it.
        let ruleset = unsafe { OwnedFd::from_raw_fd(made) };
        for path in writable {
            allow(&ruleset, path, files)?;
        }
        for device in DEVICES {
            match allow(&ruleset, device, files & (WRITE_FILE | REQUESTS)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        // SAFETY: plain system call on a descriptor that is open.
        let done =
            unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) };
        match check(done as libc::c_int) {
            Err(error) if error.raw_os_error() == Some(libc::E2BIG) => Ok(false),
            other => other.map(|_| true),
        }
    }

    fn list_file_rights(self) -> u64 {
        let mut files = WRITE_FILE | REMOVE_AND_MAKE;
        if self.0 >= 2 {
            files |= REFER;
        }
        if self.knows_truncation() {
            files |= TRUNCATE;
        }
        if self.0 >= 5 {
            files |= REQUESTS;
        }
        files
    }
}

fn allow(ruleset: &OwnedFd, path: &CStr, access: u64) -> io::Result<()> {
    // SAFETY: the string ends with null.
    let fd = check(unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) })?;
    // SAFETY: the kernel has just made it and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let is_directory = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode)
        == rustix::fs::FileType::Directory;
    let rule = Beneath {
        allowed: if is_directory {
            access
        } else {
            access & (WRITE_FILE | TRUNCATE | REQUESTS)
        },
        parent: fd.as_raw_fd(),
    };
    // SAFETY: the rule outlives the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            RULE_PATH_BENEATH,
            &raw const rule,
            0,
        )
    };
    check(done as libc::c_int).map(drop)
}
