//! A mergeable log-linear histogram of durations in nanoseconds.
//!
//! Every power of two is divided into 64 equal buckets (values under 64 ns are kept exactly), so the midpoint of a
//! bucket is within [`RELATIVE_ERROR`] of every value in it. Buckets are the same in every histogram: merging adds
//! counts. A histogram with few samples takes little memory, because a capture may contain hundreds of thousands of
//! connections with a few samples each.

const SUB_BITS: u32 = 6;
const SUB: u64 = 1 << SUB_BITS;
/// Number of pairs in the histogram itself: as many as fit into half a cache line.
const PENDING: usize = 11;
/// From this many non-empty buckets on, an array of counters is smaller and faster than a list of pairs.
const DENSE_FROM: usize = 96;

/// Largest relative error of a percentile: half a bucket's width over its lower end.
pub const RELATIVE_ERROR: f64 = 0.5 / SUB as f64;

/// Return the bucket of a value in nanoseconds.
#[must_use]
pub fn bucket_of(value: u64) -> u16 {
    if value < SUB {
        return value as u16;
    }
    let shift = value.ilog2() - SUB_BITS;
    ((u64::from(shift) + 1) * SUB + (value >> shift) - SUB) as u16
}

/// Return lower end (inclusive) and width of a bucket, in nanoseconds.
#[must_use]
pub fn bucket_range(bucket: u16) -> (u64, u64) {
    let bucket = u64::from(bucket);
    if bucket < SUB {
        return (bucket, 1);
    }
    let shift = bucket / SUB - 1;
    ((SUB + bucket % SUB) << shift, 1 << shift)
}

fn middle(bucket: u16) -> u64 {
    let (low, width) = bucket_range(bucket);
    low + width / 2
}

#[derive(Clone, Debug)]
enum Store {
    /// Buckets and their counts, sorted by bucket.
    Sparse(Vec<(u16, u32)>),
    /// Counters of the buckets from `base` on.
    Dense { base: u16, counts: Vec<u32> },
}

/// The histogram. Counts saturate at 2^32 - 1 per bucket.
#[derive(Clone, Debug, Default)]
pub struct Hist {
    pending: [u16; PENDING],
    waiting: u8,
    store: Option<Box<Store>>,
}

impl Hist {
    /// Read the word that [`Hist::record`] uses first, so that the processor fetches its line early.
    #[inline]
    pub(crate) fn touch_lines(&self) -> u64 {
        u64::from(self.waiting)
    }

    /// Count one value; return by how many bytes the histogram's heap has grown.
    ///
    /// The counters of a busy connection are rarely in a cache: several values are counted together, so that their
    /// cache misses overlap.
    #[inline]
    pub fn record(&mut self, value: u64) -> usize {
        self.note(bucket_of(value))
    }

    /// Store one value of a bucket, to be counted later with others; return by how many bytes the heap has grown.
    #[inline]
    fn note(&mut self, bucket: u16) -> usize {
        self.pending[usize::from(self.waiting)] = bucket;
        self.waiting += 1;
        if usize::from(self.waiting) == PENDING {
            return self.flush();
        }
        0
    }

    /// Add another histogram's counts; return by how many bytes the heap has grown.
    pub fn merge(&mut self, other: &Hist) -> usize {
        let before = self.heap();
        other.for_each(|bucket, count| match count {
            // Most connections are short, so their histograms are small too.
            1 => {
                self.note(bucket);
            }
            _ => self.add(bucket, count),
        });
        self.heap().saturating_sub(before)
    }

    /// Return the number of bytes on the heap.
    #[must_use]
    pub fn heap(&self) -> usize {
        let own = size_of::<Store>();
        match self.store.as_deref() {
            None => 0,
            Some(Store::Sparse(pairs)) => own + pairs.capacity() * size_of::<(u16, u32)>(),
            Some(Store::Dense { counts, .. }) => own + counts.capacity() * size_of::<u32>(),
        }
    }

    /// Return the non-empty buckets in ascending order, with their counts.
    #[must_use]
    pub fn buckets(&self) -> Vec<(u16, u32)> {
        let mut flat = self.clone();
        flat.flush();
        match flat.store.map(|store| *store) {
            None => Vec::new(),
            Some(Store::Sparse(pairs)) => pairs,
            Some(Store::Dense { base, counts }) => counts
                .iter()
                .enumerate()
                .filter(|(_, &c)| c > 0)
                .map(|(i, &c)| (base + i as u16, c))
                .collect(),
        }
    }

    /// Return nearest-rank quantiles (shares in 0..=1, ascending) in nanoseconds, or `None` if nothing was counted.
    ///
    /// A quantile is the smallest value such that at least that share of all values is not larger (Hyndman and Fan
    /// 1996, definition 1), to within [`RELATIVE_ERROR`].
    #[must_use]
    pub fn quantiles<const N: usize>(&self, shares: [f64; N]) -> Option<[u64; N]> {
        if let (None, 1..) = (&self.store, self.waiting) {
            // Most connections are short, so avoid an allocation for them.
            let mut few = self.pending;
            let few = &mut few[..usize::from(self.waiting)];
            few.sort_unstable();
            let count = few.len();
            return Some(shares.map(|share| {
                let rank = ((share * count as f64).ceil() as usize).clamp(1, count);
                middle(few[rank - 1])
            }));
        }
        let buckets = self.buckets();
        let total: u64 = buckets.iter().map(|&(_, c)| u64::from(c)).sum();
        if total == 0 {
            return None;
        }
        let mut out = [0; N];
        let (mut seen, mut at) = (0_u64, 0);
        for (share, slot) in shares.iter().zip(&mut out) {
            let rank = ((share * total as f64).ceil() as u64).clamp(1, total);
            while seen + u64::from(buckets[at].1) < rank {
                seen += u64::from(buckets[at].1);
                at += 1;
            }
            *slot = middle(buckets[at].0);
        }
        Some(out)
    }

    fn for_each(&self, mut f: impl FnMut(u16, u32)) {
        match self.store.as_deref() {
            None => {}
            Some(Store::Sparse(pairs)) => pairs.iter().for_each(|&(b, c)| f(b, c)),
            Some(Store::Dense { base, counts }) => {
                counts
                    .iter()
                    .enumerate()
                    .filter(|(_, &c)| c > 0)
                    .for_each(|(i, &c)| f(base + i as u16, c));
            }
        }
        self.pending[..usize::from(self.waiting)]
            .iter()
            .for_each(|&b| f(b, 1));
    }

    #[cold]
    fn flush(&mut self) -> usize {
        let pending = self.pending;
        if let Some(Store::Dense { base, counts }) = self.store.as_deref_mut() {
            let places = pending.map(|bucket| usize::from(bucket.wrapping_sub(*base)));
            if usize::from(self.waiting) == PENDING && places.iter().all(|&at| at < counts.len()) {
                for at in places {
                    counts[at] = counts[at].saturating_add(1);
                }
                self.waiting = 0;
                return 0;
            }
        }
        let before = self.heap();
        for &bucket in &pending[..usize::from(self.waiting)] {
            self.add(bucket, 1);
        }
        self.waiting = 0;
        self.heap().saturating_sub(before)
    }

    fn add(&mut self, bucket: u16, by: u32) {
        let store = self
            .store
            .get_or_insert_with(|| Box::new(Store::Sparse(Vec::with_capacity(PENDING))));
        match store.as_mut() {
            Store::Sparse(pairs) => match pairs.binary_search_by_key(&bucket, |p| p.0) {
                Ok(i) => pairs[i].1 = pairs[i].1.saturating_add(by),
                Err(i) => {
                    pairs.insert(i, (bucket, by));
                    if pairs.len() > DENSE_FROM {
                        **store = densify(pairs);
                    }
                }
            },
            Store::Dense { base, counts } => {
                widen(base, counts, bucket);
                let count = &mut counts[usize::from(bucket - *base)];
                *count = count.saturating_add(by);
            }
        }
    }
}

fn densify(pairs: &[(u16, u32)]) -> Store {
    let mut base = pairs[0].0 & !63;
    let mut counts = Vec::new();
    widen(&mut base, &mut counts, pairs[pairs.len() - 1].0);
    for &(bucket, count) in pairs {
        counts[usize::from(bucket - base)] = count;
    }
    Store::Dense { base, counts }
}

/// Extend the counters to include `bucket`; allocates the buckets of a whole power of two at a time.
fn widen(base: &mut u16, counts: &mut Vec<u32>, bucket: u16) {
    if bucket < *base {
        let new_base = bucket & !63;
        let mut wider = vec![0; usize::from(*base - new_base)];
        wider.append(counts);
        *counts = wider;
        *base = new_base;
    }
    let needed = usize::from((bucket | 63) - *base) + 1;
    if needed > counts.len() {
        counts.reserve_exact(needed - counts.len());
        counts.resize(needed, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_its_values(value: u64) {
            let (low, width) = bucket_range(bucket_of(value));
            prop_assert!(low <= value && value - low < width);
            prop_assert!((width - 1) as f64 / 2.0 <= RELATIVE_ERROR * low.max(1) as f64);
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_values(mut values in prop::collection::vec(any::<u64>().prop_flat_map(|v| (0..64_u32).prop_map(move |s| v >> s)), 1..400)) {
            let mut hist = Hist::default();
            for &v in &values { hist.record(v); }
            values.sort_unstable();
            let shares = [0.0, 0.25, 0.5, 0.9, 0.999, 1.0];
            let found = hist.quantiles(shares).expect("not empty");
            for (share, q) in shares.iter().zip(found) {
                let rank = ((share * values.len() as f64).ceil() as usize).clamp(1, values.len());
                let exact = values[rank - 1];
                prop_assert!((q as f64 - exact as f64).abs() <= RELATIVE_ERROR * exact as f64 + 1e-9, "{q} for {exact}");
            }
        }

        #[test]
        fn merging_is_counting_together(a in prop::collection::vec(0_u64..1 << 40, 0..300), b in prop::collection::vec(0_u64..1 << 20, 0..300)) {
            let (mut left, mut right, mut both) = (Hist::default(), Hist::default(), Hist::default());
            for &v in &a { left.record(v); both.record(v); }
            for &v in &b { right.record(v); both.record(v); }
            left.merge(&right);
            prop_assert_eq!(left.buckets(), both.buckets());
        }
    }
}
