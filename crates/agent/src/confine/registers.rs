//! User-Mode Linux on processors with more state than its kernel knows: `preload/registers.rs` is put before its libc.

use std::env;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};

use crate::cpuid;

const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/registers.so"));
const ABOVE: i32 = 200;
const PRELOAD: &str = "LD_PRELOAD";
/// What its kernels before 6.13 keep (`HOST_FP_SIZE`, arch/x86/um/user-offsets.c).
const KNOWN: u32 = 2696;

/// Has the library loaded by what is executed next, where it is needed; whether it is. A kernel that was linked
/// statically goes without.
pub fn complete() -> io::Result<bool> {
    if LIBRARY.is_empty() || cpuid::state_size().is_none_or(|size| size <= KNOWN) {
        return Ok(false);
    }
    // SAFETY: the name is terminated; the descriptor, if any, is ours.
    let mut file = unsafe {
        let name = CString::from(c"guestmark-registers");
        match libc::memfd_create(name.as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC) {
            -1 => return Err(io::Error::last_os_error()),
            descriptor => File::from_raw_fd(descriptor),
        }
    };
    file.write_all(LIBRARY)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: the descriptor is open, and the command takes one number.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above. Low numbers belong to the scripts that start some of these programs.
    let descriptor = match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, ABOVE) } {
        -1 => return Err(io::Error::last_os_error()),
        descriptor => descriptor,
    };
    let mut value = OsString::from(format!("/proc/self/fd/{descriptor}"));
    if let Some(others) = env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    env::set_var(PRELOAD, value);
    Ok(true)
}
