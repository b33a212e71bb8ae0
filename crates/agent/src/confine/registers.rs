//! Preloads `preload/registers.rs` for User-Mode Linux. It counts stops, and completes the state of processors that
//! have more of it than that kernel knows.

use std::env;
use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;

const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/registers.so"));
const ABOVE: i32 = 200;
const PRELOAD: &str = "LD_PRELOAD";
const STOPS: &str = "GUESTMARK_STOPS";

/// Makes the next executed program load the library, which counts stops in the file `stops`. A statically linked kernel
/// does not load it, so that file stays all zeroes.
pub fn preload_library(stops: Option<&Path>) -> io::Result<()> {
    if LIBRARY.is_empty() {
        return Ok(());
    }
    if let Some(path) = stops {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        file.write_all(&0u64.to_ne_bytes())?;
        env::set_var(STOPS, open_inheritable(&file)?.to_string());
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
    let descriptor = open_inheritable(&file)?;
    let mut value = OsString::from(format!("/proc/self/fd/{descriptor}"));
    if let Some(others) = env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    env::set_var(PRELOAD, value);
    Ok(())
}

/// Returns a descriptor of the file that survives the next `exec`. Low numbers are left to the scripts that start some
/// programs.
fn open_inheritable(file: &File) -> io::Result<i32> {
    // SAFETY: the descriptor is open, and the command takes one number.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, ABOVE) } {
        -1 => Err(io::Error::last_os_error()),
        descriptor => Ok(descriptor),
    }
}
