//! Records whether a filesystem in memory was ever full, which no exit status reveals.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::mounts::open_tree;

/// Pause between checks; filling a filesystem, noticing it and removing the files takes longer.
const PAUSE: Duration = Duration::from_millis(20);
/// Free bytes below which writes may fail, because allocators reserve some memory for each processor.
const LEFT: u64 = 64 << 10;

/// Filesystems of a cage that are checked regularly, and the file to which a line is written when one of them is full.
pub struct Gauge {
    filesystems: Vec<OwnedFd>,
    note: File,
    full: bool,
}

impl Gauge {
    /// Opens the filesystems. `note` must be open already, because it is hidden or read-only later.
    pub fn new(note: File, paths: &[&CStr]) -> io::Result<Self> {
        let filesystems = paths
            .iter()
            .map(|path| open_tree(path))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            filesystems,
            note,
            full: false,
        })
    }

    /// Time until the next check; `None` when no more are needed.
    pub fn pause(&self) -> Option<Duration> {
        (!self.full).then_some(PAUSE)
    }

    /// Checks the filesystems, and records the first time that one of them is full.
    pub fn check(&mut self) {
        if !self.full && self.filesystems.iter().any(is_full) {
            self.full = self.note.write_all(b"full\n").is_ok();
        }
    }
}

fn is_full(filesystem: &OwnedFd) -> bool {
    let Ok(about) = rustix::fs::fstatvfs(filesystem) else {
        return false;
    };
    // A filesystem without a limit reports zero blocks.
    (about.f_blocks > 0 && about.f_bavail * about.f_frsize < LEFT)
        || (about.f_files > 0 && about.f_favail == 0)
}
