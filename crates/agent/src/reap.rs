//! Makes sure that no process outlives its call: finds, kills and reaps descendants, including orphans re-parented to
//! us.

use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use crate::sys::{self, Reaped};

/// A child that outlives all calls: the program that already ran when the machine was saved.
static SPARED: AtomicI32 = AtomicI32::new(0);

/// Excludes that child from sweeps from now on.
pub fn spare(pid: libc::pid_t) {
    SPARED.store(pid, Ordering::Relaxed);
}

/// Lists our current children, ended ones included.
pub fn list_children() -> Vec<libc::pid_t> {
    let pid = std::process::id();
    let mut text = String::new();
    let path = format!("/proc/self/task/{pid}/children");
    match std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text)) {
        Ok(_) => text
            .split_ascii_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect(),
        // The kernel has no CONFIG_PROC_CHILDREN.
        Err(_) => scan_children(pid),
    }
}

/// Finds children by the parent process id of every process.
fn scan_children(parent: u32) -> Vec<libc::pid_t> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| Stat::of(pid).is_some_and(|stat| stat.parent == parent as libc::pid_t))
        .collect()
}

/// The used fields of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Whether it has ended and is waiting to be reaped.
    pub ended: bool,
    /// Whether a signal has stopped it.
    pub stopped: bool,
    /// Whether it is running or waiting for a processor.
    pub runs: bool,
    /// Parent.
    pub parent: libc::pid_t,
    /// Process group.
    pub group: libc::pid_t,
    /// Session.
    pub session: libc::pid_t,
}

impl Stat {
    /// Reads the fields of process `pid`, if it exists.
    pub fn of(pid: libc::pid_t) -> Option<Self> {
        Self::parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(stat: &[u8]) -> Option<Self> {
        // The name in parentheses may contain anything, even parentheses, so start after the last one.
        let after = stat.iter().rposition(|&byte| byte == b')')? + 1;
        let mut words = std::str::from_utf8(&stat[after..])
            .ok()?
            .split_ascii_whitespace();
        let state = words.next()?;
        Some(Self {
            ended: state == "Z" || state == "X",
            stopped: state == "T",
            runs: state == "R",
            parent: words.next()?.parse().ok()?,
            group: words.next()?.parse().ok()?,
            session: words.next()?.parse().ok()?,
        })
    }
}

/// Kills and reaps our children for which `doomed` returns true, and their children as they become ours, until none is
/// left or `patience` is over (a process in an uninterruptible sleep cannot be killed). Other children that end in the
/// meantime are passed to `other`. Returns how many were killed.
pub fn sweep(
    signals: BorrowedFd<'_>,
    patience: Duration,
    doomed: impl Fn(libc::pid_t) -> bool,
    mut other: impl FnMut(Reaped),
) -> u32 {
    let deadline = Instant::now() + patience;
    let mut killed = 0;
    let mut sent = Vec::new();
    loop {
        let mut left = false;
        for pid in list_children()
            .into_iter()
            .filter(|&pid| pid != SPARED.load(Ordering::Relaxed) && doomed(pid))
        {
            left = true;
            if !sent.contains(&pid) && Stat::of(pid).is_some_and(|stat| !stat.ended) {
                sent.push(pid);
                let _ = sys::kill(pid, libc::SIGKILL);
            }
        }
        let mut reaped = false;
        while let Some(child) = sys::reap() {
            reaped = true;
            if let Some(at) = sent.iter().position(|&pid| pid == child.pid) {
                sent.swap_remove(at);
                killed += u32::from(libc::WIFSIGNALED(child.status));
            } else if !doomed(child.pid) {
                other(child);
            }
        }
        if !left || Instant::now() >= deadline {
            return killed;
        }
        if !reaped {
            let mut wait = [libc::pollfd {
                fd: signals.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            }];
            let _ = sys::poll(&mut wait, Some(Duration::from_millis(10)));
            // Only SIGCHLD may be dropped here: the caller has to see the signals that ask us to exit.
            if wait[0].revents != 0 {
                drain_child_signals(signals);
            }
        }
    }
}

/// Takes pending signals so that polling can wait again; a signal that asks us to exit is raised again for the caller.
fn drain_child_signals(signals: BorrowedFd<'_>) {
    let mut end = None;
    while let Some(signal) = sys::take_signal(signals) {
        if signal != libc::SIGCHLD {
            end = Some(signal);
        }
    }
    if let Some(signal) = end {
        let _ = sys::kill(std::process::id() as libc::pid_t, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::Stat;

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        let stat = Stat::parse(b"17 (a) Z (b)) S 3 17 16 0 -1 4194304 1 2").unwrap();
        assert_eq!(
            stat,
            Stat {
                ended: false,
                stopped: false,
                runs: false,
                parent: 3,
                group: 17,
                session: 16
            }
        );
        assert!(Stat::parse(b"17 (x) Z 3 17 16").unwrap().ended);
        assert!(Stat::parse(b"17 (x) T 3 17 16").unwrap().stopped);
        assert!(Stat::parse(b"17 (x) R 3 17 16").unwrap().runs);
        assert_eq!(Stat::parse(b"17 (x"), None);
    }
}
