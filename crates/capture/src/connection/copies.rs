//! Count the copies of packets in the capture: those excluded from a direction's counters, and those that were counted.

use crate::wire::packet::{flag, Segment};

/// Twins on the same interface in one direction, either excluded or counted like other packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Packets.
    pub packets: u32,
    /// Packets with payload, SYN or FIN.
    pub repeating: u32,
    /// Bytes on the wire.
    pub wire: u64,
    /// Payload bytes.
    pub payload: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, segment: &Segment) {
        let repeats = segment.payload > 0 || segment.flags & (flag::SYN | flag::FIN) != 0;
        self.packets = self.packets.saturating_add(1);
        self.repeating = self.repeating.saturating_add(u32::from(repeats));
        self.wire += u64::from(segment.wire_len);
        self.payload += u64::from(segment.payload);
    }
}

/// Counters of the twins in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct TwinCounts {
    /// Packets that are certainly copies.
    pub certain: u32,
    /// Sum of the times between twins, in microseconds.
    pub apart: u64,
    /// Twins that were taken for copies when they passed.
    pub left_out: Tally,
    /// Twins that were taken for repetitions when they passed.
    pub counted: Tally,
}

impl TwinCounts {
    /// Whether twins are copies, given that `packets` were counted and `more` twins have not been noted yet.
    ///
    /// The result may change with further packets; at the end of the connection it is final.
    #[must_use]
    pub fn is_captured_twice(&self, packets: u64, more: u64) -> bool {
        let twins = u64::from(self.left_out.packets) + u64::from(self.counted.packets) + more;
        let others = packets.saturating_sub(self.counted.packets.into());
        twins * 5 >= others * 4
    }
}

/// Counters of one direction, corrected for twins.
#[derive(Clone, Copy, Debug)]
pub struct CorrectedCounts {
    /// Packets.
    pub packets: u64,
    /// Bytes on the wire.
    pub wire: u64,
    /// Payload bytes, each once.
    pub unique: u64,
    /// Payload bytes sent again.
    pub repeated: u64,
    /// Packets that repeat payload, SYN or FIN.
    pub retransmissions: u32,
    /// Packets that are copies.
    pub copies: u32,
}
