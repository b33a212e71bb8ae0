//! What a connection's time was spent on, by cause: who would have had to act for it to pass sooner.
//!
//! Time is cut where something *moves on*: new data or a retransmission. Each piece is explained by what ended it (see
//! [`crate::explanation`]), as its sender saw the connection at that moment ([`crate::view`]): which acknowledgements had
//! reached it, and whether the window, the path or its own program held it up. The sender's view is the same wherever
//! the capture was taken, so captures at both ends tell the same story.
//!
//! The classes are those of T-RAT (Zhang, Breslau, Paxson, Shenker: On the Characteristics and Origins of Internet Flow
//! Rates, SIGCOMM 2002) and of Dapper (Ghasemi, Benson, Rexford, SOSR 2017).

use crate::conn::Conn;
use crate::loss::Losses;
use crate::numbers::Order;
use crate::packet::{flag, Segment, NO_TIME};
use crate::path::not_after;
use crate::wait::Wait;

/// A silence of this length that nobody owed to break is idle.
pub const IDLE_FROM: u64 = 1_000_000_000;

/// Positions of the causes in [`Causes::spent`]. Those that belong to an end have one position for each end of the key.
pub mod on {
    /// An end's program. One that does not read what has arrived is among them.
    pub const APPLICATION: usize = 0;
    /// An end's receive buffer: its program read at once, and the window was still too small for the path.
    pub const RECEIVE_BUFFER: usize = 2;
    /// An end's send buffer (or a pace that its system set): less in flight than window and path had room for.
    pub const SEND_BUFFER: usize = 4;
    /// Round trips.
    pub const LATENCY: usize = 6;
    /// The rate of the path and its queues.
    pub const BANDWIDTH: usize = 7;
    /// A small segment that waits for the acknowledgement of one before, which the other end delays.
    pub const NAGLE: usize = 8;
    /// From a loss to its repair.
    pub const RECOVERY: usize = 9;
    /// Neither end owed anything.
    pub const IDLE: usize = 10;
    /// The capture does not tell.
    pub const UNKNOWN: usize = 11;
    /// How many there are.
    pub const COUNT: usize = 12;

    /// Idleness is nobody's wait, and what is unknown was perhaps none.
    #[must_use]
    pub fn is_waited_for(cause: usize) -> bool {
        !matches!(cause, IDLE | UNKNOWN)
    }
}

/// Nanoseconds by cause.
pub type Spent = [u64; on::COUNT];

/// What the time was spent on so far.
#[derive(Debug)]
pub struct Causes {
    /// Nanoseconds by cause.
    pub spent: Spent,
    /// Up to here all time has been attributed.
    pub(crate) mark: i64,
    /// When all data of who moved on last was acknowledged.
    pub(crate) covered: i64,
    /// Time that a small segment waited, on top of other causes' time: of Nagle's algorithm if the other end answers next.
    pub(crate) held: u64,
    /// What is known of losses.
    pub(crate) losses: Option<Box<Losses>>,
    /// Who moved on last.
    pub(crate) from: u8,
    /// Who moved on last had more than two segments in flight: the other end acknowledges without delay.
    pub(crate) streaming: bool,
    /// Data was acknowledged since that the capture does not hold.
    pub(crate) unseen: bool,
    /// What both ends have said, as [`crate::debt`] follows it.
    pub(crate) talk: u8,
    /// The longest time for one thing.
    pub(crate) longest: Wait,
}

impl Causes {
    /// Nothing yet, at the time of the first packet, by `from`.
    #[must_use]
    pub fn new(ts: i64, from: u8) -> Self {
        Self {
            spent: [0; on::COUNT],
            mark: ts,
            covered: NO_TIME,
            held: 0,
            losses: None,
            from,
            streaming: false,
            unseen: false,
            talk: 0,
            longest: Wait::default(),
        }
    }

    /// A small segment was waited for: by Nagle's rule if the other end had waited for it, else its program's pace.
    #[inline]
    pub(crate) fn release_held(&mut self, answered: bool) {
        let held = std::mem::take(&mut self.held);
        let cause = if answered {
            on::NAGLE
        } else {
            on::APPLICATION + usize::from(self.from & 1)
        };
        self.spent[cause] += held;
    }
}

/// What is known of a segment besides its fields, and of its connection just before it.
pub struct Step {
    /// It holds new payload, or a SYN or FIN for the first time.
    pub fresh: bool,
    /// It repeats payload, SYN or FIN.
    pub repeats: bool,
    /// It holds new payload from before the highest seen.
    pub late: bool,
    /// What its sender would have sent next.
    pub next: u32,
    /// What its sender had acknowledged so far, if anything.
    pub acked: Option<u32>,
    /// Packets of its sender were lost before the point of capture; or it was sent before another that passed first.
    pub order: Order,
}

impl Conn {
    /// Attribute the time up to `segment`, and note what it tells about the time to come. Returns the heap's growth.
    #[inline]
    pub(crate) fn attribute(&mut self, segment: &Segment, step: &Step) -> usize {
        let from = usize::from(segment.from & 1);
        let peer = 1 - from;
        // A copy that the path made is nobody's act.
        let acts = step.fresh || step.repeats && step.order != Order::Earlier;
        let moves = (acts || segment.flags & flag::RST != 0) && !self.is_probe(segment);
        let mut grown = 0;
        let waited = segment.ts.saturating_sub(self.causes.mark).max(0) as u64 + self.causes.held;
        let programs = [self.causes.spent[0], self.causes.spent[1]];
        let earlier = (moves && waited > self.causes.longest.nanos()).then_some(self.causes.spent);
        let before = self.opens_hole(segment, step).then_some(self.causes.spent);
        if moves && step.late && !step.repeats {
            // It was on its way, and others have passed before: only the other end may have waited for it.
            if let Some(losses) = &mut self.causes.losses {
                losses.late = (segment.ts, segment.from & 1);
            }
            grown += self.stamp_queue(segment, from);
        } else if moves {
            grown += self.settle(segment, step);
            let whole = self.both_trips();
            if let Some(queues) = &mut self.queues {
                queues[from].sent(segment.ts, whole);
            }
            self.moved(from, segment.ts);
        }
        grown += self.measure(segment, from);
        grown += self.notice_losses(segment, step, moves, before);
        if let Some(earlier) = earlier {
            let spent = self.causes.spent;
            self.causes.longest.see(&earlier, &spent, on::is_waited_for);
        }
        // Every end's own, whatever else took longer: it is the endpoints' rows that show them.
        for (end, before) in programs.into_iter().enumerate() {
            let now = self.causes.spent[on::APPLICATION + end];
            self.own[end].note(now.saturating_sub(before));
        }
        if moves {
            if segment.payload > 0 && !step.late {
                self.follow_message(segment, from);
            }
            let flight = self.sent[from]
                .space
                .next()
                .wrapping_sub(self.sent[peer].acked);
            let two = 2 * self.largest_segment(from);
            self.causes.streaming = self.flags[peer] & flag::ACK != 0 && flight > two;
            let path = &mut self.paths[from];
            if segment.payload > 0 && !step.late {
                path.last_len = segment.payload;
                path.pushed = segment.flags & flag::PSH != 0;
                if !path.pushed {
                    path.full = path.full.max(segment.payload);
                }
                let known = self.flags[peer] & flag::ACK != 0 && !self.sent[from].space.has_gaps();
                if known && flight < 1 << 31 {
                    path.in_flight = path.in_flight.max(flight);
                }
            }
        } else if self.causes.from != segment.from
            && self.causes.covered == NO_TIME
            && segment.ack == self.sent[peer].space.next()
        {
            self.causes.covered = segment.ts;
        }
        grown
    }

    #[inline]
    pub(crate) fn moved(&mut self, from: usize, ts: i64) {
        self.causes.mark = ts;
        self.causes.from = from as u8;
        self.causes.covered = NO_TIME;
    }

    /// A probe of a window, or of whether the other end is there: at most a byte that was acknowledged already.
    fn is_probe(&self, segment: &Segment) -> bool {
        let peer = usize::from(1 - (segment.from & 1));
        segment.payload <= 1
            && segment.flags & (flag::SYN | flag::FIN | flag::RST) == 0
            && segment.seq == self.sent[peer].acked.wrapping_sub(1)
            && self.flags[peer] & flag::ACK != 0
    }

    /// Up to when all time was attributed.
    pub(crate) fn attributed_until(&self) -> i64 {
        self.causes.mark
    }

    /// The end that is taken for the client.
    #[inline]
    #[must_use]
    pub fn client_end(&self) -> usize {
        self.client.map_or_else(
            || usize::from(self.key.port[0] < self.key.port[1]),
            usize::from,
        )
    }

    /// Everything by cause: nanoseconds that add up to the duration. `None` without both directions.
    #[must_use]
    pub fn causes(&self) -> Option<Spent> {
        if self.sent[0].packets == 0 || self.sent[1].packets == 0 {
            return None;
        }
        if self.is_merged() {
            let mut spent = [0; on::COUNT];
            spent[on::UNKNOWN] = self.duration();
            return Some(spent);
        }
        let mut spent = self.causes.spent;
        spent[on::APPLICATION + usize::from(self.causes.from & 1)] += self.causes.held;
        let left = self.duration().saturating_sub(spent.iter().sum());
        let end = usize::from(self.last_from & 1);
        let other = usize::from(self.causes.from) != end;
        if self.causes.unseen {
            spent[on::UNKNOWN] += left;
        } else if self.losses().is_some_and(Losses::repairing) {
            spent[on::RECOVERY] += left;
        } else if self.is_shut(0) || self.is_shut(1) {
            // The one that does not read has not gone on.
            spent[on::APPLICATION + usize::from(!self.is_shut(0))] += left;
        } else {
            let trip = self.paths[end].round_trip().min(left);
            let network = match other {
                // The last acknowledgements of a stream come as soon as its data have left the queues.
                true if self.causes.streaming => left,
                true => trip,
                false => 0,
            };
            let latency = network.min(trip);
            spent[on::LATENCY] += latency;
            spent[on::BANDWIDTH] += network - latency;
            let cause = if left - network >= IDLE_FROM {
                self.last_silence()
            } else {
                on::APPLICATION + end
            };
            spent[cause] += left - network;
        }
        self.correct(&mut spent);
        if spent[on::RECOVERY] > 0 && self.has_only_copies() {
            spent[on::UNKNOWN] += std::mem::take(&mut spent[on::RECOVERY]);
        }
        // Clocks that step backwards may have counted some time twice.
        let mut over = spent.iter().sum::<u64>().saturating_sub(self.duration());
        for part in &mut spent {
            let less = over.min(*part);
            *part -= less;
            over -= less;
        }
        Some(spent)
    }

    /// Does `end` announce a window too small for the other end to go on (receivers avoid silly windows)?
    #[inline]
    pub(crate) fn is_shut(&self, end: usize) -> bool {
        let path = &self.paths[end];
        if path.window_min == u32::MAX || self.flags[end] & (flag::FIN | flag::RST) != 0 {
            return false;
        }
        if path.scale == crate::path::NO_SCALE {
            return path.window == 0;
        }
        let segment = self.largest_segment(1 - end);
        path.window < segment.min(path.window_max / 2)
    }

    /// True when everything that `from` has sent was acknowledged, as far as the point of capture knows.
    #[inline]
    pub(crate) fn all_acknowledged(&self, from: usize, next: u32) -> bool {
        not_after(next, self.sent[1 - from].acked)
    }
}
