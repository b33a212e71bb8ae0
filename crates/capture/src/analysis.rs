//! The way of one input: bytes → packets → segments → connections → summaries, in one pass.

use crate::conn::Conn;
use crate::decode::decode;
use crate::endpoint::Endpoints;
use crate::fault::Fault;
use crate::filter::Filter;
use crate::input::{Compression, Source};
use crate::mapped::cut_short;
use crate::packet::{Packet, PacketSink, Segment, NO_TIME};
use crate::packetlist::{self, Names, RowSink};
use crate::services::Services;
use crate::summary::Summary;
use crate::tracker::{ConnSink, Tracker, BATCH};
use crate::truth::Truth;
use crate::watch::{Watch, MAX_WATCHED};
use crate::{pcap, pcapng};
use std::collections::BTreeMap;

/// Finished connections held back so that they come out in order of appearance.
const MAX_HELD: usize = 16_384;
const MAX_INTERFACES: usize = 65_536;

/// Where summaries go, one by one: in order of their appearance, as long as no more than 16,384 must wait for it.
pub trait Output {
    /// One finished connection.
    fn connection(&mut self, summary: &Summary);

    /// Will the percentiles of a connection of this duration (nanoseconds) be looked at?
    fn wants_percentiles(&self, _duration: u64) -> bool {
        true
    }
}

impl<F: FnMut(&Summary)> Output for F {
    fn connection(&mut self, summary: &Summary) {
        self(summary);
    }
}

/// The connection with most packets, of all and of the first ones: packets, index, the client's end of its key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Largest {
    /// Of all connections.
    pub of_all: Option<(u64, u64, usize)>,
    /// Of those that are watched when none is asked for.
    pub of_first: Option<(u64, u64, usize)>,
}

impl Largest {
    fn see(&mut self, summary: &Summary, client: usize) {
        let this = Some((summary.packets(), summary.index, client));
        let larger = |best: Option<(u64, u64, usize)>| {
            best.is_none_or(|(packets, ..)| packets < summary.packets())
        };
        if larger(self.of_all) {
            self.of_all = this;
        }
        if summary.index < MAX_WATCHED && larger(self.of_first) {
            self.of_first = this;
        }
    }
}

struct Finished<'o> {
    truth: Truth,
    endpoints: Endpoints,
    held: BTreeMap<u64, Summary>,
    next: u64,
    connections: u64,
    largest: Largest,
    output: &'o mut dyn Output,
}

impl ConnSink for Finished<'_> {
    fn wants_percentiles(&self, duration: u64) -> bool {
        self.output.wants_percentiles(duration)
    }

    fn finished(&mut self, conn: &Conn, client: usize, summary: Summary) {
        self.connections += 1;
        self.largest.see(&summary, client);
        self.truth.connection(&summary);
        self.endpoints.add(conn, client, &summary);
        if summary.index > self.next {
            self.held.insert(summary.index, summary);
            if self.held.len() <= MAX_HELD {
                return;
            }
            // Somebody open holds everybody up: let the ones after go first.
            self.next = self
                .held
                .first_key_value()
                .map_or(self.next, |(&index, _)| index);
        } else {
            self.output.connection(&summary);
            self.next = self.next.max(summary.index + 1);
        }
        while let Some(waiting) = self.held.remove(&self.next) {
            self.output.connection(&waiting);
            self.next += 1;
        }
    }
}

/// One analysis: one input, or several that are read as one.
pub struct Analysis<'o> {
    tracker: Tracker,
    finished: Finished<'o>,
    filter: Option<Filter>,
    batch: Vec<Segment>,
    clocks: Vec<i64>,
    latest: i64,
    first_ts: Option<i64>,
    names: Names,
}

/// What is known when all was read.
pub struct Report {
    /// Counters of everything that limits truth.
    pub truth: Truth,
    /// Sums by endpoint, and of time.
    pub endpoints: Endpoints,
    /// Number of connections.
    pub connections: u64,
    /// Time of the first packet, nanoseconds since 1970.
    pub start_ns: Option<i64>,
    /// The connections worth a picture.
    pub largest: Largest,
    /// What was watched.
    pub watch: Option<Box<Watch>>,
}

/// What an input turned out to be.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// `pcap`, `pcapng` or `csv`.
    pub format: &'static str,
    /// How it was compressed.
    pub compression: Compression,
}

impl<'o> Analysis<'o> {
    /// Use at most `memory` bytes for open connections; hand finished ones to `output`.
    #[must_use]
    pub fn new(memory: usize, filter: Option<Filter>, output: &'o mut dyn Output) -> Self {
        Self {
            tracker: Tracker::new(memory),
            finished: Finished {
                truth: Truth::default(),
                endpoints: Endpoints::default(),
                held: BTreeMap::new(),
                next: 0,
                connections: 0,
                largest: Largest::default(),
                output,
            },
            filter,
            batch: Vec::with_capacity(BATCH),
            clocks: Vec::new(),
            latest: NO_TIME,
            first_ts: None,
            names: Names::default(),
        }
    }

    /// Also keep points of a time-sequence view.
    #[must_use]
    pub fn watching(mut self, watch: Watch) -> Self {
        self.tracker.watch = Some(Box::new(watch));
        self
    }

    /// Read one input to its end or to a fault; either way everything before it is counted.
    pub fn read(
        &mut self,
        source: &mut Source<'_>,
        services: &Services,
    ) -> (Option<Kind>, Result<(), Fault>) {
        self.section();
        let mut kind = None;
        let mut result = self.read_as(source, services, &mut kind);
        if source.is_cut() {
            // Whatever else was found: lost bytes read as zero.
            result = Err(Fault::io(source.offset(), &cut_short()));
        }
        self.flush();
        (kind, result)
    }

    fn read_as(
        &mut self,
        source: &mut Source<'_>,
        services: &Services,
        kind: &mut Option<Kind>,
    ) -> Result<(), Fault> {
        // Enough to see a packet list's header line; a shorter input is judged by what there is.
        source
            .need(4096)
            .map_err(|e| Fault::io(source.offset(), &e))?;
        let compression = source.compression;
        let head = source.data();
        if head.is_empty() {
            return Err(
                Fault::new(0, "the file is empty").hint("a capture holds at least a file header")
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
                    .hint("other formats: editcap -F pcapng FILE OUT"),
            )
        }
    }

    /// Everything was read: finish what is open.
    #[must_use]
    pub fn end(mut self) -> Report {
        self.flush();
        self.tracker.finish(&mut self.finished);
        for (_, summary) in std::mem::take(&mut self.finished.held) {
            self.finished.output.connection(&summary);
        }
        Report {
            truth: self.finished.truth,
            endpoints: self.finished.endpoints,
            connections: self.finished.connections,
            start_ns: self.first_ts,
            largest: self.finished.largest,
            watch: self.tracker.watch.take(),
        }
    }

    fn flush(&mut self) {
        self.tracker.take(&self.batch, &mut self.finished);
        self.batch.clear();
    }

    #[inline]
    fn segment(&mut self, segment: Segment) {
        if self
            .filter
            .as_ref()
            .is_some_and(|filter| !filter.fits(&segment, &self.tracker.names))
        {
            return;
        }
        self.finished.truth.counted += 1;
        self.batch.push(segment);
        if self.batch.len() == BATCH {
            self.flush();
        }
    }

    #[inline]
    fn clock(&mut self, interface: u32, ts: i64) -> i64 {
        if ts == NO_TIME {
            self.finished.truth.untimed += 1;
            return if self.latest == NO_TIME {
                0
            } else {
                self.latest
            };
        }
        let interface = interface as usize;
        if interface >= self.clocks.len() {
            self.clocks
                .resize((interface + 1).min(MAX_INTERFACES), NO_TIME);
        }
        if let Some(last) = self.clocks.get_mut(interface) {
            self.finished.truth.clock(last, ts);
        }
        self.first_ts.get_or_insert(ts);
        self.latest = ts;
        ts
    }

    #[inline]
    fn frame(&mut self, wire_len: u32) {
        let truth = &mut self.finished.truth;
        truth.packets += 1;
        truth.wire_bytes += u64::from(wire_len);
        truth.largest_frame = truth.largest_frame.max(wire_len);
    }
}

impl PacketSink for Analysis<'_> {
    #[inline]
    fn packet(&mut self, packet: &Packet<'_>) {
        self.frame(packet.wire_len);
        let ts = self.clock(packet.interface, packet.ts);
        self.finished.truth.cut += u64::from((packet.data.len() as u32) < packet.wire_len);
        match decode(&Packet { ts, ..*packet }) {
            Ok(segment) => self.segment(segment),
            Err(skip) => self.finished.truth.skip(skip),
        }
    }

    fn dropped(&mut self, packets: u64) {
        self.finished.truth.dropped = self.finished.truth.dropped.saturating_add(packets);
    }

    fn section(&mut self) {
        self.clocks.clear();
    }
}

impl RowSink for Analysis<'_> {
    fn row(&mut self, segment: Segment, inferred: bool) {
        self.frame(segment.wire_len);
        let ts = self.clock(0, segment.ts);
        self.finished.truth.inferred += u64::from(inferred);
        self.segment(Segment { ts, ..segment });
    }

    fn other_row(&mut self, ts: i64, wire_len: u32, unnamed_port: bool) {
        self.frame(wire_len);
        self.clock(0, ts);
        let truth = &mut self.finished.truth;
        if unnamed_port {
            truth.unnamed_ports += 1;
        } else {
            truth.other += 1;
        }
    }

    fn name(&mut self, name: &str) -> Option<u64> {
        self.names.number(name, &mut self.tracker.names)
    }
}
