//! Points for a time-sequence view of one connection, bounded by leaving out every other point when there are too many.

use crate::conn::Conn;
use crate::packet::{flag, Segment};
use serde::Serialize;
use std::collections::HashMap;

const MAX_POINTS: usize = 4096;
/// Standard input cannot be read twice: the first connections are watched, and the largest of them is shown.
pub const MAX_WATCHED: u64 = 64;

/// What a point is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PointKind {
    /// New bytes; `to` is the end of them.
    Data,
    /// Bytes that were seen before.
    Repeated,
    /// No payload.
    Ack,
}

/// One packet.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SeriesPoint {
    /// Seconds since the connection's first packet.
    pub t: f64,
    /// Which end sent it: 0 or 1 of the key, later `client` or `server`.
    #[serde(skip)]
    pub from: u8,
    /// Sent by the client.
    pub client: bool,
    /// What it is.
    pub kind: PointKind,
    /// Where its payload ends in the sender's stream, counted from the first sequence number.
    pub to: u64,
    /// How much of the peer's stream it acknowledges.
    pub acked: u64,
}

/// Points of one connection.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The points, in order of capture.
    pub points: Vec<SeriesPoint>,
    /// Only each so many-th packet is kept.
    pub stride: u32,
    seen: u32,
}

impl Series {
    fn push(&mut self, point: SeriesPoint) {
        self.stride = self.stride.max(1);
        self.seen = self.seen.wrapping_add(1);
        if self.seen % self.stride != 0 && point.kind != PointKind::Repeated {
            return;
        }
        self.points.push(point);
        if self.points.len() >= MAX_POINTS {
            let mut keep = false;
            self.points.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride = self.stride.saturating_mul(2);
        }
    }
}

/// Which connections are watched, and what was seen.
#[derive(Debug, Default)]
pub struct Watch {
    wanted: Option<u64>,
    series: HashMap<u64, Series>,
}

impl Watch {
    /// Watch the connection with this number, or the first ones.
    #[must_use]
    pub fn new(wanted: Option<u64>) -> Self {
        Self {
            wanted,
            series: HashMap::new(),
        }
    }

    /// Points of a connection; `client` is its end of the key that is the client.
    #[must_use]
    pub fn take(&mut self, index: u64, client: usize) -> Option<Series> {
        let mut series = self.series.remove(&index)?;
        for point in &mut series.points {
            point.client = usize::from(point.from) == client;
        }
        Some(series)
    }

    pub(crate) fn record(&mut self, conn: &Conn, segment: &Segment, was_new: bool) {
        if self
            .wanted
            .map_or(conn.index >= MAX_WATCHED, |wanted| wanted != conn.index)
        {
            return;
        }
        let (own, peer) = (
            &conn.sent[usize::from(segment.from & 1)],
            &conn.sent[usize::from((1 - segment.from) & 1)],
        );
        let kind = match (segment.payload, was_new) {
            (0, _) => PointKind::Ack,
            (_, true) => PointKind::Data,
            (_, false) => PointKind::Repeated,
        };
        let to = own
            .space
            .position(segment.seq.wrapping_add(segment.payload));
        let acked = if segment.flags & flag::ACK == 0 {
            0
        } else {
            peer.space.position(segment.ack)
        };
        let t = segment.ts.saturating_sub(conn.start_ts) as f64 / 1e9;
        self.series
            .entry(conn.index)
            .or_default()
            .push(SeriesPoint {
                t,
                from: segment.from,
                client: false,
                kind,
                to,
                acked,
            });
    }
}
