//! Durations of one kind: their number, sum, extremes and distribution.

use crate::connection::hist::Hist;
use serde::Serialize;
use std::borrow::Cow;

/// Convert nanoseconds to seconds.
#[must_use]
pub fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// Round trips between the point of capture and one end in seconds, measured from segments to their acknowledgements.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RoundTrips {
    /// Number of acknowledgements that end exactly where a segment ends.
    pub count: u64,
    /// Smallest, exact.
    pub min_s: Option<f64>,
    /// Arithmetic mean, exact.
    pub mean_s: Option<f64>,
    /// Median.
    pub p50_s: Option<f64>,
    /// 99th percentile.
    pub p99_s: Option<f64>,
    /// Largest, exact.
    pub max_s: Option<f64>,
}

impl RoundTrips {
    /// Summarise the durations, with or without percentiles.
    #[must_use]
    pub fn new(trips: &Latency, percentiles: bool) -> Self {
        let mut out = Self {
            count: trips.count,
            ..Self::default()
        };
        if trips.count == 0 {
            return out;
        }
        out.min_s = Some(seconds(trips.min));
        out.mean_s = Some(trips.sum as f64 / trips.count as f64 / 1e9);
        out.max_s = Some(seconds(trips.max));
        if let Some(quantiles) = percentiles
            .then(|| trips.hist.quantiles([0.5, 0.99]))
            .flatten()
        {
            let exact = quantiles.map(|q| Some(seconds(q.clamp(trips.min, trips.max))));
            [out.p50_s, out.p99_s] = exact;
        }
        out
    }
}

/// Response latency of one endpoint: gaps between the peer's last packet and this endpoint's next one.
#[derive(Clone, Debug)]
pub struct Latency {
    /// Number of responses.
    pub count: u64,
    /// Sum in nanoseconds.
    pub sum: u64,
    /// Smallest in nanoseconds.
    pub min: u64,
    /// Largest in nanoseconds.
    pub max: u64,
    /// Distribution.
    pub hist: Hist,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            count: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
            hist: Hist::default(),
        }
    }
}

impl Latency {
    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) -> usize {
        self.count += 1;
        self.sum = self.sum.saturating_add(nanos);
        self.min = self.min.min(nanos);
        self.max = self.max.max(nanos);
        self.hist.record(nanos)
    }

    /// Add another endpoint's responses; return by how many bytes the heap has grown.
    pub fn merge(&mut self, other: &Latency) -> usize {
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.hist.merge(&other.hist)
    }
}

/// Durations of a kind that is rare in most connections: the first ones are stored one by one, without a distribution.
#[derive(Debug, Default)]
pub struct RareDurations {
    first: [u64; FEW],
    count: u32,
    all: Option<Box<Latency>>,
}

const FEW: usize = 2;

impl RareDurations {
    /// Record one duration; return by how many bytes the heap has grown.
    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) -> usize {
        if let Some(all) = &mut self.all {
            return all.record(nanos);
        }
        if let Some(slot) = self.first.get_mut(self.count as usize) {
            *slot = nanos;
            self.count += 1;
            return 0;
        }
        let mut all = self.as_distribution().into_owned();
        let grown = size_of::<Latency>() + all.record(nanos);
        self.all = Some(Box::new(all));
        grown
    }

    /// Return all durations as a distribution.
    #[must_use]
    pub fn as_distribution(&self) -> Cow<'_, Latency> {
        self.all.as_deref().map_or_else(
            || {
                let mut all = Latency::default();
                for &nanos in &self.first[..self.count as usize] {
                    all.record(nanos);
                }
                Cow::Owned(all)
            },
            Cow::Borrowed,
        )
    }

    /// Read what an update uses first, so that the processor fetches its line early.
    #[inline]
    pub(crate) fn touch_lines(&self) -> u64 {
        self.all.as_ref().map_or(0, |all| all.count)
    }
}
