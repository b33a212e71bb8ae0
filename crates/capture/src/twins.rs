//! Packets that a capture holds twice because they passed several interfaces on their way: a bridge and a tap, a router's
//! two sides, both ends of a mirror.
//!
//! A twin has the same contents within a hundredth of a second. On another interface it is the same packet for certain. On
//! the same one it may also be what the network or the sender repeated, so the whole direction decides: only where at
//! least four of five packets have a twin was it captured twice.

use crate::conn::Conn;
use crate::packet::{flag, Direction, Segment, TCP};

/// Packets that fall into the same set, of which the last ones are kept.
const WAYS: usize = 4;
/// Sets, for all connections together: hundreds of packets may pass between twins.
const SETS: usize = 256;
/// How far twins are apart at most, nanoseconds.
const WITHIN: u64 = 10_000_000;

/// Interfaces of one machine are this close, in microseconds.
const APART: u64 = 500;
/// So many repeats at least are two captures, where nothing was not repeated.
const MERGED_FROM: u32 = 4;

/// Was this packet seen before?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twin {
    /// No.
    None,
    /// One with the same contents so many microseconds ago, on the same interface.
    Likely(u32),
    /// It, so many microseconds ago on another interface.
    Certain(u32),
}

/// A cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Set {
    times: [i64; WAYS],
    marks: [u32; WAYS],
    places: [u16; WAYS],
    next: u8,
}

/// The packets seen last.
pub struct Twins {
    sets: Box<[Set; SETS]>,
}

impl Default for Twins {
    fn default() -> Self {
        Self {
            sets: Box::new([Set::default(); SETS]),
        }
    }
}

impl Twins {
    /// Look for the twin of a packet of the connection whose last packet was from end `last_from`, and keep the packet for
    /// its own. Which packets have left since does not depend on chance: a capture tells the same every time.
    #[inline]
    pub fn see(&mut self, segment: &Segment, last_from: u8) -> Twin {
        let (key, [[a, b], [c, d]]) = (&segment.key, segment.key.addr);
        let ports = u64::from(key.port[0]) << 48 | u64::from(key.port[1]) << 32;
        let words = [
            u64::from(segment.seq) << 32 | u64::from(segment.ack),
            (u64::from(segment.checksum) << 48 | u64::from(segment.id) << 32)
                ^ (u64::from(segment.payload) << 16 ^ u64::from(segment.window)),
            ports | u64::from(segment.flags) << 8 | u64::from(segment.from),
            (a ^ b.rotate_left(17)).wrapping_mul(0xe703_7ed1_a0b4_28db) ^ c ^ d.rotate_left(31),
        ];
        let mixed = (words[0].wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ words[1])
            .wrapping_mul(0xd6e8_feb8_6659_fd93)
            ^ words[2].wrapping_mul(0xa076_1d64_78bd_642f)
            ^ words[3].wrapping_mul(0x8ebc_6af0_9c88_c6e3);
        // A product's upper half depends on all bits.
        let mark = (mixed >> 24) as u32;
        let set = &mut self.sets[(mixed >> 56) as usize % SETS];
        let known = set.marks.iter().position(|&known| known == mark);
        let close = |way: &usize| segment.ts.abs_diff(set.times[*way]) <= WITHIN;
        let Some(way) = known.filter(close) else {
            // One that is too old makes room, lest it hide this one.
            let way = known.unwrap_or(usize::from(set.next) % WAYS);
            set.next = set.next.wrapping_add(u8::from(known.is_none()));
            (set.times[way], set.marks[way]) = (segment.ts, mark);
            set.places[way] = place(segment);
            return Twin::None;
        };
        if usize::from(set.next) % WAYS == way {
            // What was just seen is not the next to go.
            set.next = set.next.wrapping_add(1);
        }
        // Without a number of its own, a packet may look like an earlier one, but then the other end's answer came between;
        // and without a checksum, nothing tells a datagram's contents.
        let numbered = segment.id != 0 && (segment.key.protocol == TCP || segment.checksum != 0);
        let soon = last_from == segment.from || segment.flags & flag::SYN != 0;
        let follows = segment.key.protocol == TCP && segment.seq_known && soon;
        let apart = (segment.ts.abs_diff(set.times[way]) / 1000) as u32;
        if set.places[way] != place(segment) {
            Twin::Certain(apart)
        } else if numbered || follows {
            Twin::Likely(apart)
        } else {
            Twin::None
        }
    }
}

#[inline]
fn place(segment: &Segment) -> u16 {
    let way = match segment.direction {
        Direction::Unknown => 0,
        Direction::In => 1,
        Direction::Out => 2,
    };
    segment.interface << 2 | way
}

/// Twins on the same interface in one direction: those that were left out, or counted like others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Packets.
    pub packets: u32,
    /// Of them, with payload, SYN or FIN.
    pub repeating: u32,
    /// Bytes on the wire.
    pub wire: u64,
    /// Payload bytes.
    pub payload: u64,
}

impl Tally {
    fn add(&mut self, segment: &Segment) {
        let repeats = segment.payload > 0 || segment.flags & (flag::SYN | flag::FIN) != 0;
        self.packets = self.packets.saturating_add(1);
        self.repeating = self.repeating.saturating_add(u32::from(repeats));
        self.wire += u64::from(segment.wire_len);
        self.payload += u64::from(segment.payload);
    }
}

/// What is known of the twins in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Twice {
    /// Copies for certain.
    pub certain: u32,
    /// Microseconds between all twins.
    pub apart: u64,
    /// Taken for copies when they passed.
    pub left_out: Tally,
    /// Taken for repetitions when they passed.
    pub counted: Tally,
}

impl Twice {
    /// Are twins copies, where this many packets were counted and `more` twins were not noted yet?
    ///
    /// First impressions err; asked again at the end, it is known.
    #[must_use]
    pub fn is_captured_twice(&self, packets: u64, more: u64) -> bool {
        let twins = u64::from(self.left_out.packets) + u64::from(self.counted.packets) + more;
        let others = packets.saturating_sub(self.counted.packets.into());
        twins * 5 >= others * 4
    }
}

/// Counters of one direction, corrected for twins.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Packets.
    pub packets: u64,
    /// Bytes on the wire.
    pub wire: u64,
    /// Payload bytes, each once.
    pub unique: u64,
    /// Payload bytes sent again.
    pub repeated: u64,
    /// Packets that repeat something.
    pub retransmissions: u32,
    /// Copies.
    pub copies: u32,
}

impl Conn {
    /// True when `segment` is a copy, which is then not to be counted any further.
    #[cold]
    pub(crate) fn leaves_out(&mut self, segment: &Segment, twin: Twin) -> bool {
        let from = usize::from(segment.from & 1);
        let packets = self.sent[from].packets;
        let twice = &mut self.rare_mut(from).twice;
        if let Twin::Likely(apart) | Twin::Certain(apart) = twin {
            twice.apart += u64::from(apart);
        }
        if let Twin::Certain(_) = twin {
            twice.certain = twice.certain.saturating_add(1);
            return true;
        }
        let is_copy = twice.is_captured_twice(packets, 1);
        if is_copy {
            twice.left_out.add(segment);
        } else {
            twice.counted.add(segment);
        }
        is_copy
    }

    /// Was nearly everything captured twice, too far apart for interfaces of one machine? Then it is two captures, of two
    /// points of the path.
    ///
    /// A sender may well have to repeat all it has sent. But it does so in new packets, one after the other; a second
    /// capture shows old ones.
    #[must_use]
    pub fn is_merged(&self) -> bool {
        if self.key.protocol != TCP || self.sent.iter().any(|sent| sent.packets == 0) {
            return false;
        }
        let sides = [self.counted(0), self.counted(1)];
        let rare = [self.rare(0), self.rare(1)];
        let copies: u32 = sides.iter().map(|side| side.copies).sum();
        let apart: u64 = rare.iter().map(|rare| rare.twice.apart).sum();
        let both = |side: &Counted| u64::from(side.copies) * 5 >= side.packets * 4;
        if copies >= MERGED_FROM && apart >= u64::from(copies) * APART && sides.iter().all(both) {
            return true;
        }
        let twice = |side: &Counted| side.unique == 0 || side.repeated * 5 >= side.unique * 4;
        let repeats: u32 = sides.iter().map(|side| side.retransmissions).sum();
        let stale: u32 = rare.iter().map(|rare| rare.stale).sum();
        repeats >= MERGED_FROM && stale * 5 >= repeats * 4 && sides.iter().all(twice)
    }

    /// Was all that was taken for repeats copies, which became known for such only later? Then no loss was seen.
    #[must_use]
    pub(crate) fn has_only_copies(&self) -> bool {
        let ends = [0, 1];
        let is_copied = |end: usize| {
            let twice = self.rare(end).twice;
            twice.counted.repeating > 0 && twice.is_captured_twice(self.sent[end].packets, 0)
        };
        ends.into_iter().any(is_copied)
            && ends
                .iter()
                .all(|&end| self.counted(end).retransmissions == 0)
    }

    /// What direction `which` sent, each packet counted once, now that all of it is known.
    #[must_use]
    pub fn counted(&self, which: usize) -> Counted {
        let (sent, rare) = (&self.sent[which], self.rare(which));
        let Twice {
            certain,
            left_out,
            counted,
            ..
        } = rare.twice;
        let mut out = Counted {
            packets: sent.packets,
            wire: sent.wire,
            unique: sent.unique,
            repeated: rare.repeated,
            retransmissions: rare.retransmissions,
            copies: certain,
        };
        let is_stream = self.key.protocol == TCP;
        if rare.twice.is_captured_twice(sent.packets, 0) {
            out.packets -= u64::from(counted.packets);
            out.wire -= counted.wire;
            out.copies += left_out.packets + counted.packets;
            if is_stream {
                out.repeated = out.repeated.saturating_sub(counted.payload);
                out.retransmissions = out.retransmissions.saturating_sub(counted.repeating);
            } else {
                out.unique -= counted.payload;
            }
        } else {
            out.packets += u64::from(left_out.packets);
            out.wire += left_out.wire;
            if is_stream {
                out.repeated += left_out.payload;
                out.retransmissions += left_out.repeating;
            } else {
                out.unique += left_out.payload;
            }
        }
        out
    }
}
