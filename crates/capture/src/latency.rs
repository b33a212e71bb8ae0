//! Durations of one kind: how many, their sum, extremes and distribution.

use crate::hist::Hist;

/// Response latency of one endpoint: gaps between the peer's last packet and this endpoint's next one.
#[derive(Debug)]
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

    /// Add another endpoint's responses; returns by how many bytes the heap has grown.
    pub fn merge(&mut self, other: &Latency) -> usize {
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.hist.merge(&other.hist)
    }
}
