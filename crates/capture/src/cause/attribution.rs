//! Attribute a connection's time to causes: what would have had to be faster to make it shorter.
//!
//! Time is divided where something *moves on*, that is, at new data and at retransmissions. Each part is explained by
//! the packet that ended it (see [`crate::cause::explanation`]), as its sender saw the connection at that moment
//! ([`crate::connection::view`]): which acknowledgements had reached it, and whether the window, the path or its own
//! program delayed it. The sender's view is the same wherever the capture was taken, so captures at both ends yield the
//! same causes.
//!
//! The classes are those of T-RAT (Zhang, Breslau, Paxson, Shenker: On the Characteristics and Origins of Internet Flow
//! Rates, SIGCOMM 2002) and of Dapper (Ghasemi, Benson, Rexford, SOSR 2017).

use crate::connection::conn::Conn;
use crate::connection::losses::Losses;
use crate::connection::numbers::Order;
use crate::connection::spent::{on, Spent, IDLE_FROM};
use crate::evidence::step::Step;
use crate::wire::packet::{flag, Segment, NO_TIME};

impl Conn {
    /// Attribute the time up to `segment`, and note what it shows about the time that follows. Return the growth of the
    /// heap.
    #[inline]
    pub(crate) fn attribute(&mut self, segment: &Segment, step: &Step) -> usize {
        let from = usize::from(segment.from & 1);
        let peer = 1 - from;
        // A copy that the path has made is not an action of either end.
        let acts = step.fresh || step.repeats && step.order != Order::Earlier;
        let moves = (acts || segment.flags & flag::RST != 0) && !self.is_probe(segment);
        let mut grown = 0;
        let waited = segment.ts.saturating_sub(self.account.mark).max(0) as u64 + self.account.held;
        let programs = [self.account.spent[0], self.account.spent[1]];
        let earlier =
            (moves && waited > self.account.longest.nanos()).then_some(self.account.spent);
        let before = self.opens_hole(segment, step).then_some(self.account.spent);
        if moves && step.late && !step.repeats {
            // It was overtaken in flight, so only the other end may have waited for it.
            if let Some(losses) = &mut self.account.losses {
                losses.late = (segment.ts, segment.from & 1);
            }
            grown += self.stamp_queue(segment, from);
        } else if moves {
            grown += self.explain_time_before(segment, step);
            let whole = self.both_trips();
            if let Some(queues) = &mut self.queues {
                queues[from].note_sent(segment.ts, whole);
            }
            self.move_on(from, segment.ts);
        }
        grown += self.measure_packet(segment, from);
        grown += self.notice_losses(segment, step, moves, before);
        if let Some(earlier) = earlier {
            let spent = self.account.spent;
            self.account
                .longest
                .update(&earlier, &spent, on::is_waited_for);
        }
        // Note the longest time of each end's program even if another cause took longer: the endpoint rows show it.
        for (end, before) in programs.into_iter().enumerate() {
            let now = self.account.spent[on::APPLICATION + end];
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
            self.account.streaming = self.flags[peer] & flag::ACK != 0 && flight > two;
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
        } else if self.account.from != segment.from
            && self.account.covered == NO_TIME
            && segment.ack == self.sent[peer].space.next()
        {
            self.account.covered = segment.ts;
        }
        grown
    }

    /// Whether this is a window or keep-alive probe: it has at most one byte, which was acknowledged already.
    pub(crate) fn is_probe(&self, segment: &Segment) -> bool {
        let peer = usize::from(1 - (segment.from & 1));
        segment.payload <= 1
            && segment.flags & (flag::SYN | flag::FIN | flag::RST) == 0
            && segment.seq == self.sent[peer].acked.wrapping_sub(1)
            && self.flags[peer] & flag::ACK != 0
    }

    /// Return the nanoseconds by cause, which add up to the duration; `None` without both directions.
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
        let mut spent = self.account.spent;
        spent[on::APPLICATION + usize::from(self.account.from & 1)] += self.account.held;
        let left = self.duration().saturating_sub(spent.iter().sum());
        let end = usize::from(self.last_from & 1);
        let other = usize::from(self.account.from) != end;
        if self.account.unseen {
            spent[on::UNKNOWN] += left;
        } else if self.losses().is_some_and(Losses::repairing) {
            spent[on::RECOVERY] += left;
        } else if self.is_shut(0) || self.is_shut(1) {
            // The end that does not read its data is the cause.
            spent[on::APPLICATION + usize::from(!self.is_shut(0))] += left;
        } else {
            let trip = self.paths[end].round_trip().min(left);
            let network = match other {
                // The last acknowledgements of a stream arrive as soon as its data have left the queues.
                true if self.account.streaming => left,
                true => trip,
                false => 0,
            };
            let latency = network.min(trip);
            spent[on::LATENCY] += latency;
            spent[on::BANDWIDTH] += network - latency;
            let cause = if left - network >= IDLE_FROM {
                self.explain_last_silence()
            } else {
                on::APPLICATION + end
            };
            spent[cause] += left - network;
        }
        self.correct_inferences(&mut spent);
        if spent[on::RECOVERY] > 0 && self.has_only_copies() {
            spent[on::UNKNOWN] += std::mem::take(&mut spent[on::RECOVERY]);
        }
        // If the clock stepped backwards, some time may have been counted twice.
        let mut over = spent.iter().sum::<u64>().saturating_sub(self.duration());
        for part in &mut spent {
            let less = over.min(*part);
            *part -= less;
            over -= less;
        }
        Some(spent)
    }
}
