//! Measures how fast this machine's time-stamp counter runs.
//!
//! Under TCG a guest reads the host's counter. Its kernel calibrates the counter with emulated timers, which fails on
//! machine types without HPET and ACPI timer (QEMU's microvm) and gives wrong results on busy hosts; so the kernel gets
//! the frequency as a parameter.

/// Returns the counts per millisecond, measured over 50 ms against `CLOCK_MONOTONIC`; `None` if there is no such
/// counter.
#[cfg(target_arch = "x86_64")]
pub fn measure_kilohertz() -> Option<u64> {
    use std::time::{Duration, Instant};

    // Take the pair of readings that were closest in time.
    fn pair() -> (Instant, u64) {
        let readings = (0..16).map(|_| {
            let before = Instant::now();
            // SAFETY: every x86_64 processor has RDTSC, and Linux leaves it enabled for programs.
            let count = unsafe { std::arch::x86_64::_rdtsc() };
            (before.elapsed(), before, count)
        });
        let (_, at, count) = readings
            .min_by_key(|reading| reading.0)
            .expect("sixteen readings");
        (at, count)
    }

    let (begin, first) = pair();
    std::thread::sleep(Duration::from_millis(50));
    let (end, last) = pair();
    let nanoseconds = u64::try_from(end.duration_since(begin).as_nanos()).ok()?;
    Some(last.checked_sub(first)?.checked_mul(1_000_000)? / nanoseconds)
}

/// Returns `None`, because there is no such counter.
#[cfg(not(target_arch = "x86_64"))]
pub fn measure_kilohertz() -> Option<u64> {
    None
}
