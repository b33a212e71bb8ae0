//! Store a connection of few packets as the packets themselves, in few bytes: of a million connections, most never have
//! more packets.
//!
//! Packets are stored as differences from what their ends would have sent next, so a handshake takes less than a
//! hundred bytes, a tenth of a [`Conn`](crate::connection::conn::Conn). They are decoded again when more than that is
//! needed.

use crate::wire::message::Message;
use crate::wire::packet::{flag, AddrWords, Direction, Family, FlowKey, Segment};

/// Maximum number of packets of a young connection: a handshake and a few more.
const MOST: u8 = 4;
/// Upper bound of the bytes that one packet takes.
const LONGEST: usize = 96;
/// Size of two IPv4 addresses, or of the numbers of two names.
const SHORT: usize = 8;
const LONG: usize = 32;
/// Bytes that a first packet takes, approximately.
const FIRST: usize = 30;
/// Size of the interface and the number of tunnels.
const PLACE: usize = 3;
/// Marks a segment without a window scale; larger values are not stored.
const NO_SCALE: u8 = 0x7f;
/// Bit beside the window scale: options were cut.
const CUT: u8 = 0x80;

/// Bits that show how a packet differs from the most common kind.
mod bit {
    pub const FROM: u8 = 1;
    pub const IN: u8 = 2;
    pub const OUT: u8 = 4;
    pub const NUMBERED: u8 = 8;
    pub const STAMPS: u8 = 16;
    pub const OPENS: u8 = 32;
    pub const SELECTIVE: u8 = 64;
    pub const SAYS: u8 = 128;
}

/// An open connection of few packets.
#[derive(Debug, Default)]
pub struct Young {
    /// Addresses, interface and tunnels, then packet after packet, up to `len`.
    log: Box<[u8]>,
    len: u16,
    /// Hash of the key.
    pub hash: u32,
    index: u32,
    port: [u16; 2],
    protocol: u8,
    family: Option<Family>,
    count: u8,
    /// Which end sent the last packet.
    pub last_from: u8,
    /// Whether the connection was used since the eviction hand last passed it.
    pub touched: bool,
}

impl Young {
    /// Create a connection that begins with `segment`; `None` if it cannot be stored in short form.
    #[must_use]
    pub fn new(segment: &Segment, hash: u32, index: u64) -> Option<Self> {
        let key = &segment.key;
        let mut start = PacketWriter::default();
        if key.family == Family::V6 {
            for word in key.addr.as_flattened() {
                start.put(&word.to_le_bytes());
            }
        } else if is_short(&key.addr) {
            for [word, _] in key.addr {
                start.put(&(word as u32).to_le_bytes());
            }
        } else {
            return None;
        }
        start.put(&segment.interface.to_le_bytes());
        start.put(&[segment.tunnels]);
        let mut young = Self {
            log: room_for(start.len + FIRST, start.written()),
            len: start.len as u16,
            hash,
            index: u32::try_from(index).ok()?,
            port: key.port,
            protocol: key.protocol,
            family: Some(key.family),
            ..Self::default()
        };
        young.note(segment).then_some(young)
    }

    /// Return the connection's number in order of appearance.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index.into()
    }

    /// Whether this place holds a connection.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.count > 0
    }

    /// Return the number of bytes on the heap, including the allocator's overhead.
    #[must_use]
    pub fn heap(&self) -> usize {
        (self.log.len() + size_of::<usize>()).next_multiple_of(2 * size_of::<usize>())
    }

    /// Whether this connection has the key `key`.
    #[inline]
    #[must_use]
    pub fn is_of(&self, key: &FlowKey) -> bool {
        self.port == key.port
            && self.protocol == key.protocol
            && self.family == Some(key.family)
            && self.addresses() == key.addr
    }

    /// Store one more packet; return false if the connection has too many, or the packet cannot be stored.
    pub fn note(&mut self, segment: &Segment) -> bool {
        let options = &segment.options;
        let place = &self.log[self.addresses_len()..][..PLACE];
        let elsewhere =
            place[..2] != segment.interface.to_le_bytes() || place[2] != segment.tunnels;
        let selective = options.sacked.is_some() || options.twice.is_some();
        // What is so rare has no place in the short form.
        let rare = selective || segment.said_again;
        if self.count == MOST || elsewhere || rare || options.scale >= Some(NO_SCALE) {
            return false;
        }
        let mut rest = self.packets();
        let mut before = PreviousPackets::default();
        for _ in 0..self.count {
            rest.skip(&mut before);
        }
        let mut bytes = PacketWriter::default();
        bytes.write_segment(segment, &before);
        let (from, to) = (usize::from(self.len), usize::from(self.len) + bytes.len);
        if to > self.log.len() {
            // Allocate for the next packet too, which is about as long: with it, the handshake is complete.
            let expected = if self.count + 1 < MOST { bytes.len } else { 0 };
            self.log = room_for(to + expected, &self.log[..from]);
        }
        self.log[from..to].copy_from_slice(bytes.written());
        self.len = to as u16;
        self.count += 1;
        self.last_from = segment.from;
        self.touched = true;
        true
    }

    /// Restore the packets, except for the positions of their payload.
    pub fn each(&self, mut f: impl FnMut(&Segment)) {
        let Some(family) = self.family else { return };
        let key = FlowKey {
            addr: self.addresses(),
            port: self.port,
            protocol: self.protocol,
            family,
        };
        let place = &self.log[self.addresses_len()..][..PLACE];
        let (interface, tunnels) = (u16::from_le_bytes([place[0], place[1]]), place[2]);
        let mut rest = self.packets();
        let mut before = PreviousPackets::default();
        for _ in 0..self.count {
            let mut segment = rest.read_segment(&before);
            (segment.key, segment.interface, segment.tunnels) = (key, interface, tunnels);
            before.update(&segment);
            f(&segment);
        }
    }

    fn packets(&self) -> PacketReader<'_> {
        PacketReader(&self.log[self.addresses_len() + PLACE..usize::from(self.len)])
    }

    fn addresses_len(&self) -> usize {
        if self.family == Some(Family::V6) {
            LONG
        } else {
            SHORT
        }
    }

    fn addresses(&self) -> [AddrWords; 2] {
        let bytes = |at: usize, len: usize| {
            self.log.get(at..at + len).map_or(0, |b| {
                b.iter().rev().fold(0, |sum, &b| sum << 8 | u64::from(b))
            })
        };
        if self.addresses_len() == SHORT {
            [[bytes(0, 4), 0], [bytes(4, 4), 0]]
        } else {
            [[bytes(0, 8), bytes(8, 8)], [bytes(16, 8), bytes(24, 8)]]
        }
    }
}

/// Time and frame of the previous packet, and the values that each end would send next: sequence number,
/// identification, time stamp.
#[derive(Default)]
struct PreviousPackets {
    last: (i64, u64),
    next: [(u32, u16, u32); 2],
}

impl PreviousPackets {
    fn update(&mut self, segment: &Segment) {
        self.last = (segment.ts, segment.frame);
        let stamp = segment.options.stamps.map_or(0, |(own, _)| own);
        let next = next(segment.seq, segment.payload, segment.flags);
        self.next[usize::from(segment.from & 1)] = (next, segment.id.wrapping_add(1), stamp);
    }

    fn next(&self, from: u8) -> (u32, u16, u32) {
        self.next[usize::from(from & 1)]
    }
}

/// Allocate at least this many bytes, up to the size that the allocator reserves for them anyway; they begin with
/// `bytes`.
fn room_for(count: usize, bytes: &[u8]) -> Box<[u8]> {
    const WORD: usize = size_of::<usize>();
    let count = (count + WORD).next_multiple_of(2 * WORD) - WORD;
    let mut room = Vec::with_capacity(count);
    room.extend_from_slice(bytes);
    room.resize(count, 0);
    room.into_boxed_slice()
}

/// Return the sequence number that follows a packet.
fn next(seq: u32, payload: u32, flags: u8) -> u32 {
    let phantoms = (flags & (flag::SYN | flag::FIN)).count_ones();
    seq.wrapping_add(payload.wrapping_add(phantoms))
}

struct PacketWriter {
    room: [u8; LONGEST],
    len: usize,
}

impl Default for PacketWriter {
    fn default() -> Self {
        Self {
            room: [0; LONGEST],
            len: 0,
        }
    }
}

impl PacketWriter {
    fn written(&self) -> &[u8] {
        &self.room[..self.len]
    }

    fn put(&mut self, bytes: &[u8]) {
        self.room[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Write seven bits per byte, the lowest first.
    fn write_number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.put(&[value as u8 | 0x80]);
            value >>= 7;
        }
        self.put(&[value as u8]);
    }

    fn write_signed(&mut self, value: i64) {
        self.write_number((value << 1 ^ value >> 63) as u64);
    }

    fn write_difference(&mut self, value: u32, expected: u32) {
        self.write_signed(i64::from(value.wrapping_sub(expected) as i32));
    }

    fn write_segment(&mut self, segment: &Segment, before: &PreviousPackets) {
        let options = &segment.options;
        let opens = options.mss != 0 || options.scale.is_some() || options.cut;
        let bits = [
            (bit::FROM, segment.from & 1 != 0),
            (bit::IN, segment.direction == Direction::In),
            (bit::OUT, segment.direction == Direction::Out),
            (bit::NUMBERED, segment.seq_known),
            (bit::STAMPS, options.stamps.is_some()),
            (bit::OPENS, opens),
            (bit::SELECTIVE, options.sack_permitted),
            (bit::SAYS, segment.message != Message::NOTHING),
        ];
        let mask = bits.iter().filter(|(_, set)| *set).map(|(bit, _)| bit);
        self.put(&[mask.sum(), segment.flags]);
        let (ts, frame) = before.last;
        self.write_signed(segment.ts.wrapping_sub(ts));
        self.write_signed(segment.frame.wrapping_sub(frame) as i64);
        self.write_number(segment.wire_len.into());
        self.write_number(segment.payload.into());
        let (seq, id, stamp) = before.next(segment.from);
        let (ack, _, echo) = before.next(1 - (segment.from & 1));
        self.write_difference(segment.seq, seq);
        self.write_difference(segment.ack, ack);
        self.put(&segment.window.to_le_bytes());
        self.put(&segment.checksum.to_le_bytes());
        self.write_number(segment.id.wrapping_sub(id).into());
        if let Some((own, echoed)) = options.stamps {
            self.write_difference(own, stamp);
            self.write_difference(echoed, echo);
        }
        if opens {
            self.put(&options.mss.to_le_bytes());
            let cut = if options.cut { CUT } else { 0 };
            self.put(&[options.scale.unwrap_or(NO_SCALE) | cut]);
        }
        if segment.message != Message::NOTHING {
            self.put(&segment.message.word().to_le_bytes());
        }
    }
}

struct PacketReader<'l>(&'l [u8]);

impl PacketReader<'_> {
    fn read_byte(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        first
    }

    fn read_word(&mut self) -> u16 {
        u16::from_le_bytes([self.read_byte(), self.read_byte()])
    }

    fn read_number(&mut self) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.read_byte();
            value |= u64::from(byte & 0x7f).wrapping_shl(shift);
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }

    fn read_signed(&mut self) -> i64 {
        let value = self.read_number();
        (value >> 1) as i64 ^ -((value & 1) as i64)
    }

    fn read_difference(&mut self, expected: u32) -> u32 {
        expected.wrapping_add(self.read_signed() as u32)
    }

    fn pass(&mut self, bytes: usize) {
        self.0 = self.0.get(bytes..).unwrap_or_default();
    }

    /// Read only what is needed to restore the next packet; like [`Self::read_segment`] and
    /// [`PreviousPackets::update`].
    fn skip(&mut self, before: &mut PreviousPackets) {
        let mask = self.read_byte();
        let is = |bit: u8| mask & bit != 0;
        let (from, flags) = (u8::from(is(bit::FROM)), self.read_byte());
        let (ts, frame) = before.last;
        before.last = (
            ts.wrapping_add(self.read_signed()),
            frame.wrapping_add(self.read_signed() as u64),
        );
        self.read_number();
        let payload = self.read_number() as u32;
        let (seq, id, stamp) = before.next(from);
        let seq = self.read_difference(seq);
        self.read_number();
        self.pass(4);
        let id = id.wrapping_add(self.read_number() as u16);
        let own = if is(bit::STAMPS) {
            let own = self.read_difference(stamp);
            self.read_number();
            own
        } else {
            0
        };
        self.pass(3 * usize::from(is(bit::OPENS)) + 4 * usize::from(is(bit::SAYS)));
        before.next[usize::from(from)] = (next(seq, payload, flags), id.wrapping_add(1), own);
    }

    fn read_segment(&mut self, before: &PreviousPackets) -> Segment {
        let mask = self.read_byte();
        let is = |bit: u8| mask & bit != 0;
        let mut out = Segment {
            from: u8::from(is(bit::FROM)),
            seq_known: is(bit::NUMBERED),
            direction: match (is(bit::IN), is(bit::OUT)) {
                (true, _) => Direction::In,
                (_, true) => Direction::Out,
                _ => Direction::Unknown,
            },
            flags: self.read_byte(),
            ..Segment::EMPTY
        };
        let (ts, frame) = before.last;
        out.ts = ts.wrapping_add(self.read_signed());
        out.frame = frame.wrapping_add(self.read_signed() as u64);
        out.wire_len = self.read_number() as u32;
        out.payload = self.read_number() as u32;
        let (seq, id, stamp) = before.next(out.from);
        let (ack, _, echo) = before.next(1 - out.from);
        out.seq = self.read_difference(seq);
        out.ack = self.read_difference(ack);
        out.window = self.read_word();
        out.checksum = self.read_word();
        out.id = id.wrapping_add(self.read_number() as u16);
        out.options.sack_permitted = is(bit::SELECTIVE);
        if is(bit::STAMPS) {
            out.options.stamps = Some((self.read_difference(stamp), self.read_difference(echo)));
        }
        if is(bit::OPENS) {
            out.options.mss = self.read_word();
            let scale = self.read_byte();
            out.options.cut = scale & CUT != 0;
            out.options.scale = Some(scale & !CUT).filter(|&scale| scale != NO_SCALE);
        }
        if is(bit::SAYS) {
            let word = [self.read_word(), self.read_word()].map(u32::from);
            out.message = Message::from_word(word[0] | word[1] << 16);
        }
        out
    }
}

fn is_short(addr: &[AddrWords; 2]) -> bool {
    addr.iter()
        .all(|&[first, second]| second == 0 && first >> 32 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet::{Options, TCP};
    use proptest::prelude::*;

    type Parts = (
        (bool, u8, u16, u16, u16),
        (u32, u32, u32, u32),
        (i64, u64, Option<(u32, u32)>),
        (u16, Option<u8>, bool, bool, u8, bool),
        u32,
    );

    fn segment(parts: Parts, key: FlowKey) -> Segment {
        let (
            (from, flags, window, id, checksum),
            (seq, ack, payload, wire_len),
            (ts, frame, stamps),
            (mss, scale, sack_permitted, seq_known, way, cut),
            word,
        ) = parts;
        Segment {
            key,
            from: from.into(),
            flags,
            window,
            id,
            checksum,
            seq,
            ack,
            payload,
            wire_len,
            ts,
            frame,
            message: Message::from_word(word),
            interface: 7,
            tunnels: 2,
            seq_known,
            direction: [Direction::Unknown, Direction::In, Direction::Out][usize::from(way % 3)],
            options: Options {
                stamps,
                mss,
                scale: scale.filter(|&scale| scale < NO_SCALE),
                sack_permitted,
                cut,
                ..Options::default()
            },
            ..Segment::EMPTY
        }
    }

    proptest! {
        /// All stored fields of packets are restored exactly.
        #[test]
        fn packets_come_back_as_they_were(all in prop::collection::vec(any::<Parts>(), 1..=4), a: [u64; 2], b: [u64; 2], long: bool) {
            let short = |words: [u64; 2]| [words[0] & 0xffff_ffff, 0];
            let (a, b) = if long { (a, b) } else { (short(a), short(b)) };
            let family = if long { Family::V6 } else { Family::V4 };
            let (key, _) = FlowKey::new(family, TCP, (a, 5), (b, 6));
            let sent: Vec<Segment> = all.into_iter().map(|parts| segment(parts, key)).collect();
            let mut young = Young::new(&sent[0], 9, 3).expect("can be written");
            for one in &sent[1..] {
                prop_assert!(young.note(one));
            }
            prop_assert!(young.is_of(&key));
            let mut seen = Vec::new();
            young.each(|one| seen.push(format!("{one:?}")));
            let sent: Vec<String> = sent.iter().map(|one| format!("{one:?}")).collect();
            prop_assert_eq!(seen, sent);
        }
    }

    #[test]
    fn it_is_forty_bytes() {
        assert_eq!(size_of::<Young>(), 40);
    }
}
