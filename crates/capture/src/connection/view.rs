//! Reconstruct a connection as the sender of data sees it, at the point of capture.
//!
//! An acknowledgement that passes the point of capture reaches the sender later, and the packets that it releases pass
//! a round trip after it. So acknowledgements wait in a queue until a packet of the sender shows that they have
//! arrived: because the shortest round trip is over, or because the packet could not have been sent without them. The
//! time stamps that packets echo do not show it: they lag behind where packets overtake each other, and where
//! acknowledgements are delayed (RFC 7323, 4.3).

use crate::connection::seqspace::not_after;
use std::collections::VecDeque;

/// How closely a packet must follow the acknowledgement that released it, in addition to a sixteenth of the round trip.
pub(crate) const EXACTLY: u64 = 300_000;
/// Maximum number of acknowledgements in flight: those of some milliseconds at 100 Gbit/s. If there are more, the
/// oldest counts as arrived.
const MOST: usize = 4096;

/// An acknowledgement on its way to the sender.
#[derive(Clone, Copy, Debug)]
struct PassedAcknowledgement {
    at: i64,
    ack: u32,
    edge: u32,
}

/// What a sender knew when it sent its last packet.
#[derive(Debug, Default)]
pub struct View {
    coming: VecDeque<PassedAcknowledgement>,
    /// The highest acknowledgement it had received.
    pub ack: u32,
    /// Where the other end's window ended.
    pub edge: u32,
    /// Maximum number of bytes it had in flight since the cause that limits it last changed.
    pub flight_max: u32,
    /// When this maximum last rose.
    pub grown_at: i64,
    /// When nearly as much was last in flight.
    pub reached_at: i64,
    /// Usual time between two packets of a burst.
    pub usual: u64,
    /// When two packets of a burst last followed each other closely.
    pub tight_at: i64,
    /// When the last acknowledgement passed, and the usual time between two of them.
    passed_at: i64,
    spaced: u64,
    /// The last silence between them that was not short compared with the round trip.
    pub silent_at: i64,
    /// The last packet that followed such a silence of its own.
    pub sent_after_silence: i64,
    /// Time attributed to the path's length since the amount in flight last grew.
    pub latency_since: u64,
    /// The cause that last limited it; initially its program.
    pub limit: u8,
    /// The sequence number at which it continued after its program's last pause, and when, if the pause was not short
    /// compared with the round trip.
    pub resumed: Option<(u32, i64)>,
    /// The last window that was announced while nothing was missing.
    pub window_whole: u32,
    /// Whether it has lost packets.
    pub lossy: bool,
}

/// The acknowledgements that reached the sender between its last packet and this one.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// The highest acknowledgement that it had received before.
    pub ack_before: u32,
    /// Where the window ended before.
    pub edge_before: u32,
    /// When the last of the acknowledgements that have arrived passed.
    pub at: Option<i64>,
    /// When the first acknowledgement of new data passed.
    pub began: Option<i64>,
    /// When the first one passed that gave the required room.
    pub released: Option<i64>,
    /// When the last of the sender's data for which it had to wait was acknowledged, if that gave no room.
    pub acked_at: Option<i64>,
    /// Whether the acknowledgement only opened the window and acknowledged nothing new.
    pub update: bool,
    /// The smallest window announced until then.
    pub window_low: u32,
    /// The window of the acknowledgement that released the packet, or else of the last one.
    pub window_now: u32,
}

impl Arrived {
    /// Whether the window already had room for `length` bytes from `seq` on.
    #[inline]
    #[must_use]
    pub fn has_room(&self, seq: u32, length: u32) -> bool {
        not_after(seq.wrapping_add(length), self.edge_before)
    }
}

impl View {
    /// Create a view with no acknowledgement in flight.
    #[must_use]
    pub fn new(ack: u32, edge: u32) -> Self {
        Self {
            ack,
            edge,
            ..Self::default()
        }
    }

    /// Record an acknowledgement, on a path whose round trip takes `whole`. If the path's rate is the limit,
    /// acknowledgements follow each other without silences, wherever they are captured. A `selective` one acknowledges
    /// more than its number shows. Return by how many bytes the heap has grown.
    #[inline]
    pub fn note_acknowledgement(
        &mut self,
        at: i64,
        ack: u32,
        window: u32,
        whole: u64,
        selective: bool,
    ) -> usize {
        let edge = ack.wrapping_add(window);
        if !selective {
            self.window_whole = window;
        }
        if let Some(last) = self.coming.back() {
            if last.ack == ack && last.edge == edge && !selective {
                return 0;
            }
        } else if self.ack == ack && self.edge == edge && !selective {
            return 0;
        }
        let gap = at.saturating_sub(self.passed_at).max(0) as u64;
        self.passed_at = at;
        if gap >= (whole / 8).max(self.spaced.saturating_mul(3).min(whole / 2)) {
            self.silent_at = at;
        }
        self.spaced = self.spaced.saturating_mul(7).saturating_add(gap.min(whole)) / 8;
        let room = self.coming.capacity();
        if self.coming.len() >= MOST {
            if let Some(first) = self.coming.pop_front() {
                self.apply(first);
            }
        }
        self.coming
            .push_back(PassedAcknowledgement { at, ack, edge });
        (self.coming.capacity() - room) * size_of::<PassedAcknowledgement>()
    }

    fn apply(&mut self, news: PassedAcknowledgement) {
        if !not_after(news.ack, self.ack) {
            self.ack = news.ack;
        }
        if !not_after(news.edge, self.edge) {
            self.edge = news.edge;
        }
    }

    /// Deliver the acknowledgements that passed until `until`, because the sender sends something that needs room up to
    /// `need`.
    #[inline]
    pub fn deliver_until(&mut self, until: i64, need: u32) -> Arrived {
        let mut arrived = Arrived {
            ack_before: self.ack,
            edge_before: self.edge,
            at: None,
            began: None,
            released: None,
            acked_at: None,
            update: false,
            window_low: self.edge.wrapping_sub(self.ack),
            window_now: 0,
        };
        while let Some(&news) = self.coming.front() {
            // The required acknowledgement must have arrived, or the packet could not have been sent.
            let needed = !not_after(need, self.edge);
            if news.at > until && !needed {
                break;
            }
            self.coming.pop_front();
            arrived.at = Some(news.at);
            if !not_after(news.ack, self.ack) {
                arrived.began.get_or_insert(news.at);
            }
            let window = news.edge.wrapping_sub(news.ack);
            if arrived.released.is_none() {
                arrived.window_now = window;
            }
            if needed && not_after(need, news.edge) && arrived.released.is_none() {
                arrived.released = Some(news.at);
                arrived.update = news.ack == self.ack;
            } else if arrived.released.is_none() {
                arrived.window_low = arrived.window_low.min(window);
                if !not_after(news.ack, self.ack) {
                    arrived.acked_at = Some(news.at);
                }
            }
            self.apply(news);
        }
        arrived
    }

    /// Record how much is in flight after a packet up to `end`.
    #[inline]
    pub fn note_flight(&mut self, end: u32, largest: u32, ts: i64) {
        let flight = end.wrapping_sub(self.ack);
        if flight < 1 << 31 && flight >= self.flight_max - self.flight_max / 8 {
            self.reached_at = ts;
        }
        if flight < 1 << 31 && flight > self.flight_max.saturating_add(largest / 2) {
            self.flight_max = flight;
            self.grown_at = ts;
            self.latency_since = 0;
        }
    }

    /// Begin a new message, on a path whose round trip takes `whole`. Acknowledgements from long before it show nothing
    /// about it.
    #[inline]
    pub fn begin_message(&mut self, ts: i64, whole: u64) {
        self.sent_after_silence = ts;
        if ts.saturating_sub(self.passed_at).max(0) as u64 >= whole.saturating_mul(2) {
            self.silent_at = ts;
        }
    }

    /// Forget how much was in flight after a loss or when a new message begins: it does not show how much may be in
    /// flight from then on.
    #[inline]
    pub fn forget_flight(&mut self, ts: i64) {
        self.flight_max = 0;
        self.grown_at = ts;
        self.latency_since = 0;
    }
}
