//! Determine what delayed a sender that had more to send: the path's latency or rate, a window, its own buffer, or a
//! pause of its program.

use crate::connection::conn::Conn;
use crate::connection::queue::Queue;
use crate::connection::seqspace::not_after;
use crate::connection::spent::on;
use crate::connection::view::Arrived;
use crate::connection::view::EXACTLY;
use crate::wire::packet::Segment;

/// If the maximum segment size is unknown, smaller segments are not considered full.
const LARGE: u32 = 1200;
/// After this many round trips without growth, the sender itself limits the data in flight.
const PLATEAU: u64 = 4;
/// Shorter round trips do not show the reason for a plateau.
const LONG: u64 = 1_000_000;
/// If at least one packet in this many is overtaken, the path's times show no queues.
const OFTEN: u64 = 100;
/// Number of packets of a connection before its queues are followed, unless an end sends several in a row.
const SHORT: u64 = 16;

impl Conn {
    /// Whether the program of `from` paused within the last round trip, and nothing that it has written since is
    /// acknowledged. Acknowledgements of earlier data do not release packets.
    #[inline]
    pub(crate) fn has_paused(&self, segment: &Segment, from: usize) -> bool {
        let least = self.both_trips();
        let view = self.paths[from].view.as_ref();
        view.is_some_and(|view| {
            let resumed = view.resumed.is_some_and(|(seq, at)| {
                not_after(view.ack, seq) && segment.ts.saturating_sub(at).max(0) as u64 <= least
            });
            resumed && usize::from(view.limit) == on::APPLICATION + from
        })
    }

    /// Whether `end` announced less than half of its largest window, by window values with an unknown scale.
    #[inline]
    pub(crate) fn was_small(&self, end: usize, arrived: Option<Arrived>) -> bool {
        let path = &self.paths[end];
        arrived.map_or(path.window, |arrived| arrived.window_low) < path.window_max / 2
    }

    /// Whether the data in flight has grown during the last round trips; then no window limits it.
    #[inline]
    pub(crate) fn is_growing(&self, segment: &Segment, from: usize) -> bool {
        let least = self.both_trips();
        let view = self.paths[from].view.as_ref();
        view.is_some_and(|view| {
            (segment.ts.saturating_sub(view.grown_at).max(0) as u64) < PLATEAU * least
        })
    }

    /// Whether there is a standing queue on the path of the data that `from` sends.
    #[inline]
    pub(crate) fn has_standing_queue(&self, segment: &Segment, from: usize) -> bool {
        let (least, overtaken) = (self.both_trips(), self.find_reordering_time());
        let queues = self.queues.as_ref();
        queues.is_some_and(|queues| {
            queues[from].standing_queue(segment.ts, least, overtaken) > least / 4
        })
    }

    /// Whether `from` left room unused that acknowledgements had given it long before: at least a quarter of the data
    /// in flight.
    #[inline]
    pub(crate) fn left_room(&self, segment: &Segment, from: usize, arrived: &Arrived) -> bool {
        let (Some(view), Some(began)) = (&self.paths[from].view, arrived.began) else {
            return false;
        };
        if self.find_emptying_time(from, segment.ts) > 0 {
            return false;
        }
        let least = 4 * self.largest_segment(from);
        let freed = view.ack.wrapping_sub(arrived.ack_before);
        let since = segment.ts.saturating_sub(began).max(0) as u64;
        let slack = self.both_trips() / 16 + EXACTLY + self.find_tolerated_variation(from);
        let flew = segment.seq.wrapping_sub(arrived.ack_before);
        freed >= least.max(flew / 4) && since > self.paths[from].round_trip() + slack
    }

    /// Note from the time stamp of `segment` how long it has been in queues. Return the growth of the heap.
    #[inline]
    pub(crate) fn stamp_queue(&mut self, segment: &Segment, from: usize) -> usize {
        let Some((stamp, _)) = segment.options.stamps else {
            return 0;
        };
        let whole = self.both_trips();
        if let Some(queues) = &mut self.queues {
            queues[from].note_stamped(stamp, segment.ts, whole);
            return 0;
        }
        let packets = self.sent[0].packets + self.sent[1].packets;
        if packets < SHORT && self.paths[from].view.is_none() {
            return 0;
        }
        self.queues.get_or_insert_default()[from].note_stamped(stamp, segment.ts, whole);
        size_of::<[Queue; 2]>()
    }

    /// Return how much of the time since `from` last sent the queues needed to drain.
    #[inline]
    pub(crate) fn find_emptying_time(&self, from: usize, ts: i64) -> u64 {
        let whole = self.both_trips();
        self.queues.as_ref().map_or(0, |queues| {
            queues[from].emptied(ts, whole, self.find_reordering_time())
        })
    }

    /// Attribute `gap` to `cause`, and note it as what limits `from`.
    #[inline]
    pub(crate) fn set_limit(&mut self, from: usize, cause: usize, gap: u64) {
        self.account.spent[cause] += gap;
        if let Some(view) = &mut self.paths[from].view {
            view.limit = cause as u8;
        }
    }

    /// Whether the last packet of `from` had full size.
    #[inline]
    pub(crate) fn last_packet_was_full_size(&self, from: usize) -> bool {
        let path = &self.paths[from];
        let mss = u32::from(self.limit[from]);
        if mss == 0 {
            return path.last_len >= self.sent[from].largest.max(LARGE);
        }
        if path.last_len > mss {
            // Several segments in one packet: the last is full if all are (a time stamp takes 12 bytes).
            let whole = |size: u32| size > 0 && path.last_len % size == 0;
            return whole(mss) || whole(mss.saturating_sub(12));
        }
        path.last_len + 40 >= mss || path.full > 0 && path.last_len >= path.full
    }

    /// Explain a wait of a sender that had more to send into an open window: by the rate of the path, its latency, or
    /// the sender's own buffer.
    #[inline]
    pub(crate) fn explain_path_limit(&mut self, segment: &Segment, gap: u64, from: usize) -> usize {
        let least = self.both_trips();
        let now = self.paths[0].recent_round_trip() + self.paths[1].recent_round_trip();
        let queued = now > least + least / 2 + 2_000_000;
        let deeply = now > least.saturating_mul(3).saturating_add(2_000_000);
        let level = self.is_level(segment, from, least);
        let overtaken = self.find_reordering_time();
        let Some(view) = &mut self.paths[from].view else {
            return on::LATENCY;
        };
        if gap >= (least / 8).max(view.usual.saturating_mul(3).min(least / 2)) {
            view.sent_after_silence = segment.ts;
        }
        let silent = view.silent_at.min(view.sent_after_silence);
        let busy = segment.ts.saturating_sub(silent).max(0) as u64;
        let long = least >= LONG;
        // Segments that never follow each other closely have passed a slow link one by one.
        let loose = segment.ts.saturating_sub(view.tight_at).max(0) as u64;
        let apart = loose
            >= least
                .saturating_mul(PLATEAU)
                .max(view.usual.saturating_mul(16));
        let queue = self.queues.as_mut().map(|queues| &mut queues[from]);
        if let Some(queue) = queue.filter(|queue| long && queue.is_known()) {
            let stands = queue.standing_queue(segment.ts, least, overtaken) > least / 4;
            queue.seen |= stands;
            if stands || queue.seen && overtaken == 0 && busy / 2 >= least {
                view.latency_since = 0;
                return on::BANDWIDTH;
            }
        } else if !long || busy / 2 >= least || deeply || queued && busy >= least / 2 || apart {
            view.latency_since = 0;
            return on::BANDWIDTH;
        }
        if level {
            let before =
                std::mem::take(&mut view.latency_since).min(self.account.spent[on::LATENCY]);
            self.account.spent[on::LATENCY] -= before;
            self.account.spent[on::SEND_BUFFER + from] += before;
            return on::SEND_BUFFER + from;
        }
        view.latency_since += gap;
        on::LATENCY
    }

    /// Whether the data in flight has not grown for several round trips, although nothing was lost and the window had
    /// room.
    #[inline]
    pub(crate) fn is_level(&self, segment: &Segment, from: usize, least: u64) -> bool {
        let Some(view) = &self.paths[from].view else {
            return false;
        };
        let since = |at: i64| segment.ts.saturating_sub(at).max(0) as u64;
        least >= LONG
            && !view.lossy
            && since(view.grown_at) >= least.saturating_mul(PLATEAU)
            && since(view.reached_at) <= least.saturating_mul(2)
    }

    /// Return how much longer than usual a packet of `from` may take on a path that varies.
    #[inline]
    pub(crate) fn find_tolerated_variation(&self, from: usize) -> u64 {
        let seen = self.losses().map_or(0, |losses| losses.varies);
        let queues = self.queues.as_ref();
        queues
            .map_or(0, |queues| queues[from].recent_variation().1)
            .max(seen.saturating_mul(2))
    }

    /// Return by how much time packets overtake each other, if they often do; 0 if the holes may as well be losses.
    #[inline]
    pub(crate) fn find_reordering_time(&self) -> u64 {
        self.losses().map_or(0, |losses| {
            let packets = self.sent[0].packets + self.sent[1].packets;
            let often = u64::from(losses.overtaken) * OFTEN >= packets;
            if often && losses.overtaken > 4 * losses.episodes {
                losses.varies
            } else {
                0
            }
        })
    }

    /// Whether `from` had more to send when it sent its last packet.
    #[inline]
    pub(crate) fn had_more(&self, from: usize) -> bool {
        let path = &self.paths[from];
        path.last_len > 0 && (!path.pushed || self.last_packet_was_full_size(from))
    }
}
