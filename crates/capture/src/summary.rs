//! What is left of a connection when it is over, and what is said about it.

use crate::conn::{Conn, Latency};
use crate::figures::{Causes, RoundTrips};
use crate::packet::{flag, AddrWords, Family, FlowKey, NO_TIME, TCP};
use serde::{Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// An address, or a name out of a packet list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// An address.
    Ip(IpAddr),
    /// A name that a packet list gave instead.
    Name(Arc<str>),
}

impl Host {
    /// From a key's words; `names` holds the names of a packet list.
    #[must_use]
    pub fn new(family: Family, words: AddrWords, names: &[Arc<str>]) -> Self {
        match family {
            Family::V4 => Self::Ip(Ipv4Addr::from(words[0] as u32).into()),
            Family::V6 => {
                Self::Ip(Ipv6Addr::from(u128::from(words[0]) << 64 | u128::from(words[1])).into())
            }
            Family::Name => Self::Name(
                names
                    .get(words[0] as usize)
                    .cloned()
                    .unwrap_or_else(|| "?".into()),
            ),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Serialize for Host {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How the two roles were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Roles {
    /// From the SYN or its answer.
    Handshake,
    /// From the ports: the server's is the lower one.
    Ports,
    /// UDP: the client sent first.
    First,
}

/// How much of the connection was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Captured {
    /// Beginning and end.
    Whole,
    /// It began before the capture.
    NoStart,
    /// It had not ended.
    NoEnd,
    /// Neither.
    Middle,
    /// Datagrams have neither.
    Flow,
}

/// Remarks on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// Only one direction was captured.
    OneSided,
    /// Same addresses and ports as an earlier connection.
    PortReused,
    /// Put away while open to keep within the memory limit; its later packets count as another connection.
    Evicted,
    /// Unique and retransmitted bytes are not exact: too many gaps at once.
    Inexact,
    /// Sequence numbers passed 2^32.
    Wrapped,
    /// Bytes were acknowledged that the capture does not hold.
    MissingBytes,
    /// Packets larger than the peer's maximum segment size.
    Offload,
    /// Time stamps stepped backwards.
    ClockBackwards,
}

/// Near which end the capture was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// On or near the client.
    Client,
    /// On or near the server.
    Server,
    /// Cannot be told.
    Unknown,
}

/// Response latency of one endpoint, in seconds. All but `count` and `total_s` are absent when there was no response.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Response {
    /// Number of responses.
    pub count: u64,
    /// Sum of all.
    pub total_s: f64,
    /// Share of the connection's duration.
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

/// Nanoseconds as seconds.
#[must_use]
pub fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

impl Response {
    /// Summarise, with or without percentiles; `duration` in nanoseconds is what shares are of.
    #[must_use]
    pub fn new(latency: &Latency, duration: u64, percentiles: bool) -> Self {
        let mut out = Self {
            count: latency.count,
            total_s: seconds(latency.sum),
            ..Self::default()
        };
        if duration > 0 {
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
    /// Packets sent.
    pub packets: u64,
    /// Bytes on the wire, link headers included.
    pub wire_bytes: u64,
    /// Payload, repeated bytes included.
    pub payload_bytes: u64,
    /// Payload, each byte once.
    pub unique_bytes: u64,
    /// Payload sent again.
    pub retransmitted_bytes: u64,
    /// Packets that repeat something.
    pub retransmissions: u32,
    /// Packets with new bytes from before the highest seen.
    pub out_of_order: u32,
    /// Bytes the peer acknowledged that the capture does not hold.
    pub missing_bytes: u64,
    /// Announcements of a zero window.
    pub zero_windows: u32,
    /// Resets.
    pub resets: u32,
    /// Announced maximum segment size, 0 when unknown.
    pub mss: u16,
    /// Largest payload of one packet.
    pub largest_payload: u32,
    /// Packets larger than the peer's maximum segment size.
    pub oversized: u32,
    /// Unique payload over the connection's duration.
    pub throughput_bytes_per_s: Option<f64>,
    /// Round trips between the point of capture and this end.
    pub rtt: RoundTrips,
    /// Smallest window it announced after the handshake, scaled.
    pub window_min: Option<u32>,
    /// Largest window.
    pub window_max: Option<u32>,
    /// Packets with selective acknowledgements.
    pub sacks: u32,
    /// Most bytes it had in flight.
    pub in_flight_max: u32,
    /// Packets of it that the capture holds more than once, which are counted once.
    pub copies: u32,
    /// Its response latency.
    pub response: Response,
}

/// One connection, finished.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Number in order of appearance, from 0.
    pub index: u64,
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// Who opened it.
    pub client: Side,
    /// Who was asked.
    pub server: Side,
    /// How the roles were found.
    pub roles: Roles,
    /// How much of it was captured.
    pub captured: Captured,
    /// Remarks.
    pub marks: Vec<Mark>,
    /// First packet, nanoseconds since 1970.
    pub start_ns: i64,
    /// From the first packet to the last, nanoseconds.
    pub duration_ns: u64,
    /// The same in seconds.
    pub duration_s: f64,
    /// First SYN to the client's ACK.
    pub handshake_s: Option<f64>,
    /// Last SYN to its answer.
    pub syn_to_synack_s: Option<f64>,
    /// Answer to the client's ACK.
    pub synack_to_ack_s: Option<f64>,
    /// Share of the duration that is nobody's response: more packets of whoever sent last.
    pub unknown_share: Option<f64>,
    /// Near which end the capture was taken.
    pub capture_point: Point,
    /// What the duration was spent on; absent when only one direction was captured.
    pub causes: Causes,
}

impl Summary {
    /// Summarise a connection; returns it with the client's end of the key.
    #[inline]
    #[must_use]
    pub fn new(conn: &Conn, names: &[Arc<str>], evicted: bool, percentiles: bool) -> (Self, usize) {
        let (client, roles) = roles(conn);
        let duration = conn.duration();
        let [first, second] = [
            side(conn, client, percentiles, names),
            side(conn, 1 - client, percentiles, names),
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
        let summary = Self {
            index: conn.index,
            protocol: if conn.key.protocol == TCP {
                "tcp"
            } else {
                "udp"
            },
            marks: marks(conn, &[&first, &second], evicted),
            captured: captured(conn),
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
            capture_point: capture_point(conn, client, syn_to_synack_s, synack_to_ack_s),
            causes: conn
                .causes()
                .map_or_else(Causes::default, |spent| Causes::new(spent, client)),
        };
        (summary, client)
    }

    /// Packets of both directions.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.client.packets + self.server.packets
    }
}

fn roles(conn: &Conn) -> (usize, Roles) {
    let how = match conn.client {
        Some(_) if conn.key.protocol == TCP => Roles::Handshake,
        Some(_) => Roles::First,
        None => Roles::Ports,
    };
    (conn.client_end(), how)
}

fn captured(conn: &Conn) -> Captured {
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

fn missing(conn: &Conn, which: usize) -> u64 {
    let (sent, peer) = (&conn.sent[which], &conn.sent[1 - which]);
    if conn.flags[1 - which] & flag::ACK == 0 || !sent.space.started() {
        return 0;
    }
    let unseen = sent.space.unseen_below(peer.acked);
    // An acknowledgement of a FIN or SYN that was not captured is one beyond the bytes.
    let finished = conn.flags[which] & flag::FIN != 0;
    if unseen == 1 && !finished {
        0
    } else {
        unseen
    }
}

fn side(conn: &Conn, which: usize, percentiles: bool, names: &[Arc<str>]) -> Side {
    let duration = conn.duration();
    let (sent, rare, path) = (&conn.sent[which], &conn.rare[which], &conn.paths[which]);
    let FlowKey {
        addr, port, family, ..
    } = conn.key;
    Side {
        address: Host::new(family, addr[which], names),
        port: port[which],
        packets: sent.packets,
        wire_bytes: sent.wire,
        payload_bytes: sent.unique + rare.repeated,
        unique_bytes: sent.unique,
        retransmitted_bytes: rare.repeated,
        retransmissions: rare.retransmissions,
        out_of_order: rare.late,
        missing_bytes: missing(conn, which),
        zero_windows: rare.zero_windows,
        resets: rare.resets,
        mss: rare.mss,
        largest_payload: sent.largest,
        oversized: rare.oversized,
        throughput_bytes_per_s: (duration > 0).then(|| sent.unique as f64 / seconds(duration)),
        rtt: RoundTrips::new(&conn.rtt[which], percentiles),
        window_min: (path.window_min != u32::MAX).then_some(path.window_min),
        window_max: (path.window_min != u32::MAX).then_some(path.window_max),
        sacks: path.sacks,
        in_flight_max: path.in_flight,
        copies: path.copies,
        response: Response::new(&sent.latency, duration, percentiles),
    }
}

fn marks(conn: &Conn, sides: &[&Side; 2], evicted: bool) -> Vec<Mark> {
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
        (conn.backwards, Mark::ClockBackwards),
    ]
    .into_iter()
    .filter_map(|(holds, mark)| holds.then_some(mark))
    .collect()
}

/// The record's own direction decides; else the end that answered the handshake at least four times faster is the near one.
fn capture_point(
    conn: &Conn,
    client: usize,
    far_server: Option<f64>,
    far_client: Option<f64>,
) -> Point {
    if let Some(local) = conn.local {
        return if usize::from(local) == client {
            Point::Client
        } else {
            Point::Server
        };
    }
    match (far_server, far_client) {
        (Some(server), Some(client)) if server > 4.0 * client => Point::Client,
        (Some(server), Some(client)) if client > 4.0 * server => Point::Server,
        _ => Point::Unknown,
    }
}
