//! One connection while it is open: everything is updated packet by packet in constant time and bounded space.

use crate::hist::Hist;
use crate::packet::{flag, Direction, FlowKey, Segment, TCP};
use crate::seqspace::SeqSpace;

/// Response latency of one endpoint: gaps between the peer's last packet and this endpoint's next one.
#[derive(Debug)]
pub struct Latency {
    /// Number of responses.
    pub count: u64,
    /// Sum in nanoseconds.
    pub sum: u64,
    /// Smallest in nanoseconds.
    pub min: u64,
    /// Largest in nanoseconds.
    pub max: u64,
    /// Distribution.
    pub hist: Hist,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            count: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
            hist: Hist::default(),
        }
    }
}

impl Latency {
    #[inline]
    fn record(&mut self, nanos: u64) -> usize {
        self.count += 1;
        self.sum = self.sum.saturating_add(nanos);
        self.min = self.min.min(nanos);
        self.max = self.max.max(nanos);
        self.hist.record(nanos)
    }

    /// Add another endpoint's responses; returns by how many bytes the heap has grown.
    pub fn merge(&mut self, other: &Latency) -> usize {
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.hist.merge(&other.hist)
    }
}

/// One direction: what one endpoint has sent.
#[derive(Debug, Default)]
pub struct Sent {
    /// Packets.
    pub packets: u64,
    /// Bytes on the wire, link headers included.
    pub wire: u64,
    /// Payload bytes, repeated ones included.
    pub payload: u64,
    /// Payload bytes, each counted once.
    pub unique: u64,
    /// Which bytes were seen.
    pub space: SeqSpace,
    /// Response latency of the sender.
    pub latency: Latency,
    /// Packets that repeat payload, SYN or FIN.
    pub retransmissions: u32,
    /// Packets with new bytes from before the highest seen.
    pub late: u32,
    /// Announcements of a zero window.
    pub zero_windows: u32,
    /// Resets.
    pub resets: u32,
    /// Packets larger than the peer's maximum segment size.
    pub oversized: u32,
    /// Largest payload of one packet.
    pub largest: u32,
    /// Highest acknowledgement this endpoint sent.
    pub acked: u32,
    /// Sequence number of the first packet.
    pub first_seq: u32,
    /// Announced maximum segment size, 0 when unknown.
    pub mss: u16,
    /// Flags ever sent.
    pub flags: u8,
}

/// Time stamps of the three-way handshake in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Handshake {
    /// First SYN.
    pub syn: Option<i64>,
    /// Last SYN before the answer.
    pub last_syn: i64,
    /// SYN with ACK.
    pub synack: Option<i64>,
    /// The client's first ACK after it.
    pub ack: Option<i64>,
}

/// One open connection.
#[derive(Debug)]
pub struct Conn {
    /// The flow.
    pub key: FlowKey,
    /// Hash of the key.
    pub hash: u32,
    /// Touched since the eviction hand last passed.
    pub touched: bool,
    /// In the queue of closed connections.
    pub closed: bool,
    /// The same addresses and ports were used by an earlier connection.
    pub reused: bool,
    /// Which end sent the last packet.
    pub last_from: u8,
    /// Which end is the client, when the packets say so.
    pub client: Option<u8>,
    /// Which end is the capturing machine, when the packets say so.
    pub local: Option<u8>,
    /// Time of the last packet.
    pub last_ts: i64,
    /// Smallest and largest time.
    pub span: (i64, i64),
    /// Both directions.
    pub sent: [Sent; 2],
    /// The handshake.
    pub handshake: Handshake,
    /// Packets with a time before the previous one of this connection.
    pub backwards: u32,
    /// Bytes on the heap.
    pub heap: u32,
    /// Number in order of appearance.
    pub index: u64,
}

impl Conn {
    /// A connection that begins with `segment` (which is not counted yet).
    #[must_use]
    pub fn new(segment: &Segment, hash: u32, index: u64) -> Self {
        Self {
            key: segment.key,
            hash,
            touched: true,
            closed: false,
            reused: false,
            last_from: segment.from,
            client: None,
            local: None,
            last_ts: segment.ts,
            span: (segment.ts, segment.ts),
            sent: Default::default(),
            handshake: Handshake::default(),
            backwards: 0,
            heap: 0,
            index,
        }
    }

    /// Read a word of every cache line that an update of direction `which` uses, so that they are on their way.
    #[inline]
    pub(crate) fn look(&self, which: usize) -> u64 {
        let (own, peer) = (&self.sent[which], &self.sent[1 - which]);
        self.key.addr[0][0]
            ^ self.last_ts as u64
            ^ self.handshake.last_syn as u64
            ^ u64::from(self.touched)
            ^ own.packets
            ^ u64::from(own.space.next())
            ^ own.latency.count
            ^ own.latency.hist.look()
            ^ u64::from(own.flags)
            ^ u64::from(peer.flags)
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
        let ended = (own.flags | peer.flags) & (flag::FIN | flag::RST) != 0;
        let fresh = own.packets > 0 && own.first_seq != segment.seq;
        if segment.flags & flag::ACK != 0 {
            return ended && fresh;
        }
        if own.packets > 0 {
            fresh || ended
        } else {
            peer.flags & flag::SYN == 0 || ended
        }
    }

    /// Count one segment; returns by how many bytes the heap has grown.
    #[inline]
    pub fn update(&mut self, segment: &Segment) -> usize {
        let mut grown = self.time(segment);
        let from = usize::from(segment.from & 1);
        let (own, peer) = match &mut self.sent {
            [a, b] if from == 0 => (a, b),
            [a, b] => (b, a),
        };
        own.packets += 1;
        own.wire += u64::from(segment.wire_len);
        own.payload += u64::from(segment.payload);
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
            self.heap = self.heap.saturating_add(grown as u32);
            return grown;
        }
        if own.packets == 1 {
            own.first_seq = segment.seq;
        }
        if segment.flags & flag::ACK != 0 {
            let first = own.flags & flag::ACK == 0;
            if first || (segment.ack.wrapping_sub(own.acked) as i32) > 0 {
                own.acked = segment.ack;
            }
        }
        own.flags |= segment.flags;
        let seen = if segment.seq_known {
            own.sequence(segment)
        } else {
            // A row without a number continues where the last one ended.
            own.space.payload(own.space.next(), segment.payload)
        };
        own.unique += seen.new;
        own.retransmissions += u32::from(seen.repeated > 0);
        own.late += u32::from(seen.late);
        grown += seen.grown;
        if segment.window == 0 && segment.flags & (flag::RST | flag::SYN) == 0 && segment.seq_known
        {
            own.zero_windows += 1;
        }
        own.oversized += u32::from(segment.payload > u32::from(peer.mss) && peer.mss != 0);
        if segment.flags & (flag::SYN | flag::RST) != 0 {
            own.mss = own.mss.max(segment.mss);
            own.resets += u32::from(segment.flags & flag::RST != 0);
        }
        if self.handshake.ack.is_none() {
            self.shake_hands(segment);
        }
        self.heap = self.heap.saturating_add(grown as u32);
        grown
    }

    /// Both sides have finished, or one has reset.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        let [a, b] = [self.sent[0].flags, self.sent[1].flags];
        (a | b) & flag::RST != 0 || a & b & flag::FIN != 0
    }

    #[inline]
    fn time(&mut self, segment: &Segment) -> usize {
        let gap = segment.ts - self.last_ts;
        let turned = segment.from != self.last_from;
        self.last_ts = segment.ts;
        self.last_from = segment.from;
        if gap < 0 {
            self.backwards += 1;
            self.span.0 = self.span.0.min(segment.ts);
            return 0;
        }
        self.span.1 = self.span.1.max(segment.ts);
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
                if hands.syn.is_none() && hands.synack.is_none() {
                    hands.syn = Some(segment.ts);
                    self.client = Some(segment.from);
                }
                hands.last_syn = segment.ts;
            }
            flag::ACK if hands.synack.is_some() && self.client == Some(segment.from) => {
                hands.ack = Some(segment.ts);
            }
            both if both == flag::SYN | flag::ACK && hands.synack.is_none() => {
                hands.synack = Some(segment.ts);
                self.client.get_or_insert(1 - segment.from);
            }
            _ => {}
        }
    }
}

impl Sent {
    #[inline]
    fn sequence(&mut self, segment: &Segment) -> crate::seqspace::Seen {
        let phantoms = segment.flags & (flag::SYN | flag::FIN);
        if phantoms == 0 {
            // A reset's number may be anything and its payload is not part of the stream.
            if segment.flags & flag::RST != 0 {
                return crate::seqspace::Seen {
                    new: u64::from(segment.payload),
                    ..Default::default()
                };
            }
            return self.space.payload(segment.seq, segment.payload);
        }
        let mut seq = segment.seq;
        if phantoms & flag::SYN != 0 {
            let repeated = self.space.started();
            self.space.phantom(seq);
            seq = seq.wrapping_add(1);
            if repeated && segment.payload == 0 {
                self.retransmissions += 1;
            }
        }
        let seen = self.space.payload(seq, segment.payload);
        if phantoms & flag::FIN != 0 {
            let end = seq.wrapping_add(segment.payload);
            if self.space.next() == end.wrapping_add(1) && segment.payload == 0 {
                self.retransmissions += 1;
            }
            self.space.phantom(end);
        }
        seen
    }
}
