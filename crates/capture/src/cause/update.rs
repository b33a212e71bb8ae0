//! Count each packet, and attribute the time before it.

use crate::connection::conn::{Conn, Steps};
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
            let sender_is_local = segment.direction == Direction::Out;
            self.local = Some(if sender_is_local {
                segment.from
            } else {
                1 - segment.from
            });
        }
        if segment.key.protocol != TCP {
            own.unique += u64::from(segment.payload);
            self.client.get_or_insert(segment.from);
            self.attribute_datagram(segment);
            self.note_heap_growth(grown);
            return;
        }
        let own = &self.sent[from];
        let (next, acked) = (own.space.next(), own.acked);
        let acked = (self.flags[from] & flag::ACK != 0).then_some(acked);
        let own = &mut self.sent[from];
        if own.packets == 1 {
            self.paths[from].first_seq = segment.seq;
        }
        if segment.flags & flag::ACK != 0 {
            let first = self.flags[from] & flag::ACK == 0;
            if first || (segment.ack.wrapping_sub(own.acked) as i32) > 0 {
                own.acked = segment.ack;
            }
        }
        self.flags[from] |= segment.flags;
        let (seen, again) = if segment.seq_known {
            track_segment(&mut own.space, segment)
        } else {
            // A row without a sequence number is assumed to continue where the last one ended.
            (own.space.payload(own.space.next(), segment.payload), false)
        };
        own.unique += seen.new;
        grown += seen.grown;
        let repeats = seen.repeated > 0 || again;
        let says = segment.flags & (flag::RST | flag::SYN) == 0 && segment.seq_known;
        let limit = self.limit[from];
        let oversized = segment.payload > u32::from(limit) && limit != 0;
        let shut = segment.window == 0 && says;
        let segments = self.last_segments(from);
        let path = &mut self.paths[from];
        let stale = repeats && path.is_stale(segment);
        let order = path
            .numbers
            .order(segment.id, segments, segment.seq != next);
        if repeats || seen.late || shut || oversized {
            let rare = self.rare_mut(from);
            rare.stale += u32::from(stale);
            rare.repeated += seen.repeated;
            rare.retransmissions += u32::from(seen.repeated > 0) + u32::from(again);
            rare.late += u32::from(seen.late);
            rare.zero_windows += u32::from(shut);
            if shut && rare.shut.0 <= rare.shut.1 {
                rare.shut.0 = segment.ts;
            }
            rare.oversized += u32::from(oversized);
        }
        if says && !shut {
            if let Some(rare) = self.rare.as_mut().map(|rare| &mut rare[from]) {
                let is_shut = rare.shut.0 > rare.shut.1;
                rare.shut.1 = if is_shut { segment.ts } else { rare.shut.1 };
            }
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
            fresh: seen.new > 0 || phantoms && !repeats,
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
