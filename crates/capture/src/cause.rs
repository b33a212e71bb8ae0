//! What a connection's time was spent on, by cause.
//!
//! Time is cut where something *moves on*: new data, a retransmission, a window that closes or opens, a loss that shows.
//! Each piece is explained by what ended it. When an end answers, the way to it and back again (its shortest round trip
//! from the point of capture) was the network's, and the rest its own. When an end goes on sending, it had either more to
//! send, and the network was what held it up, or it was its own pace. The rules look only at what is the same at every
//! point of the path, or is moved by the same time; so captures at both ends tell the same story.

use crate::conn::Conn;
use crate::packet::{flag, Segment, NO_TIME};
use crate::path::not_after;

/// A silence of this length that nobody was asked to break is nobody's fault.
pub const IDLE_FROM: u64 = 1_000_000_000;

/// Positions of the causes in [`Causes::spent`]; the ends' own are 0 and 1.
pub mod on {
    /// Round trips and the rate of the path.
    pub const NETWORK: usize = 2;
    /// A receive window without room.
    pub const WINDOW: usize = 3;
    /// From a loss to its repair.
    pub const RECOVERY: usize = 4;
    /// Nothing was outstanding.
    pub const IDLE: usize = 5;
}

/// What the time was spent on so far.
#[derive(Debug)]
pub struct Causes {
    /// Nanoseconds by cause.
    pub spent: [u64; 6],
    /// Up to here all time has been attributed.
    pub(crate) mark: i64,
    /// When all data of who moved on last was acknowledged.
    pub(crate) covered: i64,
    /// The time stamp of that acknowledgement.
    pub(crate) covered_stamp: Option<u32>,
    /// Who moved on last.
    pub(crate) from: u8,
    /// Whose data do not fit the other end's window, one bit each.
    pub(crate) closed: u8,
    /// Whose data are lost and not repaired, one bit each.
    pub(crate) recovering: u8,
    /// Who moved on last had more than two segments in flight: the other end acknowledges without delay.
    pub(crate) streaming: bool,
}

impl Causes {
    /// Nothing yet, at the time of the first packet, by `from`.
    #[must_use]
    pub fn new(ts: i64, from: u8) -> Self {
        Self {
            spent: [0; 6],
            mark: ts,
            covered: NO_TIME,
            covered_stamp: None,
            from,
            closed: 0,
            recovering: 0,
            streaming: false,
        }
    }
}

/// What is known of a segment besides its fields, and of its connection just before it.
pub struct Step {
    /// It holds new payload, or a SYN or FIN for the first time.
    pub fresh: bool,
    /// It repeats payload, SYN or FIN.
    pub repeats: bool,
    /// What its sender would have sent next.
    pub next: u32,
    /// What its sender had acknowledged so far, if anything.
    pub acked: Option<u32>,
    /// Packets of its sender were lost before the point of capture.
    pub lost_before: bool,
}

impl Conn {
    /// Attribute the time up to `segment`, and note what it tells about the time to come. Returns the heap's growth.
    #[inline]
    pub(crate) fn attribute(&mut self, segment: &Segment, step: &Step) -> usize {
        let from = usize::from(segment.from & 1);
        let peer = 1 - from;
        let has_ack = segment.flags & flag::ACK != 0;
        let advances = has_ack
            && step
                .acked
                .is_none_or(|acked| !not_after(segment.ack, acked));
        let holes = has_ack
            && segment
                .options
                .sacked
                .is_some_and(|edge| !not_after(edge, segment.ack));
        let moves = step.fresh || step.repeats || segment.flags & flag::RST != 0;
        let lossy = holes || (has_ack && !moves && !advances && self.is_duplicate(segment, step));
        let was = self.causes.closed | self.causes.recovering;
        if was != 0 {
            self.interrupted(segment.ts);
            if moves || advances {
                self.moved(from, segment.ts);
            }
        } else if moves {
            self.settle(segment, step);
            self.moved(from, segment.ts);
        }
        let grown = self.measure(segment, from);
        let announces =
            has_ack && segment.seq_known && segment.flags & (flag::SYN | flag::RST) == 0;
        let shut = announces.then(|| self.is_shut(from));
        self.enter(segment.ts, from, lossy, advances, shut);
        if moves {
            let flight = self.sent[from]
                .space
                .next()
                .wrapping_sub(self.sent[peer].acked);
            let two = 2 * u32::from(self.limit[from].max(536));
            self.causes.streaming = self.flags[peer] & flag::ACK != 0 && flight > two;
            let path = &mut self.paths[from];
            if segment.payload > 0 {
                path.last_len = segment.payload;
                path.pushed = segment.flags & flag::PSH != 0;
                path.pushes |= path.pushed;
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
            self.causes.covered_stamp = segment.options.stamps.map(|(value, _)| value);
        }
        grown
    }

    #[inline]
    pub(crate) fn moved(&mut self, from: usize, ts: i64) {
        self.causes.mark = ts;
        self.causes.from = from as u8;
        self.causes.covered = NO_TIME;
    }

    /// The time up to now went into a loss or a closed window.
    fn interrupted(&mut self, ts: i64) {
        let gap = ts.saturating_sub(self.causes.mark).max(0) as u64;
        let cause = if self.causes.recovering != 0 {
            on::RECOVERY
        } else {
            on::WINDOW
        };
        self.causes.spent[cause] += gap;
        self.causes.mark = ts;
    }

    /// Losses and closed windows that begin or end with a packet by `from`.
    #[inline]
    fn enter(&mut self, ts: i64, from: usize, lossy: bool, advances: bool, shut: Option<bool>) {
        let bit = 1 << (1 - from);
        let before = (self.causes.recovering, self.causes.closed);
        if lossy {
            self.causes.recovering |= bit;
        } else if advances {
            self.causes.recovering &= !bit;
        }
        match shut {
            Some(true) => self.causes.closed |= bit,
            Some(false) => self.causes.closed &= !bit,
            None => {}
        }
        if before == (0, 0) && (self.causes.recovering | self.causes.closed) != 0 {
            self.settle_acknowledgement(ts, from);
        } else if before != (0, 0) && (self.causes.recovering | self.causes.closed) == 0 {
            // The packet that ends it is what the other end waited for.
            self.moved(from, ts);
        }
    }

    /// The time until an acknowledgement by `from` that shows a loss or closes the window.
    fn settle_acknowledgement(&mut self, ts: i64, from: usize) {
        let gap = ts.saturating_sub(self.causes.mark).max(0) as u64;
        let whole = self.causes.streaming || usize::from(self.causes.from) == from;
        let network = if whole {
            gap
        } else {
            self.paths[from].round_trip().min(gap)
        };
        self.causes.spent[on::NETWORK] += network;
        self.causes.spent[from] += gap - network;
        self.causes.mark = ts;
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
    pub fn causes(&self) -> Option<[u64; 6]> {
        if self.sent[0].packets == 0 || self.sent[1].packets == 0 {
            return None;
        }
        let mut spent = self.causes.spent;
        let left = self.duration().saturating_sub(spent.iter().sum());
        let end = usize::from(self.last_from & 1);
        if self.causes.recovering != 0 {
            spent[on::RECOVERY] += left;
        } else if self.causes.closed != 0 {
            spent[on::WINDOW] += left;
        } else {
            let network = if usize::from(self.causes.from) == end {
                0
            } else {
                self.paths[end].round_trip().min(left)
            };
            spent[on::NETWORK] += network;
            let cause = if left - network >= IDLE_FROM {
                on::IDLE
            } else {
                end
            };
            spent[cause] += left - network;
        }
        // Clocks that step backwards may have counted some time twice.
        let mut over = spent.iter().sum::<u64>() - self.duration();
        for part in &mut spent {
            let less = over.min(*part);
            *part -= less;
            over -= less;
        }
        Some(spent)
    }
}
