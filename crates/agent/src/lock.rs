//! Reserves a machine for one user by `flock` on a file whose path is the same for all users.
//!
//! `platforms/exclusive.py` follows the same rules for the controller's own machine.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use guestmark_wire::{Failure, Kind, Locked, MAX_HOLDER};
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;

use crate::failure::{failure, os_failure};

/// The environment variable with the user's own path, or [`NONE`].
const VARIABLE: &str = "GUESTMARK_LOCK";
const NONE: &str = "none";
/// The lock is in the first of these directories in which everybody may create files, so that all users choose the
/// same.
const PLACES: [&str; 3] = ["/run/lock", "/dev/shm", "/tmp"];
const NAME: &str = "guestmark.lock";
const EVERYBODY: u32 = 0o666;

/// The lock; held until this process ends.
static HELD: Mutex<Option<File>> = Mutex::new(None);
/// Whether another process had the lock at the last attempt.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Takes the lock unless another process has it.
pub fn take(holder: &[u8]) -> Result<Locked, Failure> {
    let found = try_to_take(holder);
    let held = found.as_ref().is_ok_and(|found| found.held);
    REFUSED.store(!held, Ordering::Relaxed);
    found
}

/// Returns whether another process had the lock at the last attempt.
pub fn is_refused() -> bool {
    REFUSED.load(Ordering::Relaxed)
}

fn try_to_take(holder: &[u8]) -> Result<Locked, Failure> {
    if holder.len() > MAX_HOLDER {
        return Err(failure(
            Kind::BadRequest,
            "the holder's description is too long",
        ));
    }
    let Some(path) = find_place() else {
        return Ok(locked(true, Path::new(""), Vec::new()));
    };
    let mut held = HELD
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if held.is_some() {
        return Ok(locked(true, &path, Vec::new()));
    }
    let what = |error: &io::Error| os_failure(&format!("lock {}", path.display()), error);
    loop {
        let mut file = open(&path).map_err(|error| what(&error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(locked(false, &path, read_holder(&mut file))),
            Err(error) => return Err(what(&error.into())),
        }
        if !is_at(&file, &path) {
            continue; // another process has removed the file in the meantime
        }
        // If the filesystem is full, others only cannot read who holds the lock.
        let _ = file.set_len(0).and_then(|()| file.write_all(holder));
        *held = Some(file);
        return Ok(locked(true, &path, Vec::new()));
    }
}

fn locked(held: bool, path: &Path, holder: Vec<u8>) -> Locked {
    Locked {
        held,
        path: path.as_os_str().as_bytes().to_vec().into(),
        holder: holder.into(),
    }
}

fn find_place() -> Option<PathBuf> {
    match env::var_os(VARIABLE).map(OsStringExt::into_vec) {
        Some(word) if word == NONE.as_bytes() => None,
        Some(word) if !word.is_empty() => Some(PathBuf::from(OsStr::from_bytes(&word))),
        _ => {
            let shared = |place: &Path| {
                fs::metadata(place).is_ok_and(|data| data.is_dir() && data.mode() & 0o002 != 0)
            };
            let mut places = PLACES.iter().map(Path::new);
            let found = places.find(|place| shared(place));
            Some(found.unwrap_or(Path::new("/tmp")).join(NAME))
        }
    }
}

/// Opens the file, or creates it if there is none. In directories that everybody may write to, the kernel refuses to
/// open another user's file with `O_CREAT` (`fs.protected_regular`); links are not followed.
fn open(path: &Path) -> io::Result<File> {
    loop {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        match options.open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => return other,
        }
        match options.create_new(true).mode(EVERYBODY).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Ok(file) => {
                file.set_permissions(Permissions::from_mode(EVERYBODY))?;
                return Ok(file);
            }
            other => return other,
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn read_holder(file: &mut File) -> Vec<u8> {
    let mut text = Vec::new();
    let _ = file.rewind();
    let _ = file.take(MAX_HOLDER as u64).read_to_end(&mut text);
    text
}
