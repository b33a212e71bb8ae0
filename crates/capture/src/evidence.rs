//! What one packet tells about its path: round trips, windows, time stamps, losses.

use crate::cause::Step;
use crate::conn::Conn;
use crate::packet::{flag, Segment};
use crate::path::{not_after, NO_SCALE};

impl Conn {
    /// Round trips, windows and time stamps of one packet.
    #[inline]
    pub(crate) fn measure(&mut self, segment: &Segment, from: usize) -> usize {
        let peer = 1 - from;
        let mut grown = 0;
        if let Some((value, echo)) = segment.options.stamps {
            if let Some(took) = self.paths[peer].echoed(echo, segment.ts) {
                self.paths[from].lately = took;
                self.paths[from].nearest = self.paths[from].nearest.min(took);
            }
            self.paths[from].stamp(value, segment.ts);
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
                self.paths[from].nearest = self.paths[from].nearest.min(took);
                grown += self.rtt[from].record(took);
            }
        }
        let path = &mut self.paths[from];
        if segment.options.sacked.is_some() {
            path.sacks += 1;
        }
        if segment.flags & flag::SYN != 0 {
            path.scale = segment.options.scale.unwrap_or(0);
            self.selective[from] = segment.options.sack_permitted;
            if has_no_scale(segment, path.scale) {
                // Scaling holds only when both ends announce it.
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
        }
        grown
    }

    /// Does `end` announce a window too small for the other end to go on (receivers avoid silly windows)?
    #[inline]
    pub(crate) fn is_shut(&self, end: usize) -> bool {
        let path = &self.paths[end];
        let segment = u32::from(self.limit[1 - end].max(536));
        if path.scale == NO_SCALE {
            return path.window == 0;
        }
        path.window < segment.min(path.window_max / 2)
    }

    /// Without selective acknowledgements, a loss shows as an acknowledgement that says the same once more.
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
            && !not_after(self.sent[peer].space.next(), segment.ack)
    }
}

#[inline]
fn has_no_scale(segment: &Segment, scale: u8) -> bool {
    segment.options.scale.is_none() && scale == 0
}
