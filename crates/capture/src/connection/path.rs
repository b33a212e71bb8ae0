//! Track one end and its side of the path: round trips, window and data in flight.

use crate::connection::numbers::Numbers;
use crate::connection::seqspace::not_after;
use crate::connection::view::View;
use crate::wire::message::MessageState;
use crate::wire::packet::{Segment, NO_TIME};
use std::collections::VecDeque;

/// Segments kept without a heap allocation: more than most connections ever have unacknowledged.
const FEW: usize = 3;
/// Maximum number of segments, the same as Wireshark's: if acknowledgements are not captured, more are of no use.
const MOST: usize = 10_000;
/// Marks an unknown window scale: the handshake was not captured.
pub const NO_SCALE: u8 = u8::MAX;

/// Send times of segments that are not acknowledged yet.
#[derive(Debug, Default)]
pub struct Unacked {
    ends: [u32; FEW],
    count: u8,
    /// Whether a segment ends before the end of an earlier one.
    tangled: bool,
    times: [i64; FEW],
    #[allow(
        clippy::box_collection,
        reason = "a word instead of four in every connection"
    )]
    more: Option<Box<VecDeque<(u32, i64)>>>,
}

impl Unacked {
    /// Add a segment that ends before sequence number `end`; return by how many bytes the heap has grown.
    #[inline]
    pub fn push(&mut self, end: u32, ts: i64) -> usize {
        let count = usize::from(self.count);
        if self.more.is_none() && count < FEW {
            self.tangled |= count > 0 && !not_after(self.ends[count - 1], end);
            (self.ends[count], self.times[count]) = (end, ts);
            self.count += 1;
            return 0;
        }
        self.push_more(end, ts)
    }

    fn push_more(&mut self, end: u32, ts: i64) -> usize {
        let room = self.heap();
        let more = self.more.get_or_insert_with(Box::default);
        for at in 0..usize::from(self.count) {
            more.push_back((self.ends[at], self.times[at]));
        }
        self.count = 0;
        self.tangled |= more.back().is_some_and(|&(last, _)| !not_after(last, end));
        if more.len() < MOST {
            more.push_back((end, ts));
        }
        self.heap() - room
    }

    /// Remove all segments before `ack`, which have arrived; return when the segment that ends exactly there was first
    /// sent.
    #[inline]
    pub fn acknowledge(&mut self, ack: u32) -> Option<i64> {
        let Some(more) = &mut self.more else {
            let (mut sent, mut kept) = (None, 0);
            for at in 0..usize::from(self.count) {
                let (end, ts) = (self.ends[at], self.times[at]);
                if not_after(end, ack) {
                    sent = sent.or((end == ack).then_some(ts));
                } else {
                    (self.ends[kept], self.times[kept]) = (end, ts);
                    kept += 1;
                }
            }
            self.count = kept as u8;
            self.tangled &= kept > 0;
            return sent;
        };
        let mut sent = None;
        if self.tangled {
            more.retain(|&(end, ts)| {
                sent = sent.or((end == ack).then_some(ts));
                !not_after(end, ack)
            });
            self.tangled = !more.is_empty();
            return sent;
        }
        while let Some(&(end, ts)) = more.front() {
            if !not_after(end, ack) {
                break;
            }
            sent = sent.or((end == ack).then_some(ts));
            more.pop_front();
        }
        sent
    }

    /// Read the word that an update uses first, so that the processor fetches its line early.
    #[inline]
    pub(crate) fn touch_lines(&self) -> u64 {
        u64::from(self.count) ^ self.times[FEW - 1] as u64
    }

    fn heap(&self) -> usize {
        self.more.as_ref().map_or(0, |more| {
            size_of::<VecDeque<(u32, i64)>>() + more.capacity() * size_of::<(u32, i64)>()
        })
    }
}

/// What one end's packets show about it and its side of the path.
#[derive(Debug)]
pub struct Path {
    /// Shortest time from the point of capture to this end and back, in nanoseconds; `u64::MAX` if unknown.
    pub nearest: u64,
    /// The shortest such times of this round and of the one before, in units of 1,024 ns; they include time in queues.
    lately: [u32; 2],
    /// The usual such time, in the same unit.
    usual: u32,
    /// When it sent the time stamp whose echo is expected; [`NO_TIME`] if none is.
    stamp_at: i64,
    stamp: u32,
    /// The last time stamp it sent.
    last_stamp: u32,
    /// Announced window, scaled.
    pub window: u32,
    /// Largest window.
    pub window_max: u32,
    /// Smallest window.
    pub window_min: u32,
    /// Maximum number of bytes it had in flight.
    pub in_flight: u32,
    /// Where its current message ends, or what the message says about that.
    pub due: u32,
    /// Payload of its last packet that had any.
    pub last_len: u32,
    /// Sequence number of its first packet.
    pub first_seq: u32,
    /// Number of resets it sent.
    pub resets: u16,
    /// How its packets are numbered.
    pub numbers: Numbers,
    /// Its window scale.
    pub scale: u8,
    /// Whether it had nothing more to send after its last data.
    pub pushed: bool,
    /// Payload of the largest packet after which it had more to send.
    pub full: u32,
    /// When the round began, in units of 2^20 ns.
    round: u32,
    /// How its current message continues.
    pub debt: MessageState,
    /// Whether it has sent small segments one after the other, without waiting for acknowledgements.
    pub nodelay: bool,
    /// By how much its round trips are usually longer than the shortest, in units of 2^16 ns.
    spread: u16,
    /// What it knew when it last sent; absent until it has sent two packets in a row.
    pub view: Option<Box<View>>,
    /// Its segments that the other end has not acknowledged.
    pub unacked: Unacked,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            nearest: u64::MAX,
            lately: [u32::MAX; 2],
            usual: 0,
            stamp_at: NO_TIME,
            stamp: 0,
            last_stamp: 0,
            window: 0,
            window_max: 0,
            window_min: u32::MAX,
            in_flight: 0,
            due: 0,
            last_len: 0,
            first_seq: 0,
            resets: 0,
            numbers: Numbers::default(),
            scale: NO_SCALE,
            pushed: true,
            full: 0,
            round: 0,
            debt: MessageState::Unknown,
            nodelay: false,
            spread: 0,
            view: None,
            unacked: Unacked::default(),
        }
    }
}

impl Path {
    /// Return the shortest round trip, 0 if it is unknown.
    #[inline]
    #[must_use]
    pub fn round_trip(&self) -> u64 {
        if self.nearest == u64::MAX {
            0
        } else {
            self.nearest
        }
    }

    /// Record a round trip from the point of capture, on a path whose whole round trip takes `whole`.
    #[inline]
    pub fn note_round_trip(&mut self, nanos: u64, ts: i64, whole: u64) {
        self.nearest = self.nearest.min(nanos);
        // Approach it in small steps: a few trips are an exception, many are not.
        let longer = u16::try_from((nanos - self.nearest) >> 16).unwrap_or(u16::MAX);
        let step = if self.spread == 0 {
            longer
        } else {
            (longer.abs_diff(self.spread) / 4).min(self.spread / 2 + 64)
        };
        self.spread = if longer > self.spread {
            self.spread.saturating_add(step)
        } else {
            self.spread - step
        };
        let coarse = u32::try_from(nanos >> 10).unwrap_or(u32::MAX);
        self.lately[0] = self.lately[0].min(coarse);
        let now = (ts >> 20) as u32;
        let round = ((whole >> 19) as u32).max(8);
        if now.wrapping_sub(self.round) >= round {
            self.round = now;
            self.lately = [u32::MAX, self.lately[0]];
        }
    }

    /// Record an acknowledgement without data that came after this time. No program's time is part of it, but
    /// perhaps the delay of an acknowledgement, 40 ms to half a second.
    #[inline]
    pub fn note_acknowledged(&mut self, nanos: u64) {
        if nanos <= self.longest_undelayed() {
            let coarse = (nanos >> 10) as u32;
            self.usual = if self.usual == 0 {
                coarse
            } else {
                self.usual - self.usual / 8 + coarse / 8
            };
        }
    }

    /// Return the longest round trip that does not count as a delayed acknowledgement.
    #[inline]
    #[must_use]
    pub fn longest_undelayed(&self) -> u64 {
        let least = self.round_trip();
        least + (least / 2).min(20_000_000) + 2_000_000
    }

    /// Return by how much its round trips are usually longer than the shortest: the path's variation, and its program's
    /// time.
    #[inline]
    #[must_use]
    pub fn spread(&self) -> u64 {
        u64::from(self.spread) << 16
    }

    /// Return the usual round trip, including queues that vary.
    #[inline]
    #[must_use]
    pub fn usual_round_trip(&self) -> u64 {
        (u64::from(self.usual) << 10)
            .min(self.longest_undelayed())
            .max(self.round_trip())
    }

    /// Return the shortest of the last round trips, which includes the present queues; never less than the shortest of
    /// all.
    #[inline]
    #[must_use]
    pub fn recent_round_trip(&self) -> u64 {
        let least = self.lately[0].min(self.lately[1]);
        let known = if least == u32::MAX {
            0
        } else {
            u64::from(least) << 10
        };
        known.max(self.round_trip())
    }

    /// Record its time stamp, which the other end will echo. Only the first packet with a new time stamp is used for a
    /// measurement.
    #[inline]
    pub fn note_stamp(&mut self, value: u32, ts: i64) {
        let new = value != self.last_stamp;
        self.last_stamp = value;
        if self.stamp_at == NO_TIME && new {
            (self.stamp, self.stamp_at) = (value, ts);
        }
    }

    /// Whether this repeated packet was sent before the last packet of its end, according to its time stamp or its
    /// number. A retransmission has a new stamp and number.
    #[must_use]
    pub fn is_stale(&self, segment: &Segment) -> bool {
        let stamps = segment.options.stamps;
        if stamps.is_some_and(|(own, _)| own != self.last_stamp && not_after(own, self.last_stamp))
        {
            return true;
        }
        self.numbers.is_before(segment.id)
    }

    /// Handle the other end's echo of `value`; return how long it took.
    #[inline]
    pub fn take_echo(&mut self, value: u32, ts: i64) -> Option<u64> {
        if self.stamp_at == NO_TIME || !not_after(self.stamp, value) {
            return None;
        }
        let sent = std::mem::replace(&mut self.stamp_at, NO_TIME);
        u64::try_from(ts.saturating_sub(sent)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a plain list that is searched from its beginning, as in Wireshark.
        #[test]
        fn times_are_those_of_a_plain_list(steps in prop::collection::vec((any::<bool>(), 0_u32..40), 1..200), start: u32) {
            let mut unacked = Unacked::default();
            let mut list: Vec<(u32, i64)> = Vec::new();
            for (ts, (is_ack, at)) in (0_i64..).zip(steps) {
                let number = start.wrapping_add(at);
                if is_ack {
                    let first = list.iter().find(|(end, _)| *end == number).map(|&(_, ts)| ts);
                    list.retain(|&(end, _)| !not_after(end, number));
                    prop_assert_eq!(unacked.acknowledge(number), first);
                } else {
                    unacked.push(number, ts);
                    list.push((number, ts));
                }
            }
        }
    }
}
