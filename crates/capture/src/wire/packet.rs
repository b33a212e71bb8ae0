//! Define the types that the readers, the decoder and the tracker share.

use crate::wire::message::Message;

/// The TCP flags that are evaluated.
pub mod flag {
    /// Finish.
    pub const FIN: u8 = 1;
    /// Synchronise.
    pub const SYN: u8 = 2;
    /// Reset.
    pub const RST: u8 = 4;
    /// Push: the sender has nothing more to send at the moment.
    pub const PSH: u8 = 8;
    /// Acknowledge.
    pub const ACK: u8 = 16;
}

/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;

/// The kind of the addresses in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Four bytes, in the low half of the first word.
    V4,
    /// Sixteen bytes, big-endian in both words.
    V6,
    /// A name from a packet list; the first word is its number.
    Name,
}

/// An address, as two words.
pub type AddrWords = [u64; 2];

/// A flow, the smaller end first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Addresses of both ends.
    pub addr: [AddrWords; 2],
    /// Ports of both ends.
    pub port: [u16; 2],
    /// Protocol number.
    pub protocol: u8,
    /// Kind of both addresses.
    pub family: Family,
}

impl FlowKey {
    /// Return the key of a packet from `src` to `dst`, and which end of the key sent it (0 or 1).
    #[inline]
    #[must_use]
    pub fn new(
        family: Family,
        protocol: u8,
        src: (AddrWords, u16),
        dst: (AddrWords, u16),
    ) -> (Self, u8) {
        let swap = dst < src;
        let (low, high) = if swap { (dst, src) } else { (src, dst) };
        (
            Self {
                addr: [low.0, high.0],
                port: [low.1, high.1],
                protocol,
                family,
            },
            u8::from(swap),
        )
    }
}

/// The direction of a packet at the point of capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// The capture does not show it.
    #[default]
    Unknown,
    /// Received by the capturing machine.
    In,
    /// Sent by the capturing machine.
    Out,
}

/// The relevant options of a TCP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The sender's time stamp, and the peer's that it echoes.
    pub stamps: Option<(u32, u32)>,
    /// Right edge of the furthest block of a selective acknowledgement.
    pub sacked: Option<u32>,
    /// Start of the data that its first block reports as received twice (RFC 2883).
    pub twice: Option<u32>,
    /// Announced maximum segment size, 0 when there is none.
    pub mss: u16,
    /// Announced window scale.
    pub scale: Option<u8>,
    /// Selective acknowledgements are permitted.
    pub sack_permitted: bool,
    /// The options of a SYN were cut by the snapshot length, so that those that are absent here are unknown.
    pub cut: bool,
}

/// One TCP segment or UDP datagram, everything the tracker needs of it.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// The flow.
    pub key: FlowKey,
    /// Which end of the key sent it: 0 or 1.
    pub from: u8,
    /// TCP flags (see [`flag`]).
    pub flags: u8,
    /// Announced window, unscaled.
    pub window: u16,
    /// Identification of the IPv4 packet, 0 in IPv6.
    pub id: u16,
    /// TCP's or UDP's checksum, by which equal contents are recognised.
    pub checksum: u16,
    /// Options.
    pub options: Options,
    /// Interface on which it was seen, as far as the capture distinguishes them.
    pub interface: u16,
    /// Number of tunnels that it was in.
    pub tunnels: u8,
    /// Which way it went.
    pub direction: Direction,
    /// Whether the sequence number is known (it is not in some rows of a packet list).
    pub seq_known: bool,
    /// Whether its protocol shows that this datagram repeats an earlier one of the same sender.
    pub said_again: bool,
    /// Number of the frame in the input, beginning with 1; 0 if it was not numbered.
    pub frame: u64,
    /// Capture time in nanoseconds since 1970.
    pub ts: i64,
    /// Length of the frame on the wire.
    pub wire_len: u32,
    /// Payload bytes on the wire.
    pub payload: u32,
    /// Offset of the payload in the frame.
    pub payload_at: u16,
    /// What the payload shows about the message that it belongs to.
    pub message: Message,
    /// Sequence number; of a datagram a number by which equal contents are recognised, 0 if they are unknown.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
}

impl Segment {
    /// Return the captured part of the payload in `frame`, which contains the segment.
    #[inline]
    #[must_use]
    pub fn payload_in<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        let at = usize::from(self.payload_at);
        let end = (at + self.payload as usize).min(frame.len());
        frame.get(at..end).unwrap_or(&[])
    }

    /// A segment whose fields are all empty.
    pub const EMPTY: Self = Self {
        key: FlowKey {
            addr: [[0; 2]; 2],
            port: [0; 2],
            protocol: 0,
            family: Family::V4,
        },
        from: 0,
        flags: 0,
        window: 0,
        id: 0,
        checksum: 0,
        options: Options {
            stamps: None,
            sacked: None,
            twice: None,
            mss: 0,
            scale: None,
            sack_permitted: false,
            cut: false,
        },
        interface: 0,
        tunnels: 0,
        direction: Direction::Unknown,
        seq_known: false,
        said_again: false,
        frame: 0,
        ts: 0,
        wire_len: 0,
        payload: 0,
        payload_at: 0,
        message: Message::NOTHING,
        seq: 0,
        ack: 0,
    };
}

/// The time of a packet whose record has none.
pub const NO_TIME: i64 = i64::MIN;

/// One captured packet, as a reader delivers it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Link type (`LINKTYPE_…`).
    pub link: u16,
    /// Number of the interface inside its section.
    pub interface: u32,
    /// Capture time in nanoseconds since 1970, or [`NO_TIME`].
    pub ts: i64,
    /// What was captured.
    pub data: &'a [u8],
    /// Length on the wire, not smaller than `data.len()`.
    pub wire_len: u32,
    /// Its direction, if the record shows it.
    pub direction: Direction,
}

/// Receiver of a reader's packets.
pub trait PacketSink {
    /// Take one packet.
    fn packet(&mut self, packet: &Packet<'_>);
    /// Note that the capturing side lost packets.
    fn dropped(&mut self, packets: u64);
    /// Begin a new section or file: interface numbers start again.
    fn section(&mut self) {}
}
