//! Learn which hosts number the packets of each connection separately in IPv4's identification.
//!
//! Linux does so. Windows counts all packets that a host sends (or sends to one other host). Other systems use random
//! numbers or none. A missing number shows a lost packet only with the first kind. A host shows its kind when packets
//! of two of its connections with the same other host alternate: each continues its own numbers, or not.

use crate::wire::packet::{Segment, TCP};

/// Maximum number of pairs of hosts that are remembered; a host of a forgotten pair has to show its kind again.
const PAIRS: usize = 1024;
/// How often connections must have continued with their own numbers.
const OFTEN: u8 = 4;
/// How many more times are required for each time that one did not.
const SURELY: u8 = 4;

/// What is known about a host's numbering towards another host.
#[derive(Clone, Copy, Default)]
struct Pair {
    mark: u32,
    /// The connection of the last packet.
    last: u32,
    own: u8,
    others: u8,
}

/// What is known about the hosts' numbering.
pub struct Numbering {
    pairs: Box<[Pair; PAIRS]>,
}

impl Default for Numbering {
    fn default() -> Self {
        Self {
            pairs: Box::new([Pair::default(); PAIRS]),
        }
    }
}

impl Numbering {
    /// Record a packet of the connection with this hash; `follows` returns whether its number is the next one of its
    /// connection, or `None` for the connection's first packet here. Return whether the host is known to number each
    /// connection separately.
    #[inline]
    pub fn record(
        &mut self,
        segment: &Segment,
        hash: u32,
        follows: impl FnOnce() -> Option<bool>,
    ) -> bool {
        if segment.id == 0 || segment.key.protocol != TCP {
            return false;
        }
        let [a, b] = segment.key.addr;
        let mixed = (a[0] ^ a[1].rotate_left(17))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(b[0] ^ b[1].rotate_left(31) ^ u64::from(segment.from & 1))
            .wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mark = (mixed >> 32) as u32 | 1;
        let pair = &mut self.pairs[(mixed >> 20) as usize % PAIRS];
        if pair.mark != mark {
            *pair = Pair {
                mark,
                last: hash,
                ..Pair::default()
            };
            return false;
        }
        if pair.last != hash {
            pair.last = hash;
            match follows() {
                Some(true) => pair.own = pair.own.saturating_add(1),
                Some(false) => pair.others = pair.others.saturating_add(1),
                None => {}
            }
            if pair.own.max(pair.others) == u8::MAX {
                (pair.own, pair.others) = (pair.own / 2, pair.others / 2);
            }
        }
        pair.own >= OFTEN && pair.own / SURELY >= pair.others
    }
}
