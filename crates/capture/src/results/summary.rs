//! Summarise a connection when it is over.

use crate::connection::conn::{Conn, Steps};
use crate::connection::latency::seconds;
use crate::connection::spent::{on, Spent};
use crate::results::confidence::Confidence;
use crate::results::figures::{self, Causes};
use crate::results::side::Side;
use crate::wire::packet::{flag, NO_TIME, TCP};
use serde::Serialize;
use std::sync::Arc;

/// How the two roles were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Roles {
    /// By the SYN or its answer.
    Handshake,
    /// By the ports: the server has the lower one.
    Ports,
    /// By the first packet, which the client sent (UDP).
    First,
}

/// How much of the connection was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Captured {
    /// Both its beginning and its end were captured.
    Whole,
    /// It began before the capture.
    NoStart,
    /// It was still open when the capture ended.
    NoEnd,
    /// Neither its beginning nor its end was captured.
    Middle,
    /// Not applicable: UDP has no beginning or end.
    Flow,
}

/// Remarks on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// Only one direction was captured.
    OneSided,
    /// It has the same addresses and ports as an earlier connection.
    PortReused,
    /// It was evicted while open to keep within the memory limit; its later packets count as another connection.
    Evicted,
    /// Unique and retransmitted bytes are not exact: too many gaps at once.
    Inexact,
    /// Sequence numbers passed 2^32.
    Wrapped,
    /// Bytes were acknowledged that were not captured.
    MissingBytes,
    /// It has packets larger than the peer's maximum segment size.
    Offload,
    /// Time stamps stepped backwards.
    ClockBackwards,
    /// Nearly every byte was captured twice, far apart: captures of two points were merged.
    Merged,
}

/// Near which end the capture was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// On or near the client.
    Client,
    /// On or near the server.
    Server,
    /// Unknown.
    Unknown,
}

/// A finished connection.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionSummary {
    /// Number in order of appearance, from 0.
    pub index: u64,
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// The end that opened the connection.
    pub client: Side,
    /// The server.
    pub server: Side,
    /// How the roles were found.
    pub roles: Roles,
    /// How much of it was captured.
    pub captured: Captured,
    /// Remarks.
    pub marks: Vec<Mark>,
    /// Time of the first packet, in nanoseconds since 1970.
    pub start_ns: i64,
    /// Time from the first packet to the last, in nanoseconds.
    pub duration_ns: u64,
    /// The same in seconds.
    pub duration_s: f64,
    /// Time from the first SYN to the client's ACK.
    pub handshake_s: Option<f64>,
    /// Time from the last SYN to its answer.
    pub syn_to_synack_s: Option<f64>,
    /// Time from this answer to the client's ACK.
    pub synack_to_ack_s: Option<f64>,
    /// Share of the duration that is part of no response: time before further packets of the end that sent last.
    pub unknown_share: Option<f64>,
    /// Near which end the capture was taken.
    pub capture_point: Point,
    /// The duration by cause; absent if only one direction was captured.
    pub causes: Causes,
    /// How reliable the causes are.
    pub confidence: Option<Confidence>,
    /// The duration without the time in which neither end owed anything.
    pub waited_s: Option<f64>,
    /// The longest uninterrupted wait, with a resolution of 16 microseconds.
    pub longest_wait_s: Option<f64>,
    /// The cause of that wait, as in [`figures::name_cause`].
    pub longest_wait_for: Option<&'static str>,
    /// Nanoseconds by cause.
    #[serde(skip)]
    pub spent: Option<Spent>,
    /// The waited time in nanoseconds, by which connections are ranked.
    #[serde(skip)]
    pub waited_ns: u64,
}

impl ConnectionSummary {
    /// Summarise a connection; also return which end of the key is the client. `wants_percentiles` is called with the
    /// connection's `waited_ns`.
    #[inline]
    #[must_use]
    pub fn new(
        conn: &Conn,
        names: &[Arc<str>],
        evicted: bool,
        wants_percentiles: impl FnOnce(u64) -> bool,
    ) -> (Self, usize) {
        let (client, roles) = find_roles(conn);
        let duration = conn.duration();
        let spent = conn.causes();
        let waited_ns = spent.map_or(0, |spent| duration.saturating_sub(spent[on::IDLE]));
        let percentiles = wants_percentiles(waited_ns);
        let [first, second] = [
            Side::new(conn, client, percentiles, names),
            Side::new(conn, 1 - client, percentiles, names),
        ];
        let hands = conn.handshake;
        let apart = |from: i64, to: i64| {
            let known = from != NO_TIME && to != NO_TIME;
            known.then(|| seconds(to.saturating_sub(from).max(0) as u64))
        };
        let syn_to_synack_s = (hands.syn != NO_TIME)
            .then(|| apart(hands.last_syn, hands.synack))
            .flatten();
        let synack_to_ack_s = apart(hands.synack, hands.ack);
        let answered = first.response.total_s + second.response.total_s;
        let longest = spent.map(|_| conn.account.longest);
        let confidence = spent.map(|spent| Confidence::of(conn, &[&first, &second], &spent));
        let summary = Self {
            index: conn.index,
            protocol: if conn.key.protocol == TCP {
                "tcp"
            } else {
                "udp"
            },
            marks: list_marks(conn, &[&first, &second], evicted),
            captured: find_captured(conn),
            client: first,
            server: second,
            roles,
            start_ns: conn.start_ts,
            duration_ns: duration,
            duration_s: seconds(duration),
            handshake_s: apart(hands.syn, hands.ack),
            syn_to_synack_s,
            synack_to_ack_s,
            unknown_share: (duration > 0).then(|| (1.0 - answered / seconds(duration)).max(0.0)),
            capture_point: find_capture_point(conn, client, syn_to_synack_s, synack_to_ack_s),
            causes: spent.map_or_else(Causes::default, |spent| Causes::new(spent, client)),
            confidence,
            waited_s: spent.map(|_| seconds(waited_ns)),
            longest_wait_s: longest.map(|wait| seconds(wait.nanos())),
            longest_wait_for: longest
                .and_then(|wait| Some(figures::name_cause(wait.cause()?, client))),
            spent,
            waited_ns,
        };
        (summary, client)
    }

    /// Return the number of packets in both directions.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.client.packets + self.server.packets
    }
}

fn find_roles(conn: &Conn) -> (usize, Roles) {
    let how = match conn.client {
        Some(_) if conn.key.protocol == TCP => Roles::Handshake,
        Some(_) => Roles::First,
        None => Roles::Ports,
    };
    (conn.client_end(), how)
}

fn find_captured(conn: &Conn) -> Captured {
    if conn.key.protocol != TCP {
        return Captured::Flow;
    }
    let begun = (conn.flags[0] | conn.flags[1]) & flag::SYN != 0;
    match (begun, conn.is_over()) {
        (true, true) => Captured::Whole,
        (false, true) => Captured::NoStart,
        (true, false) => Captured::NoEnd,
        (false, false) => Captured::Middle,
    }
}

fn list_marks(conn: &Conn, sides: &[&Side; 2], evicted: bool) -> Vec<Mark> {
    let any = |f: fn(&Side) -> bool| sides.iter().any(|side| f(side));
    let [a, b] = [&conn.sent[0].space, &conn.sent[1].space];
    [
        (any(|s| s.packets == 0), Mark::OneSided),
        (conn.reused, Mark::PortReused),
        (evicted, Mark::Evicted),
        (a.inexact() || b.inexact(), Mark::Inexact),
        (a.wraps() + b.wraps() > 0, Mark::Wrapped),
        (any(|s| s.missing_bytes > 0), Mark::MissingBytes),
        (any(|s| s.oversized > 0), Mark::Offload),
        (conn.backwards > Steps::None, Mark::ClockBackwards),
        (conn.is_merged(), Mark::Merged),
    ]
    .into_iter()
    .filter_map(|(holds, mark)| holds.then_some(mark))
    .collect()
}

/// Find out near which end the capture was taken. The direction in the packets' records decides; without it, the near
/// end is the one that answered the handshake at least four times faster.
fn find_capture_point(
    conn: &Conn,
    client: usize,
    far_server: Option<f64>,
    far_client: Option<f64>,
) -> Point {
    match (conn.is_local(client), conn.is_local(1 - client)) {
        (true, true) => return Point::Unknown,
        (true, false) => return Point::Client,
        (false, true) => return Point::Server,
        (false, false) => {}
    }
    match (far_server, far_client) {
        (Some(server), Some(client)) if server > 4.0 * client => Point::Client,
        (Some(server), Some(client)) if client > 4.0 * server => Point::Server,
        _ => Point::Unknown,
    }
}
