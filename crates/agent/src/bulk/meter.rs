//! Measures a transfer from its start to its end.

use std::fs::{self, File};

use guestmark_wire::bulk::Transferred;
use guestmark_wire::Failure;

use crate::failure::os_failure;
use crate::sys;

/// Clock, processor time and page cache at the start of a call.
pub struct Meter {
    started_ns: u64,
    used_us: (u64, u64),
    dirtied: u64,
}

impl Meter {
    /// Starts measuring.
    pub fn start() -> Self {
        let (dirtied, used_us) = (dirtied_bytes(), sys::processor_time_us());
        Self {
            started_ns: sys::monotonic_ns(),
            used_us,
            dirtied,
        }
    }

    /// Ends the measurement after the last of `bytes` has been transferred: flushes `file`, if given, and returns the
    /// results.
    pub fn finish(
        self,
        bytes: u64,
        direct: bool,
        preallocated: bool,
        file: Option<&File>,
    ) -> Result<Transferred, Failure> {
        let moved_ns = sys::monotonic_ns();
        let ended_ns = match file {
            Some(file) => flush(file)?.2,
            None => moved_ns,
        };
        let used_us = sys::processor_time_us();
        Ok(Transferred {
            bytes,
            started_ns: self.started_ns,
            moved_ns,
            ended_ns,
            user_us: used_us.0 - self.used_us.0,
            system_us: used_us.1 - self.used_us.1,
            direct,
            preallocated,
            dirtied_bytes: dirtied_bytes().saturating_sub(self.dirtied),
        })
    }
}

/// Calls fsync, then syncfs; returns the clock before, between and after in nanoseconds.
pub fn flush(file: &File) -> Result<(u64, u64, u64), Failure> {
    let begin = sys::monotonic_ns();
    file.sync_all()
        .map_err(|error| os_failure("fsync", &error))?;
    let between = sys::monotonic_ns();
    rustix::fs::syncfs(file).map_err(|error| os_failure("syncfs", &error.into()))?;
    Ok((begin, between, sys::monotonic_ns()))
}

/// Returns how many bytes of the page cache have become dirty since boot; the kernel counts pages.
fn dirtied_bytes() -> u64 {
    let vmstat = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let pages = vmstat
        .lines()
        .find_map(|line| line.strip_prefix("nr_dirtied ")?.parse().ok())
        .unwrap_or(0_u64);
    pages * rustix::param::page_size() as u64
}
