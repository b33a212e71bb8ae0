//! Explain why an end continued at this moment and not earlier: because of the path, a window, a rule of TCP, or its
//! own program.

use crate::connection::conn::Conn;
use crate::connection::losses::Silence;
use crate::connection::numbers::Order;
use crate::connection::path::NO_SCALE;
use crate::connection::spent::{on, Spent};
use crate::connection::view::EXACTLY;
use crate::connection::view::{Arrived, View};
use crate::evidence::step::Step;
use crate::wire::packet::{flag, Segment, NO_TIME};

/// A jump in packet numbers explains a silence of at least this length: no timer repeats a packet sooner.
const REPEATED_FROM: u64 = 20_000_000;
/// Minimum time after which unacknowledged data is sent again (RFC 6298, as Linux implements it).
const AGAIN_FROM: u64 = 200_000_000;
/// More repeats in a row than this are not lost by chance, and nobody waits for them.
const FEW_REPEATS: u16 = 3;
/// An acknowledgement this late is a delayed one: the delay is at least 40 ms, less the inaccuracy of timers.
const DELAYED_FROM: u64 = 30_000_000;
/// Larger variations of a path cannot be distinguished from pauses of a program.
const MOST_VARIED: u64 = 60_000_000;
/// How much earlier than usual an end may answer, in addition to a sixteenth of the round trip.
const SOONER: i64 = 100_000;
/// If a datagram is repeated after this time, the sender waited in vain for an answer.
const SAID_AGAIN_FROM: u64 = 50_000_000;
const DHCP: u16 = 67;

impl Conn {
    /// Attribute the time before `segment`, at which something moves on. Return the growth of the heap.
    #[inline]
    pub(crate) fn explain_time_before(&mut self, segment: &Segment, step: &Step) -> usize {
        let gap = segment.ts.saturating_sub(self.account.mark).max(0) as u64;
        let from = usize::from(segment.from & 1);
        let continues = usize::from(self.account.from) == from;
        if self.account.held > 0 && !continues {
            self.account.release_held(segment.payload > 0);
        }
        let mut grown = 0;
        if continues && segment.payload > 0 && self.paths[from].view.is_none() {
            grown = self.begin_view(from, step.next, segment.ts);
        }
        let arrived = self.deliver_acknowledgements(segment, from);
        grown += self.stamp_queue(segment, from);
        if self.account.unseen {
            self.account.unseen = false;
            self.account.spent[on::UNKNOWN] += gap;
            self.account.release_held(false);
            return grown;
        }
        if segment.flags & (flag::SYN | flag::RST) == flag::SYN && !step.repeats {
            self.account.spent[on::LATENCY] += gap;
            return grown;
        }
        if self.probes_window(segment) {
            self.account.release_held(false);
            self.account.spent[on::APPLICATION + (1 - from)] += gap;
            return grown;
        }
        if step.repeats && !step.fresh {
            self.account.release_held(false);
            // A repeat into a closed window probes whether it has opened; otherwise the round trip of the repair
            // follows.
            if self.is_shut(1 - from) && arrived.is_none_or(|known| !known.has_room(segment.seq, 1))
            {
                self.account.spent[on::APPLICATION + (1 - from)] += gap;
            } else if self.is_ignored(segment, from) {
                self.rare_mut(from).ignored += 1;
                self.account.spent[on::APPLICATION + (1 - from)] += gap;
            } else {
                self.attribute_repeat(segment, gap);
            }
            return grown;
        }
        if step.late {
            // It was in flight, whatever delayed it there.
            self.account.release_held(false);
            self.account.spent[on::LATENCY] += gap;
            return grown;
        }
        let mut flying = !self.all_acknowledged(from, step.next);
        let mut still = flying;
        if let Some(arrived) = arrived {
            if self.explain_window_wait(segment, gap, from, &arrived) {
                return grown;
            }
            flying = arrived.ack_before != step.next;
            still = self.paths[from]
                .view
                .as_ref()
                .is_some_and(|view| view.ack != step.next);
        }
        let before = (gap >= AGAIN_FROM).then_some(self.account.spent);
        if continues || still && self.had_more(from) {
            self.explain_continuation(segment, step, gap, from, flying, arrived);
        } else {
            let gap = gap - self.wait_for_overtaken(gap);
            let gap = gap - self.wait_for_reader(gap, from);
            self.explain_answer(segment, step, gap, from);
        }
        if let Some(before) = before.filter(|_| segment.payload > 0) {
            self.note_silence(segment, from, &before);
        }
        let (whole, largest) = (self.both_trips(), self.largest_segment(from));
        if let Some(view) = &mut self.paths[from].view {
            if !continues && !still {
                view.forget_flight(segment.ts);
                view.begin_message(segment.ts, whole);
                view.limit = on::LATENCY as u8;
            }
            let end = segment.seq.wrapping_add(segment.payload);
            view.note_flight(end, largest, segment.ts);
        }
        grown
    }

    /// Remember the cause of a long silence, in case later packets show that it was a loss.
    #[cold]
    fn note_silence(&mut self, segment: &Segment, from: usize, before: &Spent) {
        let own = [on::APPLICATION + from, on::IDLE, on::UNKNOWN];
        let took = |&cause: &usize| self.account.spent[cause].saturating_sub(before[cause]);
        let Some(cause) = own.into_iter().max_by_key(took) else {
            return;
        };
        let nanos = took(&cause);
        self.losses_mut().silence = Some(Silence {
            end: from as u8,
            at: segment.ts,
            next: segment.seq.wrapping_add(segment.payload),
            cause: cause as u8,
            nanos,
        });
    }

    /// Attribute the time in which the other end had to wait for an overtaken packet of the end that moved on last;
    /// return that time.
    #[inline]
    fn wait_for_overtaken(&mut self, gap: u64) -> u64 {
        let mark = self.account.mark;
        let late = self.losses().map_or((0, 0), |losses| losses.late);
        if late.0 <= mark || late.1 != self.account.from {
            return 0;
        }
        // The clock may step backwards.
        let waited = late.0.abs_diff(mark).min(gap);
        self.account.spent[on::LATENCY] += waited;
        self.account.mark += waited as i64;
        waited
    }

    /// Attribute the time in which the other end had no room for data, until it opened its window; return that time, as
    /// far as it is after something last moved on. If the sender's view is followed, the room is known.
    #[inline]
    fn wait_for_reader(&mut self, gap: u64, from: usize) -> u64 {
        let (shut, opened) = self.rare(1 - from).shut;
        if shut == 0 || opened < shut || opened <= self.account.mark {
            return 0;
        }
        // The window had been closed before the first captured packet.
        let began = if self.paths[from].last_len == 0 {
            self.account.mark
        } else {
            shut.max(self.account.mark)
        };
        let waited = opened.abs_diff(began).min(gap);
        self.account.spent[on::APPLICATION + (1 - from)] += waited;
        self.account.mark += waited as i64;
        waited
    }

    /// Explain an answer of `from` to the other end: the round trip is the path's time, and the rest its own.
    #[inline]
    fn explain_answer(&mut self, segment: &Segment, step: &Step, gap: u64, from: usize) {
        if self.paths[from].nearest == u64::MAX && self.account.covered == NO_TIME {
            // The first acknowledgement was lost or overtaken, so the round trip is unknown.
            let cause = if gap < AGAIN_FROM {
                on::LATENCY
            } else {
                on::UNKNOWN
            };
            self.account.spent[cause] += gap;
            return;
        }
        let covered = (self.account.covered != NO_TIME)
            .then(|| (self.account.covered - self.account.mark).max(0) as u64);
        let way = match covered {
            // The acknowledgement of the last of many segments is not delayed, and also shows the length of the queues.
            Some(covered) if self.account.streaming => covered,
            // Any other acknowledgement may be a delayed one, but then it is later than a path's variation.
            Some(covered) if covered <= self.paths[from].longest_undelayed() => covered,
            _ => self.paths[from].usual_round_trip(),
        };
        let late = self
            .queues
            .as_ref()
            .map_or(0, |queues| queues[from].recent_variation().0);
        let way = way.max(self.paths[from].round_trip() + late);
        let network = way.min(gap);
        let rest = gap - network;
        let latency = network.min(self.paths[from].longest_undelayed());
        self.account.spent[on::LATENCY] += latency;
        self.account.spent[on::BANDWIDTH] += network - latency;
        if let Some(lost) = self.count_lost(segment, step, rest) {
            let own = self.infer_loss(segment, lost, rest);
            self.charge_own_time(from, own, segment);
        } else if rest >= AGAIN_FROM
            && (step.order == Order::Perhaps || step.order == Order::Skipped && covered.is_none())
        {
            // A first packet that was lost before the point of capture and sent again looks like this; and an end that
            // acknowledges nothing for so long may have done so in a packet that was lost.
            self.account.spent[on::UNKNOWN] += rest;
        } else if rest <= self.find_tolerated_variation(from) {
            // Packets overtake each other by as much, so either the path or the end may have caused this time.
            self.account.spent[on::UNKNOWN] += rest;
        } else {
            let next = matches!(step.order, Order::Next | Order::Earlier);
            if rest >= AGAIN_FROM && !next {
                // An end that takes this long to answer sends an acknowledgement first.
                self.note_doubt(
                    from,
                    rest,
                    covered.is_none() || step.order != Order::Unknown,
                );
            }
            self.charge_own_time(from, rest, segment);
        }
    }

    /// Explain why `from` sends again, or continues with data in flight.
    #[inline]
    fn explain_continuation(
        &mut self,
        segment: &Segment,
        step: &Step,
        gap: u64,
        from: usize,
        flying: bool,
        arrived: Option<Arrived>,
    ) {
        let path = &self.paths[from];
        let trip = path.round_trip();
        let slack = self.both_trips() / 16 + EXACTLY;
        let since = arrived
            .and_then(|arrived| arrived.at)
            .map(|at| segment.ts.saturating_sub(at).max(0) as u64);
        let paused = self.has_paused(segment, from);
        let within = |most: u64| !paused && since.is_some_and(|since| since <= most);
        let released = within(trip + slack);
        let whole = self.last_packet_was_full_size(from);
        let flies_on = path
            .view
            .as_ref()
            .map_or(flying, |view| view.ack != step.next);
        if let Some(lost) = self.count_lost(segment, step, gap).filter(|_| !released) {
            self.account.release_held(false);
            let own = self.infer_loss(segment, lost, gap);
            self.charge_own_time(from, own, segment);
            return;
        }
        let blind = self.paths[1 - from].scale == NO_SCALE;
        if flying && path.nearest == u64::MAX || blind && self.was_small(1 - from, arrived) {
            // Nothing shows whether it waited for an acknowledgement or for room. But a zero window is zero at any
            // scale.
            let shut = blind && arrived.is_some_and(|arrived| arrived.window_low == 0);
            let cause = if shut {
                on::APPLICATION + 1 - from
            } else {
                on::UNKNOWN
            };
            self.account.release_held(false);
            self.set_limit(from, cause, gap);
            return;
        }
        // Of a window with an unknown scale, only the unscaled value is certain.
        let least = segment.payload.min(self.largest_segment(from));
        let unproven = blind && !arrived.is_some_and(|known| known.has_room(segment.seq, least));
        let answered = within(path.longest_undelayed().max(trip + slack))
            || self.is_held(from, arrived, since);
        if flying && !flies_on && answered && !whole && path.pushed && !unproven {
            // Nagle's algorithm: a small segment waited until the previous one was acknowledged, over a path that
            // varies.
            self.account.release_held(false);
            self.account.held = gap;
            return;
        }
        // No acknowledgement has passed the point of capture, let alone reached the sender.
        let unacked = !self.all_acknowledged(from, step.next);
        if unacked && !whole && path.pushed && segment.payload <= path.last_len {
            self.paths[from].nodelay = true;
        }
        let path = &self.paths[from];
        self.account.release_held(false);
        let usual = path.view.as_ref().map_or(0, |view| view.usual);
        let near = self.both_trips() / 2;
        let short = gap <= near.max(usual.saturating_mul(2).saturating_add(100_000))
            && !arrived.is_some_and(|arrived| self.left_room(segment, from, &arrived));
        let more = whole || !path.pushed;
        if flying && more && (released || short || flies_on && !path.pushed) {
            // Within a burst that the sender's system or the path spreads out, the previous limit still holds.
            let limit = self.paths[from]
                .view
                .as_ref()
                .map_or(on::LATENCY, |view| view.limit.into());
            let own = matches!(limit, on::LATENCY | on::BANDWIDTH)
                || limit == on::SEND_BUFFER + from
                || limit == on::APPLICATION + from && !paused;
            if released || own || !short {
                let cause = self.explain_path_limit(segment, gap, from);
                let told = !blind
                    || self.is_growing(segment, from)
                    || self.has_standing_queue(segment, from);
                self.set_limit(from, if told { cause } else { on::UNKNOWN }, gap);
            } else {
                self.account.spent[limit] += gap;
            }
            let joined = segment.payload > self.largest_segment(from);
            if let Some(view) = &mut self.paths[from].view {
                if joined || gap <= view.usual / 4 {
                    view.tight_at = segment.ts;
                }
                view.usual = view.usual.saturating_mul(7).saturating_add(gap) / 8;
            }
        } else {
            // Whatever the sender did meanwhile, the queue kept the path's bottleneck busy.
            let queue = if flying {
                self.find_emptying_time(from, segment.ts).min(gap)
            } else {
                0
            };
            self.account.spent[on::BANDWIDTH] += queue;
            if unproven {
                self.account.spent[on::UNKNOWN] += gap - queue;
            } else {
                let skipped = matches!(step.order, Order::Skipped | Order::Jumped(_));
                if gap >= AGAIN_FROM && skipped {
                    self.note_doubt(from, gap - queue, true);
                }
                self.charge_own_time(from, gap - queue, segment);
            }
            let whole_trip = self.both_trips();
            if let Some(view) = &mut self.paths[from].view {
                view.limit = (on::APPLICATION + from) as u8;
                let long = (gap - queue).saturating_mul(2) >= whole_trip;
                view.resumed = long.then_some((segment.seq, segment.ts));
            }
        }
    }

    /// Whether Nagle's algorithm held back what `from` sends until a delayed acknowledgement of the other end, on a
    /// path that varies more than it seemed. Acknowledgements are delayed by at least 40 ms, to which the path adds its
    /// usual time.
    #[inline]
    fn is_held(&self, from: usize, arrived: Option<Arrived>, since: Option<u64>) -> bool {
        let (Some(since), Some(at)) = (since, arrived.and_then(|arrived| arrived.at)) else {
            return false;
        };
        let path = &self.paths[from];
        let delayed = at.saturating_sub(self.account.mark).max(0) as u64;
        let least = self.paths[1 - from].round_trip() + DELAYED_FROM;
        let most = path.round_trip() + path.spread().saturating_mul(2).min(MOST_VARIED) + EXACTLY;
        !path.nodelay && delayed >= least && since <= most
    }

    /// Return how many packets were lost before `segment`, which follows a silence of `gap`. Nobody waited for a packet
    /// without data, or for one long after the last request.
    #[inline]
    fn count_lost(&self, segment: &Segment, step: &Step, gap: u64) -> Option<u16> {
        let Order::Jumped(lost) = step.order else {
            return None;
        };
        let awaited = lost <= FEW_REPEATS || self.is_asked(usize::from(segment.from & 1));
        let long = gap >= self.both_trips().max(REPEATED_FROM);
        (segment.payload > 0 && long && awaited).then_some(lost)
    }

    /// Return which acknowledgements have reached the sender of `segment`, if its view is followed.
    #[inline]
    fn deliver_acknowledgements(&mut self, segment: &Segment, from: usize) -> Option<Arrived> {
        let least = segment.payload.min(self.largest_segment(from));
        let path = &mut self.paths[from];
        let trip = path.round_trip() as i64;
        let view = path.view.as_mut()?;
        let need = segment.seq.wrapping_add(least);
        // Allow for a little less, because ends do not always take equally long.
        let until = segment
            .ts
            .saturating_sub((trip - trip / 16 - SOONER).max(0));
        Some(view.deliver_until(until, need))
    }

    /// Begin to follow the view of `from`, which has sent up to `next`.
    fn begin_view(&mut self, from: usize, next: u32, ts: i64) -> usize {
        let peer = 1 - from;
        let acked = if self.flags[peer] & flag::ACK == 0 {
            self.paths[from].first_seq
        } else {
            self.sent[peer].acked
        };
        let window = self.paths[peer].window;
        let covered = self.account.covered;
        let mut view = if covered == NO_TIME || usize::from(self.account.from) != from {
            View::new(acked, acked.wrapping_add(window))
        } else {
            // The last acknowledgement may still be in flight.
            let before = next.wrapping_sub(self.paths[from].last_len);
            let mut view = View::new(before, before.wrapping_add(window));
            view.note_acknowledgement(covered, acked, window, u64::MAX, false);
            view
        };
        view.limit = on::LATENCY as u8;
        (view.grown_at, view.silent_at, view.sent_after_silence) = (ts, ts, ts);
        view.tight_at = ts;
        self.paths[from].view = Some(Box::new(view));
        size_of::<View>()
    }

    /// Attribute the time before a datagram to its sender, or to recovery if it repeats an earlier one: as its protocol
    /// shows, or by being equal to the previous one after a while.
    pub(crate) fn attribute_datagram(&mut self, segment: &Segment) {
        let gap = segment.ts.saturating_sub(self.account.mark).max(0) as u64;
        let from = usize::from(segment.from & 1);
        let earlier = (gap > self.account.longest.nanos()).then_some(self.account.spent);
        let path = &mut self.paths[from];
        let contents = segment.seq;
        let before = std::mem::replace(&mut path.window, contents);
        let again = self.account.from == segment.from && self.sent[from].packets > 1;
        let is_equal = again && before == contents && contents != 0 && gap >= SAID_AGAIN_FROM;
        if segment.said_again || is_equal {
            self.account.spent[on::RECOVERY] += gap;
            self.rare_mut(from).retransmissions += 1;
        } else if self.key.port.contains(&DHCP) {
            // A client that waits for more offers is still in its exchange.
            self.account.spent[on::APPLICATION + from] += gap;
        } else {
            self.charge_own_time(from, gap, segment);
        }
        if let Some(earlier) = earlier {
            let spent = self.account.spent;
            self.account
                .longest
                .update(&earlier, &spent, on::is_waited_for);
        }
        self.move_on(from, segment.ts);
    }
}
