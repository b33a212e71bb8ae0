//! Count what one endpoint of a connection has sent.

use crate::connection::copies::TwinCounts;
use crate::connection::latency::Latency;
use crate::connection::seqspace::{PayloadNovelty, SeqSpace};
use crate::wire::packet::{flag, Segment};

/// One direction, as sent by one endpoint: the counters that most packets change. They take two cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Sent {
    /// Number of packets.
    pub packets: u64,
    /// Bytes on the wire, link headers included.
    pub wire: u64,
    /// Payload bytes; each is counted once.
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
    /// Repeated payload bytes.
    pub repeated: u64,
    /// Number of packets that repeat payload, SYN or FIN.
    pub retransmissions: u32,
    /// Retransmissions of data that the other end had received and did not accept.
    pub ignored: u32,
    /// Number of packets with new bytes below the highest sequence number seen.
    pub late: u32,
    /// Number of announcements of a zero window.
    pub zero_windows: u32,
    /// Number of packets with selective acknowledgements.
    pub sacks: u32,
    /// When it announced a closed window, and when an open one again, in nanoseconds; 0 if it has not.
    pub shut: (i64, i64),
    /// Number of packets larger than the peer's maximum segment size.
    pub oversized: u32,
    /// Number of repeats that were sent before other packets but passed after them. No sender does this: the capture
    /// contains the packets of two points.
    pub stale: u32,
    /// Microseconds attributed to it that a retransmission may have taken, because its packets have no reliable
    /// numbers; and the part of them in which it acknowledged nothing, or its numbers were not consecutive.
    pub unsure: u32,
    /// See `unsure`.
    pub doubtful: u32,
    /// Number of packets that were captured twice.
    pub twice: TwinCounts,
}

/// Record a segment's position in its stream. The boolean returned is true if it repeats a SYN or FIN and nothing else.
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
