//! Counts times in buckets of bounded relative width, as `HdrHistogram` does.

use guestmark_wire::traffic::TrafficTimes;

/// Binary logarithm of the number of buckets for each power of two: a quantile is at most 1/256 too high.
const BITS: u32 = 8;
const EACH: usize = 1 << BITS;
/// Times of 2^40 ns (18 minutes) and longer share a bucket.
const LONGEST_BITS: u32 = 40;

/// How often each time occurred, in nanoseconds.
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    lowest: u64,
    highest: u64,
}

impl Histogram {
    /// Creates an empty histogram.
    pub fn new() -> Self {
        Self {
            counts: vec![0; find_bucket(u64::MAX) + 1],
            count: 0,
            sum: 0,
            lowest: u64::MAX,
            highest: 0,
        }
    }

    /// Counts one time.
    pub fn record(&mut self, ns: u64) {
        self.counts[find_bucket(ns)] += 1;
        self.count += 1;
        self.sum += u128::from(ns);
        self.lowest = self.lowest.min(ns);
        self.highest = self.highest.max(ns);
    }

    /// Returns the smallest time that at least `per_mille` of all times do not exceed, rounded up to the end of its
    /// bucket; 0 if there are no times.
    pub fn quantile(&self, per_mille: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(per_mille)).div_ceil(1000) as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank.max(1) {
                return find_bucket_end(index).clamp(self.lowest, self.highest);
            }
        }
        0
    }

    /// Summarizes the times for the report.
    pub fn summarize(&self, elapsed_ns: u64) -> TrafficTimes {
        TrafficTimes {
            count: self.count,
            elapsed_ns,
            mean_ns: (self.sum / u128::from(self.count.max(1))) as u64,
            lowest_ns: self.lowest.min(self.highest),
            p50_ns: self.quantile(500),
            p90_ns: self.quantile(900),
            p99_ns: self.quantile(990),
            p999_ns: self.quantile(999),
            highest_ns: self.highest,
        }
    }
}

/// Returns a time's bucket: exact below `EACH`, then `EACH` buckets for every power of two.
fn find_bucket(ns: u64) -> usize {
    let ns = ns.min((1 << LONGEST_BITS) - 1);
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(BITS + 1);
    (shift as usize) * EACH + (ns >> shift) as usize
}

/// Returns the longest time of a bucket.
fn find_bucket_end(index: usize) -> u64 {
    if index < 2 * EACH {
        return index as u64;
    }
    let shift = index / EACH - 1;
    let kept = (index - shift * EACH) as u64;
    ((kept + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_is_zero() {
        let times = Histogram::new().summarize(1);
        assert_eq!(
            (times.count, times.p50_ns, times.p999_ns, times.lowest_ns),
            (0, 0, 0, 0)
        );
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let mut before = None;
        for index in 0..=find_bucket(u64::MAX) {
            let last = find_bucket_end(index);
            assert_eq!(find_bucket(last), index);
            if let Some(before) = before {
                assert_eq!(find_bucket(before + 1), index);
            }
            before = Some(last);
        }
    }

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted_times(times in prop::collection::vec(0_u64..1 << 39, 1..400)) {
            let mut histogram = Histogram::new();
            for &time in &times {
                histogram.record(time);
            }
            let mut sorted = times.clone();
            sorted.sort_unstable();
            for per_mille in [1, 250, 500, 900, 990, 999, 1000] {
                let exact = sorted[(times.len() * per_mille).div_ceil(1000) - 1];
                let found = histogram.quantile(per_mille as u64);
                prop_assert!(found >= exact && found <= exact + exact / 256, "{found} for {exact}");
            }
            let all = histogram.summarize(7);
            prop_assert_eq!((all.count, all.elapsed_ns), (times.len() as u64, 7));
            prop_assert_eq!((all.lowest_ns, all.highest_ns), (sorted[0], *sorted.last().unwrap()));
        }
    }
}
