//! Count each packet, and attribute the time before it.

use crate::connection::conn::{Conn, Steps};
use crate::connection::path::Unacked;
use crate::connection::sent::track_segment;
use crate::evidence::step::Step;
use crate::wire::packet::{flag, Direction, Segment, NO_TIME, TCP};

const SMALL_STEP: i64 = 1_000_000;

impl Conn {
    /// Count one segment.
    #[inline]
    pub fn update(&mut self, segment: &Segment) {
        let from = usize::from(segment.from & 1);
        let mut grown = self.note_time(segment);
        let own = &mut self.sent[from];
        own.packets += 1;
        own.wire += u64::from(segment.wire_len);
        own.largest = own.largest.max(segment.payload);
        if segment.direction != Direction::Unknown {
            self.note_way(segment);
        }
        if segment.key.protocol != TCP {
            let own = &mut self.sent[from];
            own.unique += u64::from(segment.payload);
            self.client.get_or_insert(segment.from);
            self.attribute_datagram(segment);
            self.note_heap_growth(grown);
            return;
        }
        let own = &mut self.sent[from];
        let is_plain = segment.flags & (flag::SYN | flag::RST) == 0 && segment.seq_known;
        let begins = is_plain && own.space.skip_keep_alive(segment.seq);
        let (next, acked) = (own.space.next(), own.acked);
        let acked = (self.flags[from] & flag::ACK != 0).then_some(acked);
        if own.packets == 1 || begins {
            self.paths[from].first_seq = segment.seq;
        }
        let probe = self.is_probe(segment) || self.probes_window(segment);
        let refused = self.is_refused_early_data(segment);
        let next = if refused { segment.seq } else { next };
        let says_ack = self.says_ack(segment);
        let own = &mut self.sent[from];
        if says_ack {
            let first = self.flags[from] & flag::ACK == 0;
            if first || (segment.ack.wrapping_sub(own.acked) as i32) > 0 {
                own.acked = segment.ack;
            }
        }
        self.flags[from] |= segment.flags & if says_ack { u8::MAX } else { !flag::ACK };
        let (seen, again) = if segment.seq_known {
            track_segment(&mut own.space, segment)
        } else {
            // A row without a sequence number is assumed to continue where the last one ended.
            (own.space.payload(own.space.next(), segment.payload), false)
        };
        own.unique += seen.new;
        grown += seen.grown;
        if segment.payload > 0 && self.is_first_data(segment, from) {
            self.note_first_data(from, segment.flags & flag::SYN != 0);
        }
        if refused {
            self.paths[from].unacked = Unacked::default();
        }
        let repeats = (seen.repeated > 0 || again) && !refused;
        let says = segment.flags & (flag::RST | flag::SYN) == 0 && segment.seq_known;
        let limit = self.limit[from];
        let oversized = segment.payload > u32::from(limit) && limit != 0;
        let shut = segment.window == 0 && says;
        let segments = self.last_segments(from);
        // The byte of a probe is no data, and neither is it sent again when the window has opened.
        let counts = repeats && !probe && !(seen.repeated == 1 && self.probed_window(segment));
        let path = &mut self.paths[from];
        let stale = counts && path.is_stale(segment);
        let order = path
            .numbers
            .order(segment.id, segments, segment.seq != next);
        if counts || seen.late || shut || oversized {
            let rare = self.rare_mut(from);
            rare.stale += u32::from(stale);
            if counts {
                rare.repeated += seen.repeated;
                rare.retransmissions += u32::from(seen.repeated > 0) + u32::from(again);
            }
            rare.late += u32::from(seen.late);
            rare.zero_windows += u32::from(shut);
            if shut && rare.shut.0 <= rare.shut.1 {
                rare.shut.0 = segment.ts;
            }
            rare.oversized += u32::from(oversized);
        }
        if says && !shut {
            self.note_open_window(from, segment.ts);
        }
        if segment.flags & (flag::SYN | flag::RST) != 0 {
            let limit = &mut self.limit[1 - from];
            *limit = (*limit).max(segment.options.mss);
            let reset = u16::from(segment.flags & flag::RST != 0);
            self.paths[from].resets = self.paths[from].resets.saturating_add(reset);
        }
        if !self.shaken {
            self.follow_handshake(segment);
        }
        let phantoms = segment.flags & (flag::SYN | flag::FIN) != 0;
        let step = Step {
            fresh: seen.new > 0 || phantoms && !repeats || refused,
            repeats,
            next,
            acked,
            late: seen.late,
            order,
        };
        grown += self.attribute(segment, &step);
        self.note_heap_growth(grown);
    }

    #[inline]
    fn note_open_window(&mut self, from: usize, ts: i64) {
        if let Some(rare) = self.rare.as_mut().map(|rare| &mut rare[from]) {
            let is_shut = rare.shut.0 > rare.shut.1;
            rare.shut.1 = if is_shut { ts } else { rare.shut.1 };
        }
    }

    /// Whether the acknowledgement number of `segment` counts. A reset may have any number, so its own counts only if it
    /// answers what the other end has just sent.
    #[inline]
    fn says_ack(&self, segment: &Segment) -> bool {
        let from = usize::from(segment.from & 1);
        if segment.flags & flag::RST == 0 {
            return segment.flags & flag::ACK != 0;
        }
        let first = self.flags[from] & flag::ACK == 0;
        let data = &self.sent[1 - from].space;
        let answers = data.started() && segment.ack == data.next();
        segment.flags & flag::ACK != 0 && first && answers
    }

    /// Whether `segment` is a window probe of one byte: the other end has no room for it.
    #[inline]
    pub(crate) fn probes_window(&self, segment: &Segment) -> bool {
        let peer = usize::from(1 - (segment.from & 1));
        let path = &self.paths[peer];
        segment.payload == 1
            && segment.flags & (flag::SYN | flag::FIN | flag::RST) == 0
            && path.window == 0
            && path.window_min != u32::MAX
            && segment.seq == self.sent[peer].acked
    }

    /// Whether `segment` may begin with the byte of an earlier window probe, which the other end has not taken.
    fn probed_window(&self, segment: &Segment) -> bool {
        let peer = usize::from(1 - (segment.from & 1));
        self.rare(peer).zero_windows > 0 && segment.seq == self.sent[peer].acked
    }

    /// Whether `segment` repeats data from its sender's SYN that the other end did not take, as the acknowledgement in
    /// that end's SYN shows (RFC 7413). Such data count as sent for the first time.
    #[inline]
    fn is_refused_early_data(&self, segment: &Segment) -> bool {
        let from = usize::from(segment.from & 1);
        let peer = &self.sent[1 - from];
        segment.payload > 0
            && segment.flags & (flag::SYN | flag::RST) == 0
            && self.is_first_data(segment, from)
            && segment.seq == peer.acked
            && peer.unique == 0
            && self.flags[1 - from] & flag::SYN != 0
            && usize::from(self.account.from) != from
            && self.is_early(from)
    }

    /// Whether the data of `segment` begin right behind the SYN of `from`.
    #[inline]
    fn is_first_data(&self, segment: &Segment, from: usize) -> bool {
        let syn = u32::from(segment.flags & flag::SYN != 0);
        segment.seq.wrapping_add(syn) == self.paths[from].first_seq.wrapping_add(1)
    }

    #[inline]
    fn note_time(&mut self, segment: &Segment) -> usize {
        let gap = segment.ts - self.last_ts;
        let turned = segment.from != self.last_from;
        let before = std::mem::replace(&mut self.last_ts, segment.ts);
        self.last_from = segment.from;
        if gap < 0 {
            let step = if gap > -SMALL_STEP {
                Steps::Small
            } else {
                Steps::Large
            };
            self.backwards = self.backwards.max(step);
            self.latest = self.latest.max(before);
            self.start_ts = self.start_ts.min(segment.ts);
            return 0;
        }
        if turned {
            self.sent[usize::from(segment.from & 1)]
                .latency
                .record(gap as u64)
        } else {
            0
        }
    }

    fn follow_handshake(&mut self, segment: &Segment) {
        let hands = &mut self.handshake;
        match segment.flags & (flag::SYN | flag::ACK) {
            flag::SYN => {
                if hands.syn == NO_TIME && hands.synack == NO_TIME {
                    hands.syn = segment.ts;
                    self.client = Some(segment.from);
                }
                hands.last_syn = segment.ts;
            }
            flag::ACK if hands.synack != NO_TIME && self.client == Some(segment.from) => {
                hands.ack = segment.ts;
                self.shaken = true;
            }
            both if both == flag::SYN | flag::ACK && hands.synack == NO_TIME => {
                hands.synack = segment.ts;
                self.client.get_or_insert(1 - segment.from);
            }
            _ => {}
        }
    }
}
