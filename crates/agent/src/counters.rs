//! Counts what a program does by means of the kernel's performance events (`perf_event_open(2)`).
//!
//! The events are opened on the agent, disabled, and inherited by the program that it starts: each begins to count when
//! that program is executed, and includes the program's child processes once they have exited. The agent itself is
//! never counted.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use guestmark_wire::Event;

/// `struct perf_event_attr` in its first version (`PERF_ATTR_SIZE_VER0`), which every kernel accepts.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint: u32,
    config1: u64,
}

const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const ENABLE_ON_EXEC: u64 = 1 << 12;
const TIMES: u64 = 1 | 1 << 1; // PERF_FORMAT_TOTAL_TIME_ENABLED, _RUNNING
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// The open events of one program, in the requested order.
pub struct Counters(Vec<Result<OwnedFd, i32>>);

impl Counters {
    /// Opens events for the next program to be started; `read` reports those that cannot be opened.
    pub fn open(events: &[Event]) -> Self {
        Self(events.iter().map(open).collect())
    }

    /// Returns the counts of the events, scaled if the kernel multiplexed them; a negative error number for an event
    /// that could not be opened.
    pub fn read(&self) -> Vec<i64> {
        self.0
            .iter()
            .map(|event| match event {
                Ok(fd) => read_count(fd),
                Err(errno) => -i64::from(*errno),
            })
            .collect()
    }
}

fn open(event: &Event) -> Result<OwnedFd, i32> {
    let only = if event.user_only {
        EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR
    } else {
        0
    };
    let attributes = Attributes {
        kind: event.kind,
        size: size_of::<Attributes>() as u32,
        config: event.config,
        sample_period: 0,
        sample_type: 0,
        read_format: TIMES,
        flags: DISABLED | INHERIT | ENABLE_ON_EXEC | only,
        wakeup_events: 0,
        breakpoint: 0,
        config1: 0,
    };
    // SAFETY: the kernel reads `size` bytes of a live structure; the other arguments are numbers.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            0,
            -1,
            -1,
            CLOSE_ON_EXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO));
    }
    // SAFETY: the call has just returned this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn read_count(fd: &OwnedFd) -> i64 {
    let mut read = [0u64; 3]; // value, time enabled, time running
    let size = size_of_val(&read);
    // SAFETY: the buffer is live and has this size.
    let got = unsafe { libc::read(fd.as_raw_fd(), read.as_mut_ptr().cast(), size) };
    if got != size as isize {
        return -i64::from(libc::EIO);
    }
    let [value, enabled, running] = read;
    match running {
        0 if enabled > 0 => -i64::from(libc::EBUSY), // it was never scheduled on the hardware
        0 => 0,
        _ if running < enabled => {
            (u128::from(value) * u128::from(enabled) / u128::from(running)) as i64
        }
        _ => value as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOFTWARE: u32 = 1;

    #[test]
    fn what_cannot_be_counted_has_its_error() {
        let nonsense = Event {
            kind: SOFTWARE,
            config: 9999,
            user_only: false,
        };
        let found = Counters::open(&[nonsense]).read();
        assert_eq!(found.len(), 1);
        assert!(found[0] < 0, "{found:?}");
    }
}
