//! Count what one endpoint of a connection has sent.

use crate::connection::copies::Twice;
use crate::connection::latency::Latency;
use crate::connection::seqspace::{PayloadNovelty, SeqSpace};
use crate::wire::packet::{flag, Segment};

/// One direction: what one endpoint has sent, as far as most packets change it. Two cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Sent {
    /// Packets.
    pub packets: u64,
    /// Bytes on the wire, link headers included.
    pub wire: u64,
    /// Payload bytes, each counted once.
    pub unique: u64,
    /// Which bytes were seen.
    pub space: SeqSpace,
    /// Response latency of the sender.
    pub latency: Latency,
    /// Largest payload of one packet.
    pub largest: u32,
    /// Highest acknowledgement this endpoint sent.
    pub acked: u32,
}

/// One direction: the counters that only few packets change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rare {
    /// Payload bytes that were seen before.
    pub repeated: u64,
    /// Packets that repeat payload, SYN or FIN.
    pub retransmissions: u32,
    /// Retransmissions of data that the other end had received and did not accept.
    pub ignored: u32,
    /// Packets with new bytes from before the highest seen.
    pub late: u32,
    /// Announcements of a zero window.
    pub zero_windows: u32,
    /// Packets with selective acknowledgements.
    pub sacks: u32,
    /// When it announced a closed window, and when an open one again, in nanoseconds; 0 before.
    pub shut: (i64, i64),
    /// Packets larger than the peer's maximum segment size.
    pub oversized: u32,
    /// Repeats that were sent before others but passed after them: only a second capture repeats like this, no sender.
    pub stale: u32,
    /// Microseconds attributed to it that a repeat may have taken, because nothing reliable numbers its packets; and
    /// those of them in which it acknowledged nothing, or its numbers were not consecutive.
    pub unsure: u32,
    /// See `unsure`.
    pub doubtful: u32,
    /// Packets that were captured twice.
    pub twice: Twice,
}

/// Account for a segment's position in its stream; return true if it repeats a SYN or FIN and nothing else.
#[inline]
pub(crate) fn track_segment(space: &mut SeqSpace, segment: &Segment) -> (PayloadNovelty, bool) {
    let phantoms = segment.flags & (flag::SYN | flag::FIN);
    if phantoms == 0 {
        // A reset's sequence number may be anything, and its payload is not part of the stream.
        if segment.flags & flag::RST != 0 {
            let seen = PayloadNovelty {
                new: u64::from(segment.payload),
                ..Default::default()
            };
            return (seen, false);
        }
        return (space.payload(segment.seq, segment.payload), false);
    }
    let mut seq = segment.seq;
    let mut again = false;
    if phantoms & flag::SYN != 0 {
        let repeated = space.started();
        space.add_phantom(seq);
        seq = seq.wrapping_add(1);
        again = repeated && segment.payload == 0;
    }
    let seen = space.payload(seq, segment.payload);
    if phantoms & flag::FIN != 0 {
        let end = seq.wrapping_add(segment.payload);
        again |= space.next() == end.wrapping_add(1) && segment.payload == 0;
        space.add_phantom(end);
    }
    (seen, again)
}
