//! Why something moved on just now and not before: the network, or an end's own time.

use crate::cause::{on, Step, IDLE_FROM};
use crate::conn::Conn;
use crate::packet::{flag, Segment, NO_TIME};
use crate::path::not_after;

/// A jump of packet numbers explains a silence from this length on: no timer that repeats a packet is faster.
const REPEATED_FROM: u64 = 20_000_000;
/// How exactly a packet must follow an acknowledgement to be released by it, besides a quarter of the round trip.
const EXACTLY: u64 = 200_000;
/// The same datagram again after this time was waited for in vain.
const SAID_AGAIN_FROM: u64 = 50_000_000;
const DHCP: u16 = 67;

impl Conn {
    /// Explain the time until `segment`, which moves on.
    #[inline]
    pub(crate) fn settle(&mut self, segment: &Segment, step: &Step) {
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
            self.rare_mut(from).retransmissions += 1;
        } else if self.key.port.contains(&DHCP) {
            // A client that waits for more offers is in the middle of it.
            self.causes.spent[from] += gap;
        } else {
            self.charge(from, gap);
        }
        self.moved(from, segment.ts);
    }
}
