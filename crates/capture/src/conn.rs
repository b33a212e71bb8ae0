//! One connection while it is open: everything is updated packet by packet in constant time and bounded space.

use crate::cause::{Causes, Step};
use crate::latency::Few;
use crate::packet::{flag, Direction, FlowKey, Segment, NO_TIME, TCP};
use crate::path::Path;
use crate::queue::Queue;
use crate::sent::{sequence, Rare, Sent};
use crate::wait::Brief;

/// A byte with one value: where `Option<Conn>` keeps whether there is a connection, in the line that is looked at anyway.
#[derive(Debug)]
#[repr(u8)]
pub enum Here {
    /// There is.
    Here = 0,
}

const SMALL_STEP: i64 = 1_000_000;

/// How far time stamps stepped backwards at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Steps {
    /// Not at all.
    None,
    /// By less than a millisecond, as where several processors capture.
    Small,
    /// By more.
    Large,
}

/// Time stamps of the three-way handshake in nanoseconds, [`NO_TIME`] for what was not seen.
#[derive(Clone, Copy, Debug)]
pub struct Handshake {
    /// First SYN.
    pub syn: i64,
    /// Last SYN before the answer.
    pub last_syn: i64,
    /// SYN with ACK.
    pub synack: i64,
    /// The client's first ACK after it.
    pub ack: i64,
}

/// One open connection.
///
/// Laid out by use: the first cache line is all of it that every packet looks at besides its sender's part, and the last
/// one is for the few packets that begin, end or disturb a connection.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Conn {
    /// The flow.
    pub key: FlowKey,
    /// Time of the last packet.
    pub last_ts: i64,
    /// The peer's maximum segment size, for each end as sender; 0 when unknown.
    pub limit: [u16; 2],
    /// Flags ever sent by either end.
    pub flags: [u8; 2],
    /// Which end sent the last packet.
    pub last_from: u8,
    /// Touched since the eviction hand last passed.
    pub touched: bool,
    /// In the queue of closed connections.
    pub closed: bool,
    /// The handshake was seen to its end.
    pub shaken: bool,
    /// Packets had a time before the previous one's.
    pub backwards: Steps,
    /// The same addresses and ports were used by an earlier connection.
    pub reused: bool,
    /// Which ends permit selective acknowledgements.
    pub selective: [bool; 2],
    /// It exists.
    pub here: Here,
    /// Both directions.
    pub sent: [Sent; 2],
    /// Both sides of the path.
    pub paths: [Path; 2],
    /// What the time was spent on.
    pub causes: Causes,
    /// Round trips between the point of capture and each end.
    pub rtt: [Few; 2],
    /// Both directions.
    rare: Option<Box<[Rare; 2]>>,
    /// Where what each end sends waits, in connections of more than a few packets.
    pub(crate) queues: Option<Box<[Queue; 2]>>,
    /// Smallest time.
    pub start_ts: i64,
    /// Largest time before a step backwards.
    pub latest: i64,
    /// Number in order of appearance.
    pub index: u64,
    /// The handshake.
    pub handshake: Handshake,
    /// Hash of the key.
    pub hash: u32,
    /// Bytes on the heap.
    pub heap: u32,
    /// The longest times for each end's program.
    pub(crate) own: [Brief; 2],
    /// Which end is the client, when the packets say so.
    pub client: Option<u8>,
    /// Which end is the capturing machine, when the packets say so.
    pub local: Option<u8>,
}

impl Conn {
    /// A connection that begins with `segment` (which is not counted yet).
    #[must_use]
    pub fn new(segment: &Segment, hash: u32, index: u64) -> Self {
        Self {
            key: segment.key,
            last_ts: segment.ts,
            limit: [0, 0],
            flags: [0, 0],
            last_from: segment.from,
            touched: true,
            closed: false,
            shaken: false,
            here: Here::Here,
            sent: Default::default(),
            paths: Default::default(),
            causes: Causes::new(segment.ts, segment.from),
            rtt: Default::default(),
            rare: None,
            queues: None,
            start_ts: segment.ts,
            latest: NO_TIME,
            index,
            handshake: Handshake {
                syn: NO_TIME,
                last_syn: NO_TIME,
                synack: NO_TIME,
                ack: NO_TIME,
            },
            hash,
            heap: 0,
            own: Default::default(),
            backwards: Steps::None,
            reused: false,
            selective: [false; 2],
            client: None,
            local: None,
        }
    }

    /// Read a word of every cache line that an update of direction `which` uses, so that they are on their way.
    #[inline]
    pub(crate) fn look(&self, which: usize) -> u64 {
        let (own, peer) = (&self.sent[which], &self.sent[1 - which]);
        let (path, other) = (&self.paths[which], &self.paths[1 - which]);
        self.last_ts as u64
            ^ own.packets
            ^ own.latency.count
            ^ own.latency.hist.look()
            ^ u64::from(own.largest)
            ^ u64::from(own.space.next())
            ^ u64::from(peer.acked)
            ^ path.nearest
            ^ path.unacked.look()
            ^ other.nearest
            ^ other.unacked.look()
            ^ self.attributed_until() as u64
            ^ self.rtt[which].look()
    }

    /// From the smallest time to the largest, nanoseconds.
    #[must_use]
    pub fn duration(&self) -> u64 {
        let end = self.latest.max(self.last_ts);
        end.saturating_sub(self.start_ts).max(0) as u64
    }

    /// Does `segment` begin another connection between the same addresses and ports?
    ///
    /// As Wireshark does: a SYN with another sequence number, or after a FIN or RST. A SYN crossing the peer's is the same.
    #[must_use]
    pub fn is_another(&self, segment: &Segment) -> bool {
        if segment.key.protocol != TCP || segment.flags & flag::SYN == 0 || !segment.seq_known {
            return false;
        }
        let own = &self.sent[usize::from(segment.from)];
        let peer = &self.sent[usize::from(1 - segment.from)];
        if own.packets + peer.packets == 0 {
            return false;
        }
        let flags = [
            self.flags[usize::from(segment.from)],
            self.flags[usize::from(1 - segment.from)],
        ];
        let ended = (flags[0] | flags[1]) & (flag::FIN | flag::RST) != 0;
        let fresh =
            own.packets > 0 && self.paths[usize::from(segment.from)].first_seq != segment.seq;
        if segment.flags & flag::ACK != 0 {
            return ended && fresh;
        }
        if own.packets > 0 {
            fresh || ended
        } else {
            flags[1] & flag::SYN == 0 || ended
        }
    }

    /// Count one segment.
    #[inline]
    pub fn update(&mut self, segment: &Segment) {
        let from = usize::from(segment.from & 1);
        let mut grown = self.time(segment);
        let own = &mut self.sent[from];
        own.packets += 1;
        own.wire += u64::from(segment.wire_len);
        own.largest = own.largest.max(segment.payload);
        if segment.direction != Direction::Unknown {
            let sender_is_local = segment.direction == Direction::Out;
            self.local = Some(if sender_is_local {
                segment.from
            } else {
                1 - segment.from
            });
        }
        if segment.key.protocol != TCP {
            own.unique += u64::from(segment.payload);
            self.client.get_or_insert(segment.from);
            self.attribute_datagram(segment);
            self.grow(grown);
            return;
        }
        let own = &self.sent[from];
        let (next, acked) = (own.space.next(), own.acked);
        let acked = (self.flags[from] & flag::ACK != 0).then_some(acked);
        let own = &mut self.sent[from];
        if own.packets == 1 {
            self.paths[from].first_seq = segment.seq;
        }
        if segment.flags & flag::ACK != 0 {
            let first = self.flags[from] & flag::ACK == 0;
            if first || (segment.ack.wrapping_sub(own.acked) as i32) > 0 {
                own.acked = segment.ack;
            }
        }
        self.flags[from] |= segment.flags;
        let (seen, again) = if segment.seq_known {
            sequence(&mut own.space, segment)
        } else {
            // A row without a number continues where the last one ended.
            (own.space.payload(own.space.next(), segment.payload), false)
        };
        own.unique += seen.new;
        grown += seen.grown;
        let repeats = seen.repeated > 0 || again;
        let says = segment.flags & (flag::RST | flag::SYN) == 0 && segment.seq_known;
        let limit = self.limit[from];
        let oversized = segment.payload > u32::from(limit) && limit != 0;
        let shut = segment.window == 0 && says;
        let segments = self.last_segments(from);
        let path = &mut self.paths[from];
        let stale = repeats && path.is_stale(segment);
        let order = path
            .numbers
            .order(segment.id, segments, segment.seq != next);
        if repeats || seen.late || shut || oversized {
            let rare = self.rare_mut(from);
            rare.stale += u32::from(stale);
            rare.repeated += seen.repeated;
            rare.retransmissions += u32::from(seen.repeated > 0) + u32::from(again);
            rare.late += u32::from(seen.late);
            rare.zero_windows += u32::from(shut);
            if shut && rare.shut.0 <= rare.shut.1 {
                rare.shut.0 = segment.ts;
            }
            rare.oversized += u32::from(oversized);
        }
        if says && !shut {
            if let Some(rare) = self.rare.as_mut().map(|rare| &mut rare[from]) {
                let is_shut = rare.shut.0 > rare.shut.1;
                rare.shut.1 = if is_shut { segment.ts } else { rare.shut.1 };
            }
        }
        if segment.flags & (flag::SYN | flag::RST) != 0 {
            let limit = &mut self.limit[1 - from];
            *limit = (*limit).max(segment.options.mss);
            let reset = u16::from(segment.flags & flag::RST != 0);
            self.paths[from].resets = self.paths[from].resets.saturating_add(reset);
        }
        if !self.shaken {
            self.shake_hands(segment);
        }
        let phantoms = segment.flags & (flag::SYN | flag::FIN) != 0;
        let step = Step {
            fresh: seen.new > 0 || phantoms && !repeats,
            repeats,
            next,
            acked,
            late: seen.late,
            order,
        };
        grown += self.attribute(segment, &step);
        self.grow(grown);
    }

    /// The largest segment that `end` may send.
    #[inline]
    #[must_use]
    pub(crate) fn largest_segment(&self, end: usize) -> u32 {
        u32::from(self.limit[end].max(536))
    }

    /// How many segments the last data of `end` was on the wire.
    #[inline]
    #[must_use]
    pub(crate) fn last_segments(&self, end: usize) -> u32 {
        self.paths[end].last_len.div_ceil(self.largest_segment(end))
    }

    /// What few packets of `end` change.
    #[must_use]
    pub fn rare(&self, end: usize) -> Rare {
        self.rare
            .as_ref()
            .map_or_else(Rare::default, |rare| rare[end])
    }

    pub(crate) fn rare_mut(&mut self, end: usize) -> &mut Rare {
        if self.rare.is_none() {
            self.grow(size_of::<[Rare; 2]>());
        }
        &mut self.rare.get_or_insert_with(Box::default)[end]
    }

    #[inline]
    fn grow(&mut self, by: usize) {
        if by > 0 {
            self.heap = self.heap.saturating_add(by as u32);
        }
    }

    /// Both sides have finished, or one has reset.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        let [a, b] = self.flags;
        (a | b) & flag::RST != 0 || a & b & flag::FIN != 0
    }

    #[inline]
    fn time(&mut self, segment: &Segment) -> usize {
        let gap = segment.ts - self.last_ts;
        let turned = segment.from != self.last_from;
        let before = std::mem::replace(&mut self.last_ts, segment.ts);
        self.last_from = segment.from;
        if gap < 0 {
            let step = if gap > -SMALL_STEP {
                Steps::Small
            } else {
                Steps::Large
            };
            self.backwards = self.backwards.max(step);
            self.latest = self.latest.max(before);
            self.start_ts = self.start_ts.min(segment.ts);
            return 0;
        }
        if turned {
            self.sent[usize::from(segment.from & 1)]
                .latency
                .record(gap as u64)
        } else {
            0
        }
    }

    fn shake_hands(&mut self, segment: &Segment) {
        let hands = &mut self.handshake;
        match segment.flags & (flag::SYN | flag::ACK) {
            flag::SYN => {
                if hands.syn == NO_TIME && hands.synack == NO_TIME {
                    hands.syn = segment.ts;
                    self.client = Some(segment.from);
                }
                hands.last_syn = segment.ts;
            }
            flag::ACK if hands.synack != NO_TIME && self.client == Some(segment.from) => {
                hands.ack = segment.ts;
                self.shaken = true;
            }
            both if both == flag::SYN | flag::ACK && hands.synack == NO_TIME => {
                hands.synack = segment.ts;
                self.client.get_or_insert(1 - segment.from);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Conn;
    use std::mem::offset_of;

    /// Not for its own sake: half a million open connections are limited by how many lines each packet touches.
    #[test]
    fn a_connection_is_fourteen_cache_lines() {
        assert_eq!(
            (size_of::<Option<Conn>>(), offset_of!(Conn, sent)),
            (896, 64)
        );
        assert_eq!(
            (
                size_of::<crate::sent::Sent>(),
                size_of::<crate::path::Path>()
            ),
            (128, 144)
        );
        assert_eq!(offset_of!(Conn, paths) % 64, 0);
    }
}
