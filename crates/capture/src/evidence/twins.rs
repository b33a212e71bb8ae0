//! Recognise packets that a capture contains twice because they passed several interfaces: a bridge and a tap, both
//! sides of a router, both ports of a mirror.
//!
//! A twin has the same contents and follows within 10 ms. On another interface it is certainly the same packet. On the
//! same interface it may also be a repetition by the network or the sender, so the whole direction decides: it was
//! captured twice only if at least four of five packets have a twin.

use crate::connection::conn::Conn;
use crate::wire::packet::{flag, Direction, Segment, TCP};

/// Number of packets kept in each set, which are the last ones.
const WAYS: usize = 4;
/// Number of sets, for all connections together: hundreds of packets may pass between twins.
const SETS: usize = 256;
/// Maximum time between twins, in nanoseconds.
const WITHIN: u64 = 10_000_000;

/// Whether this packet was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twin {
    /// It was not.
    None,
    /// A packet with the same contents was seen this many microseconds ago, on the same interface.
    Likely(u32),
    /// The packet itself was seen this many microseconds ago, on another interface.
    Certain(u32),
}

/// A set of packets, which takes one cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Set {
    times: [i64; WAYS],
    marks: [u32; WAYS],
    places: [u16; WAYS],
    next: u8,
}

/// The packets that were seen last.
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
    /// Look for the twin of a packet in a connection whose last packet was from end `last_from`, and remember the
    /// packet for its own twin. Which packets have been forgotten does not depend on chance, so a capture gives the
    /// same results every time.
    #[inline]
    pub fn find_twin(&mut self, segment: &Segment, last_from: u8) -> Twin {
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
        // The upper half of a product depends on all bits of the factors.
        let mark = (mixed >> 24) as u32;
        let set = &mut self.sets[(mixed >> 56) as usize % SETS];
        let known = set.marks.iter().position(|&known| known == mark);
        let close = |way: &usize| segment.ts.abs_diff(set.times[*way]) <= WITHIN;
        let Some(way) = known.filter(close) else {
            // Replace an entry that is too old; otherwise it would hide this packet.
            let way = known.unwrap_or(usize::from(set.next) % WAYS);
            set.next = set.next.wrapping_add(u8::from(known.is_none()));
            (set.times[way], set.marks[way]) = (segment.ts, mark);
            set.places[way] = find_place(segment);
            return Twin::None;
        };
        if usize::from(set.next) % WAYS == way {
            // Do not let the entry that was just used be the next one to be replaced.
            set.next = set.next.wrapping_add(1);
        }
        // A packet without an identification may look like an earlier one, but then the other end's answer came in
        // between. A datagram without a checksum has unknown contents.
        let numbered = segment.id != 0 && (segment.key.protocol == TCP || segment.checksum != 0);
        let soon = last_from == segment.from || segment.flags & flag::SYN != 0;
        let follows = segment.key.protocol == TCP && segment.seq_known && soon;
        let apart = (segment.ts.abs_diff(set.times[way]) / 1000) as u32;
        if set.places[way] != find_place(segment) {
            Twin::Certain(apart)
        } else if numbered || follows {
            Twin::Likely(apart)
        } else {
            Twin::None
        }
    }
}

#[inline]
fn find_place(segment: &Segment) -> u16 {
    let way = match segment.direction {
        Direction::Unknown => 0,
        Direction::In => 1,
        Direction::Out => 2,
    };
    segment.interface << 2 | way
}

impl Conn {
    /// Whether `segment` is a copy, which is then not counted any further.
    #[cold]
    pub(crate) fn leaves_out_copy(&mut self, segment: &Segment, twin: Twin) -> bool {
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
}
