//! Determine whether a sender waited for room in the other end's window, and what caused that.

use crate::connection::conn::Conn;
use crate::connection::path::NO_SCALE;
use crate::connection::spent::on;
use crate::connection::view::Arrived;
use crate::connection::view::EXACTLY;
use crate::wire::packet::Segment;

/// A receiver whose program is reading updates its window within this time.
const PROMPT: u64 = 3_000_000;

impl Conn {
    /// Attribute the wait to the other end's window if the sender waited for it; return whether it did.
    #[inline]
    pub(crate) fn explain_window_wait(
        &mut self,
        segment: &Segment,
        gap: u64,
        from: usize,
        arrived: &Arrived,
    ) -> bool {
        let peer = 1 - from;
        if self.paths[peer].scale == NO_SCALE || segment.payload == 0 {
            return false;
        }
        let mss = u32::from(self.limit[from].max(536));
        let least = segment.payload.min(mss);
        let full = !arrived.has_room(segment.seq, least);
        let base = self.paths[from].recent_round_trip();
        let slack = self.both_trips() / 16 + EXACTLY;
        // While there is a standing queue, a window that still has room delays nothing.
        let queued = self.find_emptying_time(from, segment.ts) > 0;
        let at = if full {
            arrived.released
        } else {
            // Senders do not fill the last part of a window with small segments (RFC 9293, 3.8.6.2.1).
            let room = arrived.edge_before.wrapping_sub(segment.seq);
            let window = arrived.edge_before.wrapping_sub(arrived.ack_before);
            let nearly = room < (window / 8).max(3 * mss);
            arrived.at.filter(|at| {
                let since = (segment.ts - at).max(0) as u64;
                nearly && !queued && since <= self.paths[from].round_trip() + slack
            })
        };
        let Some(at) = at else { return false };
        self.account.release_held(false);
        let until = at.saturating_add(self.paths[from].round_trip() as i64);
        let waited = (until.saturating_sub(self.account.mark).max(0) as u64).min(gap);
        let rest = gap - waited;
        let spread =
            (base - self.paths[from].round_trip() + slack).max(self.find_tolerated_variation(from));
        let (waited, rest) = if rest <= spread {
            (gap, 0)
        } else {
            (waited, rest)
        };
        let (held, missing) = self.losses().map_or((false, false), |losses| {
            (losses.filled_window(at), losses.missing())
        });
        let cause = if held && !self.read_late_before(from) {
            // Data behind a loss filled the window, and no program could read them yet.
            on::LATENCY
        } else if missing && self.read_late_before(from)
            || !missing && self.reads_late(peer, at, arrived)
        {
            on::APPLICATION + peer
        } else if queued {
            // A larger window would only make the queue longer.
            on::BANDWIDTH
        } else {
            on::RECEIVE_BUFFER + peer
        };
        self.set_limit(from, cause, waited);
        self.charge_own_time(from, rest, segment);
        if let Some(view) = &mut self.paths[from].view {
            view.forget_flight(segment.ts);
        }
        true
    }

    /// Whether the window that opened at `at` was small because of unread data rather than a small buffer.
    #[inline]
    fn reads_late(&self, peer: usize, at: i64, arrived: &Arrived) -> bool {
        let most = self.paths[peer].window_max;
        let was_low = arrived.window_low < most / 2;
        if !was_low && arrived.window_now >= most / 2 {
            return false;
        }
        if arrived.window_now < most / 2 {
            return true;
        }
        // All the room became free at once; a program that reads would have freed it right after the acknowledgement.
        let prompt = arrived
            .acked_at
            .is_some_and(|acked| (at - acked).max(0) as u64 <= PROMPT);
        arrived.update && !prompt
    }

    /// Whether the other end's window was already small before data was missing there.
    #[inline]
    fn read_late_before(&self, from: usize) -> bool {
        let view = self.paths[from].view.as_ref();
        view.is_some_and(|view| view.window_whole < self.paths[1 - from].window_max / 2)
    }
}
