//! Perform the first half of an analysis: bytes → packets → segments, in batches, and count what limits their
//! reliability.

use crate::application::datagrams::Datagrams;
use crate::application::requests::Requests;
use crate::evidence::twins::{Twin, Twins};
use crate::results::truth::CaptureQuality;
use crate::wire::decode::{decode, decode_fast_into};
use crate::wire::fault::Fault;
use crate::wire::filter::Filter;
use crate::wire::input::{Compression, Source};
use crate::wire::live::Ring;
use crate::wire::message::Message;
use crate::wire::packet::{flag, Packet, PacketSink, Segment, NO_TIME, UDP};
use crate::wire::packetlist::{self, Names, RowSink};
use crate::wire::pcap;
use crate::wire::pcapng;
use crate::wire::services::Services;
use std::io;
use std::sync::Arc;

const MAX_INTERFACES: usize = 65_536;
/// Number of segments that are delivered together: few enough for the caches, and enough to make the delivery cheap.
const BATCH: usize = 1024;

/// The format of an input, as detected.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// `pcap`, `pcapng` or `csv`.
    pub format: &'static str,
    /// How it was compressed.
    pub compression: Compression,
}

/// The state of the first half, which knows no connections.
pub struct Front {
    filter: Option<Filter>,
    batch: Vec<Segment>,
    clocks: Vec<i64>,
    latest: i64,
    names: Names,
    list: Vec<Arc<str>>,
    told: usize,
    /// Number of segments that are delivered together.
    pub together: usize,
    /// The smallest time stamp.
    pub first_ts: Option<i64>,
    /// Messages of protocols over UDP.
    pub datagrams: Datagrams,
    /// The last datagrams as they were captured, by which copies are recognised before their messages are followed.
    twins: Twins,
    /// Requests over TCP, if requested.
    pub requests: Option<Box<Requests>>,
    /// Counters of packets.
    pub truth: CaptureQuality,
}

/// Receiver of segments and of new names; it empties or replaces the batch.
pub type Deliver<'d> = dyn FnMut(&mut Vec<Segment>, &[Arc<str>]) + 'd;

struct Reading<'f, 'd> {
    front: &'f mut Front,
    deliver: &'f mut Deliver<'d>,
}

impl Front {
    /// Create a reader that has read nothing yet.
    #[must_use]
    pub fn new(filter: Option<Filter>) -> Self {
        Self {
            filter,
            batch: Vec::with_capacity(BATCH),
            clocks: Vec::new(),
            latest: NO_TIME,
            names: Names::default(),
            list: Vec::new(),
            told: 0,
            together: BATCH,
            first_ts: None,
            datagrams: Datagrams::default(),
            twins: Twins::default(),
            requests: None,
            truth: CaptureQuality::default(),
        }
    }

    /// Read one input up to its end or a fault, and deliver everything before either.
    pub fn read(
        &mut self,
        source: &mut Source<'_>,
        services: &Services,
        deliver: &mut Deliver<'_>,
    ) -> (Option<Kind>, Result<(), Fault>) {
        let (before, latest) = (self.first_ts.take(), self.latest);
        let mut reading = Reading {
            front: self,
            deliver,
        };
        reading.section();
        let mut kind = None;
        let result = reading.read_as(source, services, &mut kind);
        reading.flush();
        let overlaps = self.first_ts.is_some_and(|first| first < latest);
        self.truth.overlapping += u64::from(overlaps);
        self.first_ts = before.into_iter().chain(self.first_ts).min();
        (kind, result)
    }
}

impl Front {
    /// Read packets from an interface until a signal ends it.
    ///
    /// # Errors
    ///
    /// If the interface disappears.
    pub fn listen(&mut self, ring: &mut Ring, deliver: &mut Deliver<'_>) -> io::Result<()> {
        self.together = BATCH;
        let mut reading = Reading {
            front: self,
            deliver,
        };
        let result = ring.read(&mut reading, Reading::flush);
        reading.flush();
        result
    }
}

impl Reading<'_, '_> {
    fn read_as(
        &mut self,
        source: &mut Source<'_>,
        services: &Services,
        kind: &mut Option<Kind>,
    ) -> Result<(), Fault> {
        // Enough for a packet list's header line; a shorter input is examined completely.
        source
            .need(4096)
            .map_err(|e| Fault::io(source.offset(), &e))?;
        let compression = source.compression;
        let head = source.data();
        if head.is_empty() {
            return Err(
                Fault::new(0, "the file is empty").hint("a capture has at least a file header")
            );
        }
        let mut is = |format| {
            *kind = Some(Kind {
                format,
                compression,
            });
        };
        if pcap::matches(head) {
            is("pcap");
            pcap::read(source, self)
        } else if pcapng::matches(head) {
            is("pcapng");
            pcapng::read(source, self)
        } else if packetlist::matches(head) {
            is("csv");
            packetlist::read(source, services, self)
        } else {
            Err(
                Fault::new(0, "neither pcap nor pcapng nor a packet list in CSV")
                    .hint(choose_reader(head)),
            )
        }
    }

    fn flush(&mut self) {
        let front = &mut *self.front;
        (self.deliver)(&mut front.batch, &front.list[front.told..]);
        front.told = front.list.len();
    }

    #[inline]
    fn is_wanted(&self, segment: &Segment) -> bool {
        self.front
            .filter
            .as_ref()
            .is_none_or(|filter| filter.fits(segment, &self.front.list))
    }

    fn follow_datagram(&mut self, mut segment: Segment, data: &[u8]) {
        if !self.is_wanted(&segment) {
            self.front.truth.filtered += 1;
            return;
        }
        let payload = segment.payload_in(data);
        segment.frame = self.front.truth.packets;
        let copy = self.front.twins.find_twin(&segment, segment.from) != Twin::None;
        let (names, list) = (&mut self.front.names, &mut self.front.list);
        self.front
            .datagrams
            .process(&mut segment, payload, copy, |name| names.number(name, list));
        self.count(segment);
    }

    #[inline]
    fn segment(&mut self, segment: Segment) {
        if self.is_wanted(&segment) {
            self.count(segment);
        } else {
            self.front.truth.filtered += 1;
        }
    }

    #[inline]
    fn count(&mut self, mut segment: Segment) {
        segment.frame = self.front.truth.packets;
        self.front.batch.push(segment);
        self.counted(segment.tunnels);
    }

    /// Parse the payload of the batch's last segment, which may begin or end a message or belong to a request; `data`
    /// is its frame.
    #[inline]
    fn parse_payload(&mut self, data: &[u8]) {
        if let Some(segment) = self.front.batch.last_mut() {
            let pushed = segment.flags & flag::PSH != 0;
            segment.message = Message::of(segment.payload_in(data), segment.payload, pushed);
        }
        if let (Some(requests), Some(segment)) = (&mut self.front.requests, self.front.batch.last())
        {
            requests.process(segment, data);
        }
    }

    /// Count the batch's last segment, which was inside this many tunnels.
    #[inline]
    fn counted(&mut self, tunnels: u8) {
        self.front.truth.counted += 1;
        self.front.truth.tunnelled += u64::from(tunnels > 0);
        if self.front.batch.len() >= self.front.together {
            self.flush();
        }
    }

    #[inline]
    fn check_clock(&mut self, interface: u32, ts: i64) -> i64 {
        if ts == NO_TIME {
            self.front.truth.untimed += 1;
            return if self.front.latest == NO_TIME {
                0
            } else {
                self.front.latest
            };
        }
        let interface = interface as usize;
        if interface >= self.front.clocks.len() {
            self.front
                .clocks
                .resize((interface + 1).min(MAX_INTERFACES), NO_TIME);
        }
        if let Some(last) = self.front.clocks.get_mut(interface) {
            self.front.truth.clock(last, ts);
        }
        let first = self.front.first_ts.unwrap_or(ts);
        self.front.first_ts = Some(first.min(ts));
        self.front.latest = ts;
        ts
    }

    #[inline]
    fn note_frame(&mut self, wire_len: u32) {
        let truth = &mut self.front.truth;
        truth.packets += 1;
        truth.wire_bytes += u64::from(wire_len);
        truth.largest_frame = truth.largest_frame.max(wire_len);
    }
}

/// Return a hint that names the program which converts an input that begins like this to a capture.
fn choose_reader(head: &[u8]) -> &'static str {
    match head {
        [4, 0x22, 0x4d, 0x18, ..] => "it is compressed by LZ4: lz4 -dc FILE | guestmark capture -",
        [0x1f, 0x9d, ..] => {
            "it is compressed by compress: uncompress -c FILE | guestmark capture -"
        }
        [b'P', b'K', 3, 4, ..] => "it is a ZIP archive: unzip -p FILE | guestmark capture -",
        [b'7', b'z', 0xbc, 0xaf, ..] => "it is a 7z archive: 7z x -so FILE | guestmark capture -",
        _ => "convert another format first: editcap -F pcapng FILE OUT",
    }
}

impl PacketSink for Reading<'_, '_> {
    #[inline]
    fn packet(&mut self, packet: &Packet<'_>) {
        self.note_frame(packet.wire_len);
        let ts = self.check_clock(packet.interface, packet.ts);
        self.front.truth.cut += u64::from((packet.data.len() as u32) < packet.wire_len);
        let packet = &Packet { ts, ..*packet };
        if self.front.filter.is_none() {
            self.front.batch.push(Segment::EMPTY);
            let frame = self.front.truth.packets;
            let room = self.front.batch.last_mut();
            if room.is_some_and(|room| {
                room.frame = frame;
                decode_fast_into(packet, room)
            }) {
                self.parse_payload(packet.data);
                self.counted(0);
                return;
            }
            self.front.batch.pop();
        }
        match decode(packet) {
            Ok(segment) if segment.key.protocol == UDP => {
                self.follow_datagram(segment, packet.data);
            }
            Ok(segment) if self.is_wanted(&segment) => {
                let mut segment = segment;
                segment.frame = self.front.truth.packets;
                self.front.truth.cut_options += u64::from(segment.options.cut);
                self.front.batch.push(segment);
                self.parse_payload(packet.data);
                self.counted(segment.tunnels);
            }
            Ok(_) => self.front.truth.filtered += 1,
            Err(skip) => self.front.truth.count_skipped(skip),
        }
    }

    fn dropped(&mut self, packets: u64) {
        self.front.truth.dropped = self.front.truth.dropped.saturating_add(packets);
    }

    fn section(&mut self) {
        self.front.clocks.clear();
    }
}

impl RowSink for Reading<'_, '_> {
    fn row(&mut self, segment: Segment, inferred: bool) {
        self.note_frame(segment.wire_len);
        let ts = self.check_clock(0, segment.ts);
        self.front.truth.inferred += u64::from(inferred);
        self.segment(Segment { ts, ..segment });
    }

    fn take_non_flow_row(&mut self, ts: i64, wire_len: u32, unnamed_port: bool) {
        self.note_frame(wire_len);
        self.check_clock(0, ts);
        let truth = &mut self.front.truth;
        if unnamed_port {
            truth.unnamed_ports += 1;
        } else {
            truth.other += 1;
        }
    }

    fn name(&mut self, name: &str) -> Option<u64> {
        self.front.names.number(name, &mut self.front.list)
    }
}
