//! Distinguish losses in the network from packets that were only reordered, and from packets that the capture lost.
//!
//! A hole that the receiver reports (RFC 2018, RFC 6675) begins an episode. The episode ends when everything is
//! acknowledged that had arrived beyond the hole. Its time is loss recovery if something was retransmitted in the
//! meantime; otherwise packets were reordered, and the time is explained as usual. A block below the highest
//! acknowledgement is irrelevant: it reports a duplicate (RFC 2883), or its packet was itself overtaken.
//!
//! If the receiver acknowledges data that the capture lacks, the capture lost it: the cause of the time around it is
//! unknown.

use crate::connection::conn::Conn;
use crate::connection::losses::{Hole, Losses, Retransmission};
use crate::connection::numbers::Order;
use crate::connection::seqspace::not_after;
use crate::connection::spent::{on, Spent};
use crate::evidence::step::Step;
use crate::wire::packet::{flag, Segment, NO_TIME};

/// Maximum number of holes of one connection whose repair is awaited.
const MOST_HOLES: usize = 64;

/// A repeat after this time is not a tail loss probe but follows a timeout (RFC 6298, as Linux implements it).
const TIMEOUT: u64 = 200_000_000;

/// Every network has to carry packets of this size, even a path that drops larger ones.
const SHORT: u32 = 536;

impl Conn {
    /// Note what one packet shows about losses. Return the growth of the heap.
    ///
    /// If `segment` opens a hole, `before` is the time by cause before it.
    pub(crate) fn notice_losses(
        &mut self,
        segment: &Segment,
        step: &Step,
        moves: bool,
        before: Option<Spent>,
    ) -> usize {
        let had = self.account.losses.is_some();
        let from = usize::from(segment.from & 1);
        if had && step.late {
            self.note_overtaken(from, segment.ts);
        }
        if let Some(before) = before {
            self.begin_hole(segment, step, before);
        }
        if had || segment.options.sacked.is_some() || !(self.selective[0] && self.selective[1]) {
            self.follow_episode(segment, step, moves);
        }
        if segment.flags & flag::ACK != 0 && segment.flags & flag::RST == 0 && segment.seq_known {
            let data = &self.sent[1 - from].space;
            let known = data.started() && self.sent[1 - from].packets > 0;
            let step_over = 1; // an acknowledged SYN or FIN that was not captured is not data
            let advances = step
                .acked
                .is_none_or(|acked| !not_after(segment.ack, acked));
            if known && advances && !not_after(segment.ack, data.next().wrapping_add(step_over)) {
                self.account.unseen = true;
            }
            if had {
                self.acknowledge_holes(segment.ack, 1 - from);
            }
        }
        if !had && self.account.losses.is_some() {
            size_of::<Losses>()
        } else {
            0
        }
    }

    /// Whether bytes are missing before `segment`.
    #[inline]
    pub(crate) fn opens_hole(&self, segment: &Segment, step: &Step) -> bool {
        segment.payload > 0
            && segment.seq != step.next
            && step.fresh
            && segment.seq_known
            && segment.flags & (flag::SYN | flag::RST) == 0
            && !not_after(segment.seq, step.next)
            && self.sent[usize::from(segment.from & 1)].packets > 1
    }

    /// Note that bytes are missing before `segment`. The time before it has been explained as if none were.
    #[cold]
    fn begin_hole(&mut self, segment: &Segment, step: &Step, before: Spent) {
        let (mut spent, at) = (self.account.spent, segment.ts);
        for (now, before) in spent.iter_mut().zip(before) {
            *now = now.saturating_sub(before);
        }
        let both = self.both_trips();
        let losses = self.losses_mut();
        // The first repeat after a timeout is sent alone; a round trip later, the next packets show what was sent
        // before it.
        let after = losses.silence.take_if(|silence| {
            let since = at.saturating_sub(silence.at).max(0) as u64;
            silence.end == segment.from & 1
                && silence.next == step.next
                && since >= both - both / 4
                && since <= both.saturating_mul(2).saturating_add(TIMEOUT)
        });
        if losses.holes.len() < MOST_HOLES {
            losses.holes.push(Hole {
                after,
                from: step.next,
                to: segment.seq,
                spent,
                at,
                end: segment.from & 1,
            });
        }
    }

    /// Remove holes that are filled, or acknowledged although they were not.
    fn acknowledge_holes(&mut self, ack: u32, end: usize) {
        let Some(losses) = &mut self.account.losses else {
            return;
        };
        let (spent, mut at) = (&mut self.account.spent, 0);
        while at < losses.holes.len() {
            let hole = losses.holes[at];
            if usize::from(hole.end) != end || !not_after(hole.to, ack) {
                at += 1;
                continue;
            }
            losses.holes.swap_remove(at);
            for (cause, nanos) in hole.spent.into_iter().enumerate() {
                let moved = nanos.min(spent[cause]);
                spent[cause] -= moved;
                spent[on::UNKNOWN] += moved;
            }
        }
    }

    #[cold]
    fn follow_episode(&mut self, segment: &Segment, step: &Step, moves: bool) {
        let from = usize::from(segment.from & 1);
        let peer = 1 - from;
        if moves && segment.payload > 0 {
            let resent = (step.repeats && !step.fresh) || self.fills_late(segment, step);
            if let Some(losses) = &mut self.account.losses {
                losses.repaired |= resent && usize::from(losses.end) == from;
                if resent {
                    losses.resent = segment.seq.wrapping_add(segment.payload);
                }
            }
            if resent {
                if let Some(view) = &mut self.paths[from].view {
                    view.lossy = true;
                    view.forget_flight(segment.ts);
                }
            }
        }
        if segment.flags & flag::ACK == 0 || segment.flags & (flag::SYN | flag::RST) != 0 {
            return;
        }
        if matches!(step.order, Order::Jumped(_)) {
            if let Some(losses) = &mut self.account.losses {
                // The other end's answer was lost.
                losses.again.take_if(|again| again.end != segment.from & 1);
            }
        }
        if let Some(seq) = segment.options.twice {
            self.undo_recovery(peer, seq);
        }
        let acked = self.sent[from].acked;
        let beyond = segment
            .options
            .sacked
            .filter(|&edge| !not_after(edge, acked) && segment.ack == acked);
        let edge = match beyond {
            Some(edge) => Some(edge),
            None if !moves && self.is_duplicate(segment, step) => {
                Some(self.sent[peer].space.next())
            }
            None => None,
        };
        let again = self.end_episode(segment.ts, acked, peer);
        let Some(edge) = edge else { return };
        let (at, spent) = (segment.ts.max(self.account.mark), self.account.spent);
        let losses = self.losses_mut();
        if losses.since.is_none() {
            losses.since = Some((at, spent));
            // The first hole determines the end: otherwise continued reordering would become one long recovery.
            losses.until = edge;
            losses.end = peer as u8;
            losses.repaired = again && !not_after(losses.resent, acked);
        }
    }

    /// Whether `segment` repeats data that was captured near the other end, which did not react. Then nothing was lost
    /// on the path: the other end's accept queue is full, or it drops what it receives.
    pub(crate) fn is_ignored(&self, segment: &Segment, from: usize) -> bool {
        let phantom = u32::from(segment.flags & flag::FIN != 0);
        let length = segment.payload + phantom;
        let (peer, end) = (1 - from, segment.seq.wrapping_add(length));
        let waited = usize::from(self.account.from) == from && !self.is_repairing();
        let unheard = self.account.covered == NO_TIME && !not_after(end, self.sent[peer].acked);
        length > 0 && waited && unheard && self.is_near(peer)
    }

    /// Attribute the `gap` before a repeat, which counts as recovery until the other end reports that nothing was lost.
    ///
    /// A short first message that is repeated several times may not have been lost: a server whose accept queue is full
    /// looks like this to its client.
    pub(crate) fn attribute_repeat(&mut self, segment: &Segment, gap: u64) {
        let from = usize::from(segment.from & 1);
        let peer = &self.sent[1 - from];
        let unaccepted = segment.payload > 0
            && segment.payload <= SHORT
            && peer.unique == 0
            && self.paths[from].first_seq.wrapping_add(1) == peer.acked;
        let before = (self.account.mark, self.account.from);
        let losses = self.account.losses.get_or_insert_with(Box::default);
        let again = losses.again.replace(Retransmission {
            at: segment.ts,
            seq: segment.seq,
            gap,
            end: segment.from & 1,
            before,
        });
        let spent = &mut self.account.spent;
        match again.filter(|again| unaccepted && again.seq == segment.seq) {
            Some(again) => {
                let first = again.gap.min(spent[on::RECOVERY]);
                spent[on::RECOVERY] -= first;
                spent[on::UNKNOWN] += first + gap;
                if let Some(again) = &mut losses.again {
                    again.gap = 0;
                }
            }
            None => spent[on::RECOVERY] += gap,
        }
    }

    /// Attribute the `gap` in which `lost` packets before `segment` did not pass, because they were lost or overtaken.
    /// Return the part of `gap` that their repeats cannot have taken: each waits at most twice as long as the previous
    /// one.
    pub(crate) fn infer_loss(&mut self, segment: &Segment, lost: u16, gap: u64) -> u64 {
        let first = TIMEOUT.max(self.both_trips()).saturating_mul(3) / 2;
        let most = first.saturating_mul((1 << lost.min(16)) - 1);
        let took = gap.min(most);
        self.account.spent[on::RECOVERY] += took;
        let losses = self.losses_mut();
        losses.inferred += took;
        losses.jumped = Some((segment.ts, took, segment.from & 1));
        gap - took
    }

    /// Note a packet of `from` that was sent before others: it was not lost but overtaken.
    fn note_overtaken(&mut self, from: usize, ts: i64) {
        let both = self.both_trips();
        let Some(losses) = &mut self.account.losses else {
            return;
        };
        let Some((at, gap, _)) = losses
            .jumped
            .take_if(|&mut (_, _, end)| usize::from(end) == from)
        else {
            return;
        };
        let waited = ts.saturating_sub(at).max(0) as u64;
        let gap = gap.min(self.account.spent[on::RECOVERY]);
        if waited >= both {
            return;
        }
        losses.inferred = losses.inferred.saturating_sub(gap);
        self.account.spent[on::RECOVERY] -= gap;
        self.account.spent[on::APPLICATION + from] += gap;
    }

    /// Undo a recovery: the other end has received the data at `seq`, which `end` retransmitted, twice. So they were
    /// not lost; only their acknowledgement was late.
    fn undo_recovery(&mut self, end: usize, seq: u32) {
        let Some(again) = self.account.losses.as_mut().and_then(|losses| {
            losses.again.take_if(|again| {
                usize::from(again.end) == end && again.seq == seq && again.gap < TIMEOUT
            })
        }) else {
            return;
        };
        let gap = again.gap.min(self.account.spent[on::RECOVERY]);
        self.account.spent[on::RECOVERY] -= gap;
        if self.account.mark == again.at {
            (self.account.mark, self.account.from) = again.before;
        } else {
            self.account.spent[on::LATENCY] += gap;
        }
    }

    /// End the episode if everything is acknowledged that had arrived beyond its hole; return true if that hole had
    /// been repaired.
    fn end_episode(&mut self, ts: i64, acked: u32, end: usize) -> bool {
        let both = self.both_trips();
        let Some(losses) = &mut self.account.losses else {
            return false;
        };
        let Some((since, before)) = losses.since else {
            return false;
        };
        if usize::from(losses.end) != end || !not_after(losses.until, acked) {
            return false;
        }
        losses.since = None;
        let took = ts.saturating_sub(since).max(0) as u64;
        if !losses.repaired {
            // Nothing was retransmitted, so the missing data were only reordered.
            if took < both {
                losses.varies = losses.varies.max(took);
                losses.overtaken = losses.overtaken.saturating_add(1);
            }
            return false;
        }
        losses.episodes = losses.episodes.saturating_add(1);
        losses.ended = ts;
        // Revoke what was attributed since the episode began; unattributed time before it belongs to the path.
        let whole: u64 = before.iter().sum();
        let until_since = since.saturating_sub(self.start_ts).max(0) as u64;
        let mut spent = before;
        spent[on::LATENCY] += until_since.saturating_sub(whole);
        spent[on::RECOVERY] += took;
        self.account.spent = spent;
        self.account.held = 0;
        self.move_on(end, ts);
        if acked == self.sent[end].space.next() {
            self.account.covered = ts;
            self.account.streaming = true;
        }
        true
    }

    /// Whether this late packet was retransmitted rather than overtaken. No repair is faster than a round trip.
    fn fills_late(&mut self, segment: &Segment, step: &Step) -> bool {
        if !step.late {
            return false;
        }
        let both = self.both_trips();
        let end = segment.payload.wrapping_add(segment.seq);
        let Some(losses) = &mut self.account.losses else {
            return false;
        };
        let place = losses.holes.iter().position(|hole| {
            hole.end == segment.from & 1
                && not_after(hole.from, segment.seq)
                && not_after(segment.seq, hole.to)
        });
        let (mut waited, mut after) = (None, None);
        if let Some(place) = place {
            let hole = losses.holes[place];
            after = hole.after;
            waited = Some(segment.ts.saturating_sub(hole.at).max(0) as u64);
            let (before, after) = (hole.from != segment.seq, !not_after(hole.to, end));
            if before {
                losses.holes[place].to = segment.seq;
            } else if after {
                losses.holes[place].from = end;
            } else {
                losses.holes.swap_remove(place);
            }
            if before && after && losses.holes.len() < MOST_HOLES {
                losses.holes.push(Hole { from: end, ..hole });
            }
        }
        let again = match step.order {
            Order::Earlier => false,
            Order::Next | Order::Jumped(_) | Order::Skipped => true,
            Order::Unknown | Order::Perhaps => {
                waited.is_some_and(|waited| waited >= both - both / 5)
            }
        };
        if again {
            if let Some(silence) = after {
                for hole in &mut losses.holes {
                    hole.after = None;
                }
                let kept = losses.since.as_mut().map(|(_, spent)| spent);
                for spent in kept.into_iter().chain([&mut self.account.spent]) {
                    let moved = silence.nanos.min(spent[usize::from(silence.cause)]);
                    spent[usize::from(silence.cause)] -= moved;
                    spent[on::RECOVERY] += moved;
                }
            }
        } else {
            losses.overtaken = losses.overtaken.saturating_add(1);
            if let Some(waited) = waited.filter(|&waited| waited < both) {
                losses.varies = losses.varies.max(waited);
            }
        }
        again
    }

    /// Correct inferred causes. They are invalid if the capture itself lost packets. On a lossy path, a long silence
    /// before a packet without a number may be due to the repeat of one that was lost before the point of capture.
    pub(crate) fn correct_inferences(&self, spent: &mut Spent) {
        let (hands, server) = (&self.handshake, 1 - self.client_end());
        let unanswered = hands.syn != NO_TIME && hands.synack >= hands.last_syn;
        if unanswered && hands.last_syn > hands.syn && self.is_near(server) {
            // The SYNs arrived, and the server answered only the last one.
            let ignored = ((hands.last_syn - hands.syn) as u64).min(spent[on::RECOVERY]);
            spent[on::RECOVERY] -= ignored;
            spent[on::APPLICATION + server] += ignored;
        }
        let mut doubt = |cause: usize, nanos: u64| {
            let moved = nanos.min(spent[cause]);
            spent[cause] -= moved;
            spent[on::UNKNOWN] += moved;
        };
        let inferred = self.losses().map_or(0, |losses| losses.inferred);
        if inferred > 0 && self.missing() > 0 {
            doubt(on::RECOVERY, inferred);
        }
        let packets = self.sent[0].packets + self.sent[1].packets;
        let repeats = [0, 1].map(|end| {
            let rare = self.rare(end);
            u64::from(rare.retransmissions.saturating_sub(rare.ignored))
        });
        let known = self.losses().map_or(0, |losses| u64::from(losses.episodes));
        if (known + repeats.iter().sum::<u64>()) * 100 >= packets {
            for end in [0, 1] {
                let micros = u64::from(self.rare(end).unsure);
                doubt(on::APPLICATION + end, 1000 * micros);
            }
        }
    }
}
