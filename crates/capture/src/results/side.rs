//! Summarise one end of a finished connection.

use crate::connection::conn::Conn;
use crate::connection::latency::seconds;
use crate::connection::latency::Latency;
use crate::connection::latency::RoundTrips;
use crate::wire::host::Host;
use crate::wire::packet::FlowKey;
use serde::Serialize;
use std::sync::Arc;

/// Response latency of one endpoint in seconds. All fields but `count` and `total_s` are absent if there was no
/// response.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Response {
    /// Number of responses.
    pub count: u64,
    /// Sum of all responses.
    pub total_s: f64,
    /// Share of the connection's duration; absent if it would exceed 1 because a clock stepped backwards.
    pub share: Option<f64>,
    /// Arithmetic mean, exact.
    pub mean_s: Option<f64>,
    /// Smallest, exact.
    pub min_s: Option<f64>,
    /// Median.
    pub p50_s: Option<f64>,
    /// 90th percentile.
    pub p90_s: Option<f64>,
    /// 99th percentile.
    pub p99_s: Option<f64>,
    /// 99.9th percentile.
    pub p999_s: Option<f64>,
    /// Largest, exact.
    pub max_s: Option<f64>,
}

impl Response {
    /// Summarise the latency, with or without percentiles; the share is that of `duration`, in nanoseconds.
    #[must_use]
    pub fn new(latency: &Latency, duration: u64, percentiles: bool) -> Self {
        let mut out = Self {
            count: latency.count,
            total_s: seconds(latency.sum),
            ..Self::default()
        };
        // If a clock steps backwards, the sum of the responses may exceed the duration.
        if duration > 0 && latency.sum <= duration {
            out.share = Some(latency.sum as f64 / duration as f64);
        }
        if latency.count > 0 {
            out.mean_s = Some(latency.sum as f64 / latency.count as f64 / 1e9);
            out.min_s = Some(seconds(latency.min));
            out.max_s = Some(seconds(latency.max));
        }
        if !percentiles {
            return out;
        }
        if let Some(quantiles) = latency.hist.quantiles([0.5, 0.9, 0.99, 0.999]) {
            let exact = quantiles.map(|q| Some(seconds(q.clamp(latency.min, latency.max))));
            [out.p50_s, out.p90_s, out.p99_s, out.p999_s] = exact;
        }
        out
    }
}

/// One endpoint of a connection: what it sent and how fast it answered.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// Address.
    pub address: Host,
    /// Port.
    pub port: u16,
    /// Number of packets sent.
    pub packets: u64,
    /// Bytes on the wire, link headers included.
    pub wire_bytes: u64,
    /// Payload bytes, including repeated ones.
    pub payload_bytes: u64,
    /// Payload bytes, each counted once.
    pub unique_bytes: u64,
    /// Repeated payload bytes.
    pub retransmitted_bytes: u64,
    /// Number of packets that repeat payload, SYN or FIN.
    pub retransmissions: u32,
    /// Number of packets with new bytes below the highest sequence number seen.
    pub out_of_order: u32,
    /// Number of bytes that the peer acknowledged but that were not captured.
    pub missing_bytes: u64,
    /// Number of announcements of a zero window.
    pub zero_windows: u32,
    /// Number of resets it sent.
    pub resets: u32,
    /// Announced maximum segment size, 0 if unknown.
    pub mss: u16,
    /// Largest payload of one packet.
    pub largest_payload: u32,
    /// Number of packets larger than the peer's maximum segment size.
    pub oversized: u32,
    /// Unique payload divided by the connection's duration.
    pub throughput_bytes_per_s: Option<f64>,
    /// Round trips between the point of capture and this end.
    pub rtt: RoundTrips,
    /// Smallest window it announced after the handshake, scaled.
    pub window_min: Option<u32>,
    /// Largest window.
    pub window_max: Option<u32>,
    /// Number of packets with selective acknowledgements.
    pub sacks: u32,
    /// Maximum number of bytes it had in flight.
    pub in_flight_max: u32,
    /// Number of its packets that the capture contains more than once; each is counted once.
    pub copies: u32,
    /// Its response latency.
    pub response: Response,
}

impl Side {
    /// Summarise end `which` of a connection.
    #[must_use]
    pub fn new(conn: &Conn, which: usize, percentiles: bool, names: &[Arc<str>]) -> Self {
        let duration = conn.duration();
        let (sent, rare, path) = (&conn.sent[which], conn.rare(which), &conn.paths[which]);
        let counted = conn.counted(which);
        let FlowKey {
            addr, port, family, ..
        } = conn.key;
        Self {
            address: Host::new(family, addr[which], names),
            port: port[which],
            packets: counted.packets,
            wire_bytes: counted.wire,
            payload_bytes: counted.unique + counted.repeated,
            unique_bytes: counted.unique,
            retransmitted_bytes: counted.repeated,
            retransmissions: counted.retransmissions,
            out_of_order: rare.late,
            missing_bytes: conn.count_missing_from(which),
            zero_windows: rare.zero_windows,
            resets: path.resets.into(),
            mss: conn.limit[1 - which],
            largest_payload: sent.largest,
            oversized: rare.oversized,
            throughput_bytes_per_s: (duration > 0)
                .then(|| counted.unique as f64 / seconds(duration)),
            rtt: RoundTrips::new(&conn.rtt[which].as_distribution(), percentiles),
            window_min: (path.window_min != u32::MAX).then_some(path.window_min),
            window_max: (path.window_min != u32::MAX).then_some(path.window_max),
            sacks: rare.sacks,
            in_flight_max: path.in_flight,
            copies: counted.copies,
            response: Response::new(&sent.latency, duration, percentiles),
        }
    }
}
