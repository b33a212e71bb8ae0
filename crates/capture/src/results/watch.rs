//! Collect points for a time-sequence view of one connection; if there are too many, every second one is dropped.

use crate::connection::conn::Conn;
use crate::connection::latency::seconds;
use crate::connection::spent::{on, Spent};
use crate::results::figures;
use crate::wire::packet::{flag, Segment};
use serde::Serialize;
use std::collections::HashMap;

/// Order of the causes within one step: first the path, then the end that sends next.
const ORDER: [usize; on::COUNT] = [
    on::RECEIVE_BUFFER,
    on::RECEIVE_BUFFER + 1,
    on::SEND_BUFFER,
    on::SEND_BUFFER + 1,
    on::RECOVERY,
    on::LATENCY,
    on::BANDWIDTH,
    on::NAGLE,
    on::APPLICATION,
    on::APPLICATION + 1,
    on::IDLE,
    on::UNKNOWN,
];
const MAX_POINTS: usize = 4096;
/// Number of first connections to watch if none is chosen: standard input cannot be read twice to watch the one that
/// turns out to be the slowest.
pub const MAX_WATCHED: u64 = 64;

/// The kind of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PointKind {
    /// It has new bytes, up to `to`.
    Data,
    /// It only has bytes that were seen before.
    Repeated,
    /// It has no payload.
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
    /// Whether the client sent it.
    pub client: bool,
    /// Its kind.
    pub kind: PointKind,
    /// Where its payload ends in the sender's stream, counted from the first sequence number.
    pub to: u64,
    /// How much of the peer's stream it acknowledges.
    pub acked: u64,
    /// How far into the peer's stream its window reaches; 0 if that is unknown.
    pub room: u64,
    /// Whether it has selective acknowledgements, so that earlier data is missing.
    pub sack: bool,
}

/// A span of time and its cause.
#[derive(Clone, Debug, Serialize)]
pub struct Span {
    /// Seconds since the connection's first packet.
    pub from_s: f64,
    /// When the span ends, in the same unit.
    pub to_s: f64,
    /// The cause, as in [`figures::name_cause`].
    pub cause: &'static str,
    #[serde(skip)]
    position: usize,
}

/// Points of one connection.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The points, in order of capture.
    pub points: Vec<SeriesPoint>,
    /// The time by cause, span by span.
    pub spans: Vec<Span>,
    /// One packet in this many is kept.
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

    /// Add the time up to `end` (seconds) by cause, in nanoseconds.
    fn spend(&mut self, end: f64, spent: Spent) {
        let mut from_s = end - seconds(spent.iter().sum());
        // Time that is attributed to a loss afterwards replaces earlier attributions.
        while let Some(last) = self.spans.last_mut().filter(|last| last.to_s > from_s) {
            if last.from_s < from_s {
                last.to_s = from_s;
            } else {
                self.spans.pop();
            }
        }
        for position in ORDER {
            let to_s = from_s + seconds(spent[position]);
            let full = self.spans.len() >= MAX_POINTS;
            match self.spans.last_mut() {
                _ if spent[position] == 0 => {}
                Some(last) if last.position == position || full => last.to_s = to_s,
                _ => self.spans.push(Span {
                    from_s,
                    to_s,
                    cause: "",
                    position,
                }),
            }
            from_s = to_s;
        }
    }
}

/// The watched connections, and their points.
#[derive(Debug, Default)]
pub struct Watch {
    wanted: Option<Vec<u64>>,
    series: HashMap<u64, Series>,
}

impl Watch {
    /// Watch the connections with these numbers, or the first ones if `None`.
    #[must_use]
    pub fn new(wanted: Option<Vec<u64>>) -> Self {
        Self {
            wanted,
            series: HashMap::new(),
        }
    }

    /// Remove and return the points of a connection; `client` is the end of its key that is the client.
    #[must_use]
    pub fn take(&mut self, index: u64, client: usize) -> Option<Series> {
        let mut series = self.series.remove(&index)?;
        for point in &mut series.points {
            point.client = usize::from(point.from) == client;
        }
        for span in &mut series.spans {
            span.cause = figures::name_cause(span.position, client);
        }
        Some(series)
    }

    /// Record a packet that was counted in `conn`; `before` is the time by cause before the packet.
    pub(crate) fn record(&mut self, conn: &Conn, segment: &Segment, was_new: bool, before: Spent) {
        let watched = self
            .wanted
            .as_ref()
            .map_or(conn.index < MAX_WATCHED, |wanted| {
                wanted.contains(&conn.index)
            });
        if !watched {
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
        let path = &conn.paths[usize::from(segment.from & 1)];
        let says = segment.flags & (flag::ACK | flag::SYN | flag::RST) == flag::ACK;
        let series = self.series.entry(conn.index).or_default();
        let mut spent = conn.account.spent;
        for (now, before) in spent.iter_mut().zip(before) {
            *now = now.saturating_sub(before);
        }
        series.spend(
            conn.attributed_until().saturating_sub(conn.start_ts) as f64 / 1e9,
            spent,
        );
        series.push(SeriesPoint {
            t,
            from: segment.from,
            client: false,
            kind,
            to,
            acked,
            room: if says {
                acked + u64::from(path.window)
            } else {
                0
            },
            sack: segment.options.sacked.is_some(),
        });
    }
}
