//! Choose how much memory open connections may use on this machine.

use std::fs;

/// One part in this many of the available memory is used, because an analysis is rarely alone on a machine.
const SHARE: u64 = 8;
const LEAST_MB: u64 = 128;
/// Enough for ten million open connections.
const MOST_MB: u64 = 8192;

/// Return the default memory limit for open connections, in megabytes.
#[must_use]
pub fn default_megabytes() -> usize {
    let available = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| read_available_kb(&text))
        .map_or(0, |kb| kb / 1024);
    let limit = read_control_group_limit().map_or(u64::MAX, |bytes| bytes >> 20);
    (available.min(limit) / SHARE).clamp(LEAST_MB, MOST_MB) as usize
}

fn read_available_kb(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Return the limit of this process's control group (version 2), as a container sets it.
fn read_control_group_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let limit = |path: &str| {
        let text = fs::read_to_string(format!("/sys/fs/cgroup{path}/memory.max")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    // Every parent group limits those below.
    let mut smallest = None;
    let mut path = path.trim_end_matches('/');
    while !path.is_empty() {
        smallest = [smallest, limit(path)].into_iter().flatten().min();
        path = &path[..path.rfind('/').unwrap_or(0)];
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_available_memory_is_read() {
        let text = "MemTotal:       24000 kB\nMemFree: 5 kB\nMemAvailable:   12000 kB\n";
        assert_eq!(read_available_kb(text), Some(12_000));
        assert_eq!(read_available_kb("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn it_is_never_little_nor_without_bound() {
        assert!((LEAST_MB as usize..=MOST_MB as usize).contains(&default_megabytes()));
    }
}
