//! Estimate the queues in which one end's data waits, on its way to the point of capture and beyond it.
//!
//! A queue before the point of capture shows in the sender's own time stamps (RFC 7323): they show when a segment was
//! sent, and include no time of a program. A queue beyond it shows in the lateness of acknowledgements without data.
//! The sum is the same wherever the capture was taken, and does not include the time that a program takes.

/// Nanoseconds per step of a time stamp: most systems count milliseconds, others microseconds or coarser units.
const TICKS: [i64; 4] = [1_000, 1_000_000, 4_000_000, 10_000_000];
/// Time stamps may be ahead by this much, because of queues that have emptied since.
const KNOWN_AFTER: i64 = 20_000_000;
/// If time stamps are behind for this long, they count coarser units.
const SURE_AFTER: i64 = 500_000_000;
/// The rates of clocks differ by at most one part in this many.
const SKEW: i64 = 10_000;
/// Shorter queues cannot be distinguished from the ends' own time.
const NOISE: u64 = 1_500_000;

/// The smallest of the last times, in units of 1,024 ns.
#[derive(Debug)]
struct RecentMinimum {
    least: [u32; 2],
    began: u32,
    last: u32,
}

impl Default for RecentMinimum {
    fn default() -> Self {
        Self {
            least: [u32::MAX; 2],
            began: 0,
            last: 0,
        }
    }
}

impl RecentMinimum {
    fn add(&mut self, nanos: u64, ts: i64, round: u64) {
        let now = (ts >> 20) as u32;
        let passed = now.wrapping_sub(self.began);
        let round = ((round >> 20) as u32).max(4);
        if passed >= 2 * round {
            self.least = [u32::MAX; 2];
            self.began = now;
        } else if passed >= round {
            self.least = [u32::MAX, self.least[0]];
            self.began = now;
        }
        let coarse = u32::try_from(nanos >> 10).unwrap_or(u32::MAX);
        self.least[0] = self.least[0].min(coarse);
        self.last = now;
    }

    /// Return the minimum in nanoseconds; 0 if the last time is older than a queue of that length and `round` together.
    fn least(&self, ts: i64, round: u64) -> u64 {
        let least = self.least[0].min(self.least[1]);
        if least == u32::MAX {
            return 0;
        }
        let nanos = u64::from(least) << 10;
        let age = u64::from(((ts >> 20) as u32).wrapping_sub(self.last)) << 20;
        if age <= nanos + round {
            nanos
        } else {
            0
        }
    }
}

/// What is known about one end's queues.
#[derive(Debug, Default)]
pub struct Queue {
    /// A time stamp, and when it passed the point of capture.
    base: Option<(u32, i64)>,
    /// The smallest time by which time stamps were behind, and when.
    floor: (i64, i64),
    tick: i64,
    /// How late the last segment was, and how much the lateness usually differs between successive segments.
    late: u64,
    jitter: u64,
    stamped: u64,
    /// How long its last data had to wait in queues beyond the point of capture.
    left: u64,
    before: RecentMinimum,
    beyond: RecentMinimum,
    /// Whether there has been a queue.
    pub seen: bool,
}

impl Queue {
    /// Record a segment with a time stamp, on a path whose round trip takes `whole`.
    #[inline]
    pub fn note_stamped(&mut self, stamp: u32, ts: i64, whole: u64) {
        let Some((first, at)) = self.base else {
            self.base = Some((stamp, ts));
            self.floor = (0, ts);
            self.tick = TICKS[1];
            return;
        };
        let passed = ts - at;
        let steps = i64::from(stamp.wrapping_sub(first) as i32);
        if steps > 0 {
            self.learn_tick(passed, steps, ts);
        }
        let behind = passed - steps * self.tick;
        let floor = self.floor.0 + (ts - self.floor.1) / SKEW;
        if behind <= floor {
            self.floor = (behind, ts);
        }
        let queued = (behind - floor - self.tick).max(0) as u64;
        let differs = queued.abs_diff(self.late);
        self.late = queued;
        self.stamped = (self.stamped + 1).min(16);
        self.jitter = self.jitter - self.jitter / self.stamped + differs / self.stamped;
        self.before.add(queued, ts, whole / 2);
    }

    /// Estimate how long one step of its time stamps takes, from `steps` of them in `passed` nanoseconds.
    #[inline]
    fn learn_tick(&mut self, passed: i64, steps: i64, ts: i64) {
        let counted = steps * self.tick;
        let (ahead, behind) = (
            counted > passed + self.tick + KNOWN_AFTER,
            passed >= SURE_AFTER && counted < passed / 2,
        );
        if !ahead && !behind {
            return;
        }
        // No time stamp comes from the future. And no queue grows as fast as time passes for long.
        let fits = |tick: &&i64| steps * **tick >= passed / 2;
        let tick = TICKS.iter().find(fits).copied().unwrap_or(TICKS[3]);
        if tick != self.tick {
            self.floor = if tick < self.tick {
                (0, ts - passed)
            } else {
                (passed - steps * tick, ts)
            };
            self.tick = tick;
            self.before = RecentMinimum::default();
        }
    }

    /// Record by how much an acknowledgement without data came later than the earliest ones of its path.
    #[inline]
    pub fn note_acknowledged(&mut self, late: u64, ts: i64, whole: u64) {
        self.beyond.add(late, ts, whole / 2);
    }

    /// Return how late the last segment was, and by how much the path seems to vary (RFC 3550, 6.4.1).
    #[inline]
    #[must_use]
    pub fn recent_variation(&self) -> (u64, u64) {
        let steps = self.tick as u64 / 2;
        (
            self.late,
            self.jitter.saturating_sub(steps).saturating_mul(3),
        )
    }

    /// Return the length below which queues cannot be distinguished from a path whose delay varies: packets in a queue
    /// are late by nearly the same time. On a path where packets overtake each other by up to `overtaken`, lateness of
    /// that size does not come from a queue.
    #[inline]
    fn noise(&self, overtaken: u64) -> u64 {
        let steps = self.tick as u64 / 2;
        NOISE
            .max(self.jitter.saturating_sub(steps).saturating_mul(2))
            .max(overtaken)
    }

    /// Whether time stamps show the queues.
    #[inline]
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.base.is_some()
    }

    /// Record that the sender has sent something at `ts`.
    #[inline]
    pub fn note_sent(&mut self, ts: i64, whole: u64) {
        self.left = self.beyond.least(ts, whole);
    }

    /// Return how much of the time since its last packet the queues took to empty: the segment that passes at `ts`, or
    /// the data before it, waited in a queue.
    #[inline]
    #[must_use]
    pub fn emptied(&self, ts: i64, whole: u64, overtaken: u64) -> u64 {
        let before = self.before.least(ts, whole);
        if before >= self.noise(overtaken) {
            u64::MAX
        } else if self.left >= self.noise(overtaken) {
            self.left
        } else {
            0
        }
    }

    /// Return how long the queues take to empty at `ts`, if that is longer than the path's variation.
    #[inline]
    #[must_use]
    pub fn standing_queue(&self, ts: i64, whole: u64, overtaken: u64) -> u64 {
        let queued = self.before.least(ts, whole) + self.beyond.least(ts, whole);
        if queued >= self.noise(overtaken) {
            queued
        } else {
            0
        }
    }
}
