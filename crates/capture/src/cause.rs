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
/// A jump of packet numbers explains a silence from this length on: no timer that repeats a packet is faster.
const REPEATED_FROM: u64 = 20_000_000;
/// How exactly a packet must follow an acknowledgement to be released by it, besides a quarter of the round trip.
const EXACTLY: u64 = 200_000;

/// The same datagram again after this time was waited for in vain.
const SAID_AGAIN_FROM: u64 = 50_000_000;

const DHCP: u16 = 67;

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
    mark: i64,
    /// When all data of who moved on last was acknowledged.
    covered: i64,
    /// The time stamp of that acknowledgement.
    covered_stamp: Option<u32>,
    /// Who moved on last.
    from: u8,
    /// Whose data do not fit the other end's window, one bit each.
    closed: u8,
    /// Whose data are lost and not repaired, one bit each.
    recovering: u8,
    /// Who moved on last had more than two segments in flight: the other end acknowledges without delay.
    streaming: bool,
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
    fn moved(&mut self, from: usize, ts: i64) {
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

    /// Explain the time until `segment`, which moves on.
    #[inline]
    fn settle(&mut self, segment: &Segment, step: &Step) {
        let gap = segment.ts.saturating_sub(self.causes.mark).max(0) as u64;
        let from = usize::from(segment.from & 1);
        let continues = usize::from(self.causes.from) == from;
        if segment.flags & (flag::SYN | flag::RST) == flag::SYN && !step.repeats {
            self.causes.spent[on::NETWORK] += gap;
            return;
        }
        if step.repeats && !step.fresh && !self.is_probe(segment) {
            // The round trip that repairs the loss is still to come.
            self.causes.spent[on::RECOVERY] += gap;
            return;
        }
        let way = if continues {
            0
        } else if self.causes.streaming && self.causes.covered != NO_TIME {
            // The acknowledgement of the last of many segments was not delayed: it tells the queues' length, too.
            (self.causes.covered - self.causes.mark).max(0) as u64
        } else {
            self.paths[from].round_trip()
        };
        let network = way.min(gap);
        let rest = gap - network;
        let both = self.paths[0].round_trip() + self.paths[1].round_trip();
        if step.lost_before && rest >= both.max(REPEATED_FROM) {
            self.causes.spent[on::NETWORK] += network;
            self.causes.spent[on::RECOVERY] += rest;
            return;
        }
        let in_flight = self.in_flight(segment, step, from, continues);
        if (continues || in_flight) && self.has_more(from, in_flight) {
            self.held_up(segment, gap, from);
        } else if continues {
            self.own_pace(segment, gap, from);
        } else {
            self.causes.spent[on::NETWORK] += network;
            self.charge(from, rest);
        }
    }

    /// Did the sender of `segment` know of anything that was not acknowledged when it sent it?
    ///
    /// An acknowledgement may have passed the point of capture and not reached the sender yet. The time stamp that the
    /// sender echoes tells which was the last to reach it; without time stamps, the round trip must do.
    #[inline]
    fn in_flight(&self, segment: &Segment, step: &Step, from: usize, continues: bool) -> bool {
        if !not_after(step.next, self.sent[1 - from].acked) {
            return true;
        }
        if !continues || self.causes.covered == NO_TIME {
            return false;
        }
        if let (Some(stamp), Some((_, echo))) = (self.causes.covered_stamp, segment.options.stamps)
        {
            return !not_after(stamp, echo);
        }
        let since = segment.ts.saturating_sub(self.causes.covered).max(0) as u64;
        since < self.paths[from].round_trip()
    }

    /// Did `from` have more to send when it sent its last packet?
    #[inline]
    fn has_more(&self, from: usize, in_flight: bool) -> bool {
        let path = &self.paths[from];
        if path.last_len == 0 {
            return false;
        }
        let limit = u32::from(self.limit[from]);
        let full = if limit == 0 {
            path.last_len >= self.sent[from].largest
        } else {
            path.last_len + 40 >= limit
        };
        if !path.pushed {
            return path.pushes || full;
        }
        // It ended a message, but a full packet is rarely the last one, and what is in flight may hold up the next.
        full && in_flight
    }

    /// A sender with more to send waits for the network, unless everything has arrived and was acknowledged long ago.
    #[inline]
    fn held_up(&mut self, segment: &Segment, gap: u64, from: usize) {
        let path = &self.paths[from];
        let usual = path.lately.max(path.round_trip());
        let (covered, mark) = (self.causes.covered, self.causes.mark);
        if covered != NO_TIME && usize::from(self.causes.from) == from && path.lately > 0 {
            let since = segment.ts.saturating_sub(covered).max(0) as u64;
            if since > 3 * usual + 1_000_000 {
                let network = (covered - mark).max(0) as u64 + usual;
                self.causes.spent[on::NETWORK] += network.min(gap);
                self.charge(from, gap - network.min(gap));
                return;
            }
        }
        self.causes.spent[on::NETWORK] += gap;
    }

    /// An end that sends again although it had nothing more to send: released by an acknowledgement, or its own pace.
    fn own_pace(&mut self, segment: &Segment, gap: u64, from: usize) {
        let peer = 1 - from;
        let trip = self.paths[from].round_trip();
        let covered = self.causes.covered;
        if covered != NO_TIME {
            let waited = segment.ts.saturating_sub(covered).max(0) as u64;
            if waited.abs_diff(trip) <= trip / 4 + EXACTLY {
                let before = gap - waited.min(gap);
                let there = self.paths[peer].round_trip().min(before);
                let here = waited.min(gap).min(trip);
                self.causes.spent[on::NETWORK] += there + here;
                self.charge(peer, before - there);
                self.charge(from, gap - before - here);
                return;
            }
        }
        self.charge(from, gap);
    }

    /// An end's own time; but a long silence that no request asked it to break is idleness.
    #[inline]
    fn charge(&mut self, end: usize, nanos: u64) {
        let asked = usize::from(self.causes.from) != end && end != self.client_end();
        let cause = if nanos >= IDLE_FROM && !asked {
            on::IDLE
        } else {
            end
        };
        self.causes.spent[cause] += nanos;
    }

    /// A probe of a window or of whether the other end is there repeats at most the last byte.
    fn is_probe(&self, segment: &Segment) -> bool {
        let peer = usize::from(1 - (segment.from & 1));
        segment.payload <= 1
            && segment.flags & (flag::SYN | flag::FIN) == 0
            && segment.seq == self.sent[peer].acked.wrapping_sub(1)
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

    /// A datagram: whoever sends took its own time, but what is said twice after a while was waited for.
    pub(crate) fn attribute_datagram(&mut self, segment: &Segment) {
        let gap = segment.ts.saturating_sub(self.causes.mark).max(0) as u64;
        let from = usize::from(segment.from & 1);
        let path = &mut self.paths[from];
        let contents = u32::from(segment.checksum) << 16 | segment.payload & 0xffff;
        let before = std::mem::replace(&mut path.window, contents);
        let again = self.causes.from == segment.from && self.sent[from].packets > 1;
        if again && before == contents && segment.checksum != 0 && gap >= SAID_AGAIN_FROM {
            self.causes.spent[on::RECOVERY] += gap;
            self.rare[from].retransmissions += 1;
        } else if self.key.port.contains(&DHCP) {
            // A client that waits for more offers is in the middle of it.
            self.causes.spent[from] += gap;
        } else {
            self.charge(from, gap);
        }
        self.moved(from, segment.ts);
    }
}
