//! Measure what one packet shows about its path: round trips, windows, time stamps.

use crate::connection::conn::Conn;
use crate::connection::path::NO_SCALE;
use crate::connection::seqspace::not_after;
use crate::evidence::step::Step;
use crate::wire::packet::{flag, Segment};

impl Conn {
    /// Measure round trips, windows and time stamps of one packet. Return the growth of the heap.
    #[inline]
    pub(crate) fn measure_packet(&mut self, segment: &Segment, from: usize) -> usize {
        let peer = 1 - from;
        let mut grown = 0;
        let whole = self.both_trips();
        if let Some((value, echo)) = segment.options.stamps {
            if let Some(took) = self.paths[peer].take_echo(echo, segment.ts) {
                self.paths[from].note_round_trip(took, segment.ts, whole);
            }
            self.paths[from].note_stamp(value, segment.ts);
        }
        let phantoms = segment.flags & (flag::SYN | flag::FIN);
        if segment.payload > 0 || phantoms != 0 {
            let end = segment
                .seq
                .wrapping_add(segment.payload)
                .wrapping_add(phantoms.count_ones());
            grown += self.paths[from].unacked.push(end, segment.ts);
        }
        if segment.flags & flag::ACK != 0 {
            if let Some(sent) = self.paths[peer].unacked.acknowledge(segment.ack) {
                let took = segment.ts.saturating_sub(sent).max(0) as u64;
                self.paths[from].note_round_trip(took, segment.ts, whole);
                if segment.payload == 0 {
                    self.paths[from].note_acknowledged(took);
                    self.follow_queue(took, segment, from, whole);
                }
                grown += self.rtt[from].record(took);
            }
        }
        if segment.options.sacked.is_some() {
            self.rare_mut(from).sacks += 1;
        }
        let path = &mut self.paths[from];
        if segment.flags & flag::SYN != 0 {
            // What the snapshot length cut off is unknown; nearly all systems permit selective acknowledgements.
            let cut = segment.options.cut;
            self.selective[from] = segment.options.sack_permitted || cut;
            if let Some(scale) = segment.options.scale {
                path.scale = scale;
            } else if !cut {
                // Scaling applies only if both ends announce it.
                path.scale = 0;
                self.paths[peer].scale = 0;
            }
        } else if segment.flags & flag::RST == 0 && segment.seq_known {
            let scale = if path.scale == NO_SCALE {
                0
            } else {
                path.scale
            };
            path.window = u32::from(segment.window) << scale;
            path.window_max = path.window_max.max(path.window);
            path.window_min = path.window_min.min(path.window);
            if segment.flags & flag::ACK != 0 {
                let window = path.window;
                if let Some(view) = &mut self.paths[peer].view {
                    grown += view.note_acknowledgement(
                        segment.ts,
                        segment.ack,
                        window,
                        whole,
                        segment.options.sacked.is_some(),
                    );
                }
            }
        }
        grown
    }

    /// Record an acknowledgement without data that came `took` after the last segment of a stream: such ones are not
    /// delayed.
    #[inline]
    fn follow_queue(&mut self, took: u64, segment: &Segment, from: usize, whole: u64) {
        if !self.account.streaming || usize::from(self.account.from) == from || self.is_repairing()
        {
            return;
        }
        let late = took.saturating_sub(self.paths[from].round_trip());
        if let Some(queues) = &mut self.queues {
            queues[1 - from].note_acknowledged(late, segment.ts, whole);
        }
    }

    /// Whether this is a duplicate acknowledgement, which shows a loss if there are no selective acknowledgements.
    pub(crate) fn is_duplicate(&self, segment: &Segment, step: &Step) -> bool {
        let peer = usize::from(1 - (segment.from & 1));
        let from = usize::from(segment.from & 1);
        let path = &self.paths[from];
        let scale = if path.scale == NO_SCALE {
            0
        } else {
            path.scale
        };
        !(self.selective[0] && self.selective[1])
            && segment.payload == 0
            && step.acked == Some(segment.ack)
            && u32::from(segment.window) << scale == path.window
            && path.window > 0
            // One that opens a closed window says nothing about what arrived.
            && self.rare(from).shut.1 != segment.ts
            && !not_after(self.sent[peer].space.next(), segment.ack)
    }
}
