//! Analyse one input in one pass: bytes → packets → segments → connections → summaries.
//!
//! The first half ([`Front`]) and the second half may run on two processors: see [`Analysis::read_file`].

use crate::application::exchange::Exchange;
use crate::application::served::Served;
use crate::connection::conn::Conn;
use crate::engine::front::{Deliver, Front, Kind};
use crate::engine::tracker::{ConnSink, Tracker};
use crate::results::endpoint::Endpoints;
use crate::results::figures::Causes;
use crate::results::longest_waits::{Ended, LongestWaits};
use crate::results::slowest::SlowestConnections;
use crate::results::summary::ConnectionSummary;
use crate::results::truth::CaptureQuality;
use crate::results::watch::Watch;
use crate::wire::fault::Fault;
use crate::wire::filter::Filter;
use crate::wire::input::Source;
use crate::wire::live::Ring;
use crate::wire::packet::{Segment, TCP};
use crate::wire::services::Services;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{channel, sync_channel, RecvTimeoutError};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of finished connections that are held back to deliver them in order of appearance.
const MAX_HELD: usize = 16_384;

/// Maximum number of fetches that are kept. A machine that boots needs far fewer.
const MOST_FETCHES: usize = 16_384;
/// A TCP connection whose server sent data: when it began, how long it lasted in nanoseconds, and the bytes.
pub type Fetch = (i64, u64, u64);

/// Receives the summaries one by one, in order of appearance unless more than 16,384 would have to wait for that.
pub trait Output {
    /// Handle one finished connection.
    fn connection(&mut self, summary: &ConnectionSummary);

    /// Whether percentiles are needed for a connection that waited this many nanoseconds.
    fn wants_percentiles(&self, _waited: u64) -> bool {
        true
    }
}

impl<F: FnMut(&ConnectionSummary)> Output for F {
    fn connection(&mut self, summary: &ConnectionSummary) {
        self(summary);
    }
}

struct Finished<'o> {
    truth: CaptureQuality,
    endpoints: Endpoints,
    held: BTreeMap<u64, ConnectionSummary>,
    next: u64,
    connections: u64,
    largest: SlowestConnections,
    fetches: Vec<Fetch>,
    output: &'o mut dyn Output,
}

impl ConnSink for Finished<'_> {
    fn wants_percentiles(&self, waited: u64) -> bool {
        self.output.wants_percentiles(waited)
    }

    fn finished(&mut self, conn: &Conn, client: usize, summary: ConnectionSummary) {
        self.connections += 1;
        self.largest.consider(&summary, client);
        self.truth.connection(&summary);
        self.endpoints.add(conn, client, &summary);
        let bytes = summary.server.unique_bytes;
        if conn.key.protocol == TCP && bytes > 0 && self.fetches.len() < MOST_FETCHES {
            self.fetches
                .push((summary.start_ns, summary.duration_ns, bytes));
        }
        if summary.index > self.next {
            self.held.insert(summary.index, summary);
            if self.held.len() <= MAX_HELD {
                return;
            }
            // A connection that stays open delays all that follow: deliver those first.
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

/// Smaller files are analysed before a second processor could help.
const APART_FROM: u64 = 1 << 20;
/// How often the watcher is called.
const TICK: Duration = Duration::from_secs(1);
const FOR_EVER: Duration = Duration::from_secs(1 << 30);
/// Maximum number of batches that wait between two processors: enough that neither sleeps because of a short pause of
/// the other, since a woken thread often ends up on the processor of the thread that woke it.
const WAITING: usize = 16;

/// The second half of the pass.
struct Back<'o> {
    tracker: Tracker,
    finished: Finished<'o>,
    packets: u64,
}

impl Back<'_> {
    #[inline]
    fn take(&mut self, segments: &[Segment], names: &[Arc<str>]) {
        self.tracker.names.extend_from_slice(names);
        self.packets += segments.len() as u64;
        self.tracker.take(segments, &mut self.finished);
    }

    fn so_far(&self) -> SoFar {
        let mut causes = self.finished.endpoints.causes;
        self.tracker.each(|conn| {
            if let Some(spent) = conn.causes() {
                causes += Causes::new(spent, conn.client_end());
            }
        });
        SoFar {
            packets: self.packets,
            connections: self.finished.connections + self.tracker.open() as u64,
            causes,
        }
    }
}

/// One analysis: one input, or several that are read as one.
pub struct Analysis<'o> {
    front: Front,
    back: Back<'o>,
    watcher: Option<&'o mut dyn FnMut(&SoFar)>,
}

/// The results so far, while the input is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoFar {
    /// Number of packets that were counted.
    pub packets: u64,
    /// Number of connections, finished and open.
    pub connections: u64,
    /// Total time of the connections by cause.
    pub causes: Causes,
}

/// The results when everything has been read.
pub struct Report {
    /// Counters of everything that makes the figures inexact.
    pub truth: CaptureQuality,
    /// Sums by endpoint, and total time.
    pub endpoints: Endpoints,
    /// Number of connections.
    pub connections: u64,
    /// Time of the first packet, in nanoseconds since 1970.
    pub start_ns: Option<i64>,
    /// Exchanges over UDP in supported protocols.
    pub exchanges: Vec<Exchange>,
    /// What was fetched over TCP, if DHCP granted an address: the phases of a network boot.
    pub fetches: Vec<Fetch>,
    /// Individual requests, by server, if requested.
    pub requests: Vec<Served>,
    /// The connections worth drawing.
    pub largest: SlowestConnections,
    /// The packets that ended the longest waits.
    pub guilty: Vec<Ended>,
    /// The points of watched connections.
    pub watch: Option<Box<Watch>>,
}

impl<'o> Analysis<'o> {
    /// Create an analysis that uses at most `memory` bytes for open connections and hands finished ones to `output`.
    #[must_use]
    pub fn new(memory: usize, filter: Option<Filter>, output: &'o mut dyn Output) -> Self {
        Self {
            front: Front::new(filter),
            back: Back {
                tracker: Tracker::new(memory),
                finished: Finished {
                    truth: CaptureQuality::default(),
                    endpoints: Endpoints::default(),
                    held: BTreeMap::new(),
                    next: 0,
                    connections: 0,
                    largest: SlowestConnections::default(),
                    fetches: Vec::new(),
                    output,
                },
                packets: 0,
            },
            watcher: None,
        }
    }

    /// Call `watcher` with the state every second; every packet is then counted immediately.
    #[must_use]
    pub fn with_watcher(mut self, watcher: &'o mut dyn FnMut(&SoFar)) -> Self {
        self.front.together = 1;
        self.watcher = Some(watcher);
        self
    }

    /// Also collect points of a time-sequence view.
    #[must_use]
    pub fn watching(mut self, watch: Watch) -> Self {
        self.back.tracker.watch = Some(Box::new(watch));
        self
    }

    /// Also keep the packets that ended the longest waits.
    #[must_use]
    pub fn with_longest_waits(mut self) -> Self {
        self.back.tracker.guilty = Some(Box::default());
        self
    }

    /// Also measure the time of each request and DNS query.
    #[must_use]
    pub fn with_requests(mut self) -> Self {
        self.front.requests = Some(Box::default());
        self
    }

    /// Read one input up to its end or a fault; everything before either is counted.
    pub fn read(
        &mut self,
        source: &mut Source<'_>,
        services: &Services,
    ) -> (Option<Kind>, Result<(), Fault>) {
        let back = &mut self.back;
        self.front.read(source, services, &mut |segments, names| {
            back.take(segments, names);
            segments.clear();
        })
    }

    /// Read a file by name, or standard input for `-`; with two processors, one reads and the other counts.
    pub fn read_file(
        &mut self,
        name: &str,
        services: &Services,
    ) -> (Option<Kind>, Result<(), Fault>) {
        let opened = |result: io::Result<Source<'static>>| result.map_err(|e| Fault::io(0, &e));
        let small =
            std::fs::metadata(name).is_ok_and(|about| about.is_file() && about.len() < APART_FROM);
        let alone = small || thread::available_parallelism().map_or(1, usize::from) < 2;
        if alone && self.watcher.is_none() {
            return match opened(Source::open(name)) {
                Ok(mut source) => self.read(&mut source, services),
                Err(fault) => (None, Err(fault)),
            };
        }
        self.run_on_two_threads(|front, deliver| match opened(Source::open(name)) {
            Ok(mut source) => front.read(&mut source, services, deliver),
            Err(fault) => (None, Err(fault)),
        })
    }

    /// Read packets from an interface until a signal ends it.
    ///
    /// # Errors
    ///
    /// If the interface disappears.
    pub fn listen(&mut self, mut ring: Ring) -> io::Result<()> {
        self.run_on_two_threads(move |front, deliver| front.listen(&mut ring, deliver))
    }

    /// Run `read` on one processor; the other counts what it delivers.
    fn run_on_two_threads<T: Send>(
        &mut self,
        read: impl FnOnce(&mut Front, &mut Deliver<'_>) -> T + Send,
    ) -> T {
        let Self {
            front,
            back,
            watcher,
        } = self;
        let (full, batches) = sync_channel::<(Vec<Segment>, Vec<Arc<str>>)>(WAITING);
        let (empty, used) = channel::<Vec<Segment>>();
        thread::scope(|scope| {
            let reader = scope.spawn(move || {
                read(front, &mut |segments, names| {
                    let next = used
                        .try_recv()
                        .unwrap_or_else(|_| Vec::with_capacity(segments.capacity()));
                    let batch = std::mem::replace(segments, next);
                    // The counting side is gone only if it has panicked, which is reported below.
                    let _ = full.send((batch, names.to_vec()));
                })
            });
            let mut next = Instant::now() + TICK;
            loop {
                let wait = if watcher.is_some() { TICK } else { FOR_EVER };
                match batches.recv_timeout(wait) {
                    Ok((mut segments, names)) => {
                        back.take(&segments, &names);
                        segments.clear();
                        let _ = empty.send(segments);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if let Some(watcher) = watcher.as_mut().filter(|_| Instant::now() >= next) {
                    next = Instant::now() + TICK;
                    watcher(&back.so_far());
                }
            }
            reader
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Finish the connections that are still open at the end of the input.
    #[must_use]
    pub fn end(self) -> Report {
        let Self {
            front, mut back, ..
        } = self;
        back.tracker.finish(&mut back.finished);
        for (_, summary) in std::mem::take(&mut back.finished.held) {
            back.finished.output.connection(&summary);
        }
        let mut truth = back.finished.truth;
        truth.absorb(&front.truth);
        let (exchanges, names) = front.datagrams.finish();
        let granted = exchanges.iter().any(|lease| lease.granted_s.is_some());
        let fetches = if granted {
            back.finished.fetches
        } else {
            Vec::new()
        };
        let mut requests = Vec::new();
        if let Some(found) = front.requests {
            requests = found.finish();
            requests.extend(names);
        }
        Report {
            truth,
            endpoints: back.finished.endpoints,
            connections: back.finished.connections,
            start_ns: front.first_ts,
            largest: back.finished.largest,
            exchanges,
            fetches,
            requests,
            guilty: back
                .tracker
                .guilty
                .take()
                .map_or_else(Vec::new, |guilty| LongestWaits::found(*guilty)),
            watch: back.tracker.watch.take(),
        }
    }
}
