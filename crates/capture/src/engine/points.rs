//! Compare the same packets at several points of their path: which were lost in between, and how long the others took.
//!
//! Packets are matched by content: flow, sequence and acknowledgement numbers, length, time stamps and IPv4's
//! identification. Systems that split large segments or join small ones behind the point of capture preserve the end of
//! the data and the time stamp. If several packets match, an arrival is matched with the last packet sent before it
//! (see [`crate::engine::clocks`]).

use crate::connection::seqspace::not_after;
use crate::engine::clocks::Clock;
use crate::engine::front::Front;
use crate::wire::fault::Fault;
use crate::wire::filter::Filter;
use crate::wire::host::Host;
use crate::wire::input::Source;
use crate::wire::packet::{flag, FlowKey, Segment, TCP};
use crate::wire::services::Services;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of packets; bounds the memory to a few gigabytes.
const MOST: usize = 30_000_000;
/// Packets sent less than this before the end of the common time may still be in flight.
const MARGIN: i64 = 200_000_000;

/// One packet at one point.
#[derive(Clone, Copy, Debug)]
struct SeenPacket {
    ts: i64,
    flow: u32,
    seq: u32,
    ack: u32,
    length: u32,
    stamp: u32,
    id: u16,
    flags: u8,
    from: u8,
}

impl SeenPacket {
    fn end(&self) -> u32 {
        self.seq.wrapping_add(self.length)
    }

    /// Return how many sequence numbers it takes. A packet that takes none is never acknowledged.
    fn extent(&self) -> u32 {
        self.length + (self.flags & (flag::SYN | flag::FIN)).count_ones()
    }

    /// Return the sequence number behind those that it takes.
    fn reach(&self) -> u32 {
        self.seq.wrapping_add(self.extent())
    }

    /// Return the fields that are the same at every point.
    fn whole(&self) -> Key {
        (
            self.flow,
            self.from,
            self.flags,
            self.seq,
            self.ack,
            self.length,
            self.stamp,
            self.id,
        )
    }

    /// Return the fields that stay the same if segments are split or joined; `None` for a packet without data.
    fn tail(&self) -> Option<Key> {
        (self.length > 0).then(|| (self.flow, self.from, 0, self.end(), 0, 0, self.stamp, 0))
    }
}

type Key = (u32, u8, u8, u32, u32, u32, u32, u16);

/// All packets seen at one point, in order of time.
struct Point {
    seen: Vec<SeenPacket>,
}

/// The flows of all points, by number.
#[derive(Default)]
struct Flows {
    numbers: HashMap<FlowKey, u32>,
    keys: Vec<FlowKey>,
    names: Vec<Arc<str>>,
}

impl Flows {
    fn number_flow(&mut self, key: &FlowKey) -> u32 {
        *self.numbers.entry(*key).or_insert_with(|| {
            self.keys.push(*key);
            self.keys.len() as u32 - 1
        })
    }
}

/// Delays of one direction in seconds; `None` if nothing was matched.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DelayStats {
    /// Matched packets.
    pub count: u64,
    /// Shortest.
    pub min_s: Option<f64>,
    /// Median.
    pub p50_s: Option<f64>,
    /// 95th percentile.
    pub p95_s: Option<f64>,
    /// Longest.
    pub max_s: Option<f64>,
}

impl DelayStats {
    fn of(mut nanos: Vec<i64>) -> Self {
        nanos.sort_unstable();
        let at = |share: f64| {
            let rank = (share * nanos.len() as f64).ceil() as usize;
            nanos.get(rank.saturating_sub(1)).map(|&ns| ns as f64 / 1e9)
        };
        Self {
            count: nanos.len() as u64,
            min_s: at(0.0),
            p50_s: at(0.5),
            p95_s: at(0.95),
            max_s: at(1.0),
        }
    }
}

/// One direction between two points.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DirectionStats {
    /// Packets seen at the point nearer to the sender while the other point was captured too.
    pub sent: u64,
    /// Packets that were not seen at the other point and were retransmitted or never acknowledged: lost in between. One
    /// that takes no sequence number (an acknowledgement, a datagram) counts only if the capture of the other point
    /// seems to be complete.
    pub lost: u64,
    /// Packets that were not seen at the other point although their data arrived: lost by its capture.
    pub uncaptured: u64,
    /// Delays of the packets seen at both points.
    pub delay: DelayStats,
}

/// A connection at two points.
#[derive(Clone, Debug, Serialize)]
pub struct Flow {
    /// Addresses and ports of both ends of the key.
    pub ends: [(Host, u16); 2],
    /// Which point is nearer to the first end: 0 or 1; `None` if the packets of one direction are missing.
    pub nearer: Option<usize>,
    /// From the first end, and from the second.
    pub ways: [DirectionStats; 2],
}

/// The comparison of two points.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// The second point's clock compared with the first's; `None` if no connection was seen in both directions at both.
    pub clock: Option<Clock>,
    /// Packets seen at both.
    pub matched: u64,
    /// All packets from the first point to the second, and back.
    pub ways: [DirectionStats; 2],
    /// By connection.
    pub flows: Vec<Flow>,
}

/// Compare each point with the next one.
///
/// # Errors
///
/// If a file cannot be read; the error contains its name.
pub fn compare(files: &[String], filter: Option<&Filter>) -> Result<Vec<Pair>, (String, Fault)> {
    let mut flows = Flows::default();
    let services = Services::system();
    let mut points = Vec::new();
    for file in files {
        let point = read(file, filter, &services, &mut flows);
        points.push(point.map_err(|fault| (file.clone(), fault))?);
    }
    let pairs = points.windows(2);
    Ok(pairs
        .map(|pair| compare_pair(&pair[0], &pair[1], &flows))
        .collect())
}

fn read(
    file: &str,
    filter: Option<&Filter>,
    services: &Services,
    flows: &mut Flows,
) -> Result<Point, Fault> {
    let mut source = Source::open(file).map_err(|e| Fault::io(0, &e))?;
    let mut front = Front::new(filter.cloned());
    let mut seen = Vec::new();
    let (_, read) = front.read(&mut source, services, &mut |segments, names| {
        flows.names.extend_from_slice(names);
        for segment in segments.drain(..).filter(|segment| segment.seq_known) {
            if seen.len() < MOST {
                seen.push(record_packet(&segment, flows));
            }
        }
    });
    read?;
    if seen.len() == MOST {
        return Err(Fault::new(0, "the capture has too many packets to match")
            .hint("choose connections: --filter HOST, PORT or FLOW"));
    }
    seen.sort_by_key(|seen| seen.ts);
    Ok(Point { seen })
}

fn record_packet(segment: &Segment, flows: &mut Flows) -> SeenPacket {
    let tcp = segment.key.protocol == TCP;
    SeenPacket {
        ts: segment.ts,
        flow: flows.number_flow(&segment.key),
        // What identifies a datagram's contents depends on where its checksum is computed.
        seq: if tcp { segment.seq } else { 0 },
        ack: segment.ack,
        length: if tcp { segment.payload } else { 0 },
        stamp: match segment.options.stamps {
            Some((value, _)) => value,
            // A datagram has no other number.
            None if !tcp => segment.payload,
            None => segment.options.sacked.unwrap_or(0),
        },
        id: segment.id,
        // Flags that the network may set are not content.
        flags: segment.flags & (flag::SYN | flag::FIN | flag::RST | flag::PSH | flag::ACK),
        from: segment.from & 1,
    }
}

/// Which packets of two points are the same: for each of the first point, its position at the second.
struct Matches {
    of_first: Vec<Option<u32>>,
    of_second: Vec<Option<u32>>,
}

impl Matches {
    fn join(&mut self, first: u32, second: u32) {
        self.of_first[first as usize] = Some(second);
        self.of_second[second as usize] = Some(first);
    }

    /// Match the remaining packets by `key`. A key that occurs once at each point identifies its packet. For any other
    /// key, if the clocks are known, match each arrival with the last packet sent before it.
    fn match_by(
        &mut self,
        points: [&Point; 2],
        key: impl Fn(&SeenPacket) -> Option<Key>,
        clock: Option<(&Clock, &[Option<usize>])>,
    ) {
        let mut places: HashMap<Key, [Vec<u32>; 2]> = HashMap::new();
        for (number, point) in points.into_iter().enumerate() {
            for (at, seen) in point.seen.iter().enumerate() {
                let known = if number == 0 {
                    &self.of_first
                } else {
                    &self.of_second
                };
                if known[at].is_some() {
                    continue;
                }
                if let Some(key) = key(seen) {
                    places.entry(key).or_default()[number].push(at as u32);
                }
            }
        }
        for [first, second] in places.into_values() {
            if let ([one], [other]) = (&first[..], &second[..]) {
                self.join(*one, *other);
            } else if let Some((clock, nearer)) = clock {
                self.match_last_sent(points, first, second, clock, nearer);
            }
        }
    }

    /// Among equal packets, match each arrival with the last one sent before it.
    fn match_last_sent(
        &mut self,
        points: [&Point; 2],
        first: Vec<u32>,
        second: Vec<u32>,
        clock: &Clock,
        nearer: &[Option<usize>],
    ) {
        let Some(some) = first.first().map(|&at| points[0].seen[at as usize]) else {
            return;
        };
        let slack = (clock.offset_error_s * 1e9) as i64;
        // Whether these packets pass the first point first.
        let ahead = nearer[some.flow as usize].is_none_or(|point| (point == 0) == (some.from == 0));
        let mut sent: Vec<(i64, u32)> = first
            .into_iter()
            .map(|at| (points[0].seen[at as usize].ts, at))
            .collect();
        let mut arrived: Vec<(i64, u32)> = second
            .into_iter()
            .map(|at| (clock.back(points[1].seen[at as usize].ts), at))
            .collect();
        if !ahead {
            std::mem::swap(&mut sent, &mut arrived);
        }
        for (ts, at) in arrived.into_iter().rev() {
            while let Some((before, other)) = sent.pop() {
                if before <= ts + slack {
                    if ahead {
                        self.join(other, at);
                    } else {
                        self.join(at, other);
                    }
                    break;
                }
            }
        }
    }
}

fn compare_pair(one: &Point, two: &Point, flows: &Flows) -> Pair {
    let points = [one, two];
    let mut matches = Matches {
        of_first: vec![None; one.seen.len()],
        of_second: vec![None; two.seen.len()],
    };
    matches.match_by(points, |seen| Some(seen.whole()), None);
    matches.match_by(points, SeenPacket::tail, None);
    let nearer = find_nearer(points, &matches, flows.keys.len());
    let clock = estimate_clock(points, &matches, &nearer);
    if let Some(clock) = &clock {
        matches.match_by(points, |seen| Some(seen.whole()), Some((clock, &nearer)));
        matches.match_by(points, SeenPacket::tail, Some((clock, &nearer)));
    }
    let count = matches.of_first.iter().flatten().count();
    let (ways, flows) = clock
        .and_then(|clock| measure_directions(points, &matches, &clock, &nearer, flows))
        .unwrap_or_default();
    Pair {
        clock,
        matched: count as u64,
        ways,
        flows,
    }
}

/// Return which point is nearer to the first end of each flow: that end's packets pass it sooner, whatever the clocks
/// show.
fn find_nearer(points: [&Point; 2], matches: &Matches, flows: usize) -> Vec<Option<usize>> {
    let mut least = vec![[i64::MAX; 2]; flows];
    for (at, other) in matches.of_first.iter().enumerate() {
        let Some(other) = other else { continue };
        let (seen, there) = (&points[0].seen[at], &points[1].seen[*other as usize]);
        let sign = if seen.from == 0 { 1 } else { -1 };
        let least = &mut least[seen.flow as usize][usize::from(seen.from)];
        *least = (*least).min(sign * (there.ts - seen.ts));
    }
    // The two differences add up to two delays, or to a negative time if the points are in the other order.
    let told = |[there, back]: [i64; 2]| {
        (there != i64::MAX && back != i64::MAX).then(|| usize::from(there + back < 0))
    };
    least.into_iter().map(told).collect()
}

fn estimate_clock(
    points: [&Point; 2],
    matches: &Matches,
    nearer: &[Option<usize>],
) -> Option<Clock> {
    let mut ways: [Vec<(i64, i64)>; 2] = Default::default();
    for (at, other) in matches.of_first.iter().enumerate() {
        let Some(other) = other else { continue };
        let (seen, there) = (&points[0].seen[at], &points[1].seen[*other as usize]);
        let Some(point) = nearer[seen.flow as usize] else {
            continue;
        };
        let back = usize::from((point == 0) != (seen.from == 0));
        ways[back].push((seen.ts, there.ts - seen.ts));
    }
    Clock::of(&ways[0], &ways[1])
}

/// Return the beginning and the end of the time during which both points were captured, by the first one's clock.
fn find_common_time(points: [&Point; 2], clock: &Clock) -> Option<(i64, i64)> {
    let (one, two) = (&points[0].seen, &points[1].seen);
    let from = one.first()?.ts.max(clock.back(two.first()?.ts));
    let to = one.last()?.ts.min(clock.back(two.last()?.ts));
    Some((from, to))
}

/// The data of one direction that were seen at a point, and the highest acknowledgement of them.
#[derive(Default)]
struct Coverage {
    /// (sequence number, end, time), by time.
    data: Vec<(u32, u32, u32)>,
    acked: Option<u32>,
}

fn collect_coverage(point: &Point, flows: usize) -> Vec<[Coverage; 2]> {
    let mut covers: Vec<[Coverage; 2]> = (0..flows).map(|_| Default::default()).collect();
    for seen in &point.seen {
        let covers = &mut covers[seen.flow as usize];
        let from = usize::from(seen.from);
        if seen.extent() > 0 {
            covers[from].data.push((seen.seq, seen.reach(), seen.stamp));
        }
        if seen.flags & flag::ACK != 0 && seen.flags & flag::RST == 0 {
            let acked = &mut covers[1 - from].acked;
            if acked.is_none_or(|acked| not_after(acked, seen.ack)) {
                *acked = Some(seen.ack);
            }
        }
    }
    for way in covers.iter_mut().flatten() {
        // All sequence numbers are of one connection, so compare them with wrap-around.
        let base = way.data.first().map_or(0, |first| first.0);
        way.data
            .sort_by_key(|&(seq, ..)| seq.wrapping_sub(base.wrapping_sub(1 << 30)));
    }
    covers
}

impl Coverage {
    /// Whether the data of `seen` was seen here: in the same transmission, and in any.
    fn has(&self, seen: &SeenPacket) -> (bool, bool) {
        let base = self.data.first().map_or(0, |first| first.0);
        let place = |seq: u32| seq.wrapping_sub(base.wrapping_sub(1 << 30));
        let until = self
            .data
            .partition_point(|&(seq, ..)| place(seq) < place(seen.reach()));
        let mut any = false;
        // Joined segments are at most 64 kB long, and are retransmitted at most a few dozen times.
        for &(_, end, stamp) in self.data[..until].iter().rev().take(256) {
            if !not_after(end, seen.seq) {
                any = true;
                if stamp == seen.stamp && stamp != 0 {
                    return (true, true);
                }
            }
        }
        (false, any)
    }
}

fn measure_directions(
    points: [&Point; 2],
    matches: &Matches,
    clock: &Clock,
    nearer: &[Option<usize>],
    flows: &Flows,
) -> Option<([DirectionStats; 2], Vec<Flow>)> {
    let count = flows.keys.len();
    let mut ways: Vec<[DirectionStats; 2]> = (0..count).map(|_| Default::default()).collect();
    let mut delays: Vec<[Vec<i64>; 2]> = (0..count).map(|_| Default::default()).collect();
    let covers = [
        collect_coverage(points[0], count),
        collect_coverage(points[1], count),
    ];
    let (from, to) = find_common_time(points, clock)?;
    // Packets without data that were not seen at the other point, and whether each point's capture has all data that
    // arrived there.
    let mut bare = vec![[0; 2]; count];
    let mut complete = [true; 2];
    let mut whole: [DirectionStats; 2] = Default::default();
    let mut all: [Vec<i64>; 2] = Default::default();
    let time = |point: usize, ts: i64| if point == 0 { ts } else { clock.back(ts) };
    for (point, known) in [&matches.of_first, &matches.of_second]
        .into_iter()
        .enumerate()
    {
        for (at, other) in known.iter().enumerate() {
            let seen = &points[point].seen[at];
            let Some(near) = nearer[seen.flow as usize] else {
                continue;
            };
            let sender_here = (near == point) == (seen.from == 0);
            let ts = time(point, seen.ts);
            if !sender_here || ts < from || ts > to {
                continue;
            }
            let (flow, end) = (seen.flow as usize, usize::from(seen.from));
            let way = &mut ways[flow][end];
            if let Some(other) = other {
                way.sent += 1;
                let arrived = time(1 - point, points[1 - point].seen[*other as usize].ts);
                delays[flow][end].push(arrived - ts);
                continue;
            }
            if ts > to - MARGIN {
                continue;
            }
            way.sent += 1;
            let there = &covers[1 - point][flow][end];
            let (same, any) = there.has(seen);
            let acked = covers[point][flow][end].acked;
            if same {
                // It arrived split or joined.
            } else if seen.extent() == 0 {
                bare[flow][end] += 1;
            } else if !any && acked.is_some_and(|acked| not_after(seen.reach(), acked)) {
                way.uncaptured += 1;
                complete[1 - point] = false;
            } else {
                way.lost += 1;
            }
        }
    }
    let mut found = Vec::new();
    for (flow, (mut ways, delays)) in ways.into_iter().zip(delays).enumerate() {
        if ways[0].sent + ways[1].sent == 0 {
            continue;
        }
        for (end, (way, nanos)) in ways.iter_mut().zip(delays).enumerate() {
            // The other point is the one that is nearer to the other end.
            if nearer[flow].is_some_and(|near| complete[near ^ end ^ 1]) {
                way.lost += bare[flow][end];
            }
            // The first end's packets pass the point nearer to it first.
            if let Some(near) = nearer[flow] {
                let total = &mut whole[near ^ end];
                total.sent += way.sent;
                total.lost += way.lost;
                total.uncaptured += way.uncaptured;
                all[near ^ end].extend_from_slice(&nanos);
            }
            way.delay = DelayStats::of(nanos);
        }
        let key = &flows.keys[flow];
        let host = |end: usize| Host::new(key.family, key.addr[end], &flows.names);
        found.push(Flow {
            ends: [(host(0), key.port[0]), (host(1), key.port[1])],
            nearer: nearer[flow],
            ways,
        });
    }
    for (way, nanos) in whole.iter_mut().zip(all) {
        way.delay = DelayStats::of(nanos);
    }
    Some((whole, found))
}
