//! Figures of a finished connection besides its counts: what its time was spent on, and its round trips.

use crate::cause::on;
use crate::latency::Latency;
use crate::side::seconds;
use serde::Serialize;
use std::ops::AddAssign;

/// What time was spent on, in seconds; the parts add up to the whole. All absent when only one direction is known.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Causes {
    /// The client had everything it needed.
    pub client_s: Option<f64>,
    /// The server had everything it needed.
    pub server_s: Option<f64>,
    /// Round trips, and the rate of the path.
    pub network_s: Option<f64>,
    /// The receiver announced no room.
    pub window_s: Option<f64>,
    /// From a loss to its repair.
    pub recovery_s: Option<f64>,
    /// Nothing was outstanding for a second or more.
    pub idle_s: Option<f64>,
}

impl Causes {
    /// From nanoseconds by cause; `client` is the client's end.
    #[must_use]
    pub fn new(spent: [u64; 6], client: usize) -> Self {
        let part = |cause: usize| Some(seconds(spent[cause]));
        Self {
            client_s: part(client),
            server_s: part(1 - client),
            network_s: part(on::NETWORK),
            window_s: part(on::WINDOW),
            recovery_s: part(on::RECOVERY),
            idle_s: part(on::IDLE),
        }
    }
}

impl AddAssign for Causes {
    fn add_assign(&mut self, other: Self) {
        let add = |sum: &mut Option<f64>, part: Option<f64>| {
            if let Some(part) = part {
                *sum = Some(sum.unwrap_or(0.0) + part);
            }
        };
        add(&mut self.client_s, other.client_s);
        add(&mut self.server_s, other.server_s);
        add(&mut self.network_s, other.network_s);
        add(&mut self.window_s, other.window_s);
        add(&mut self.recovery_s, other.recovery_s);
        add(&mut self.idle_s, other.idle_s);
    }
}

/// Round trips between the point of capture and one end, from segments and what acknowledges them, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RoundTrips {
    /// Acknowledgements that end exactly where a segment ends.
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
    /// Summarise, with or without percentiles.
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
