//! Track which bytes of a TCP stream were seen: exact counts of unique and repeated bytes, by tracking the gaps.

/// Maximum number of gaps per direction; if there are more, the oldest is forgotten and the result is marked as
/// inexact.
pub const MAX_GAPS: usize = 256;

/// Position of the first sequence number in the 64-bit space: far from zero, because earlier bytes may still follow.
const ORIGIN: u64 = 1 << 40;

/// Whether sequence number `a` is not beyond `b`.
#[inline]
#[must_use]
pub fn not_after(a: u32, b: u32) -> bool {
    b.wrapping_sub(a) as i32 >= 0
}

/// How much of one segment's payload was new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadNovelty {
    /// Number of bytes not seen before.
    pub new: u64,
    /// Number of bytes seen before.
    pub repeated: u64,
    /// Whether some of the new bytes lie below bytes seen earlier.
    pub late: bool,
    /// Bytes by which the heap has grown.
    pub grown: usize,
}

/// The seen part of one direction's sequence space: everything from `low` to `high` except the gaps.
///
/// Sequence numbers are unwrapped into 64 bits, relative to the highest one so far (differences below 2^31).
#[derive(Debug, Default)]
pub struct SeqSpace {
    low: u64,
    high: u64,
    /// The gaps; few streams have any.
    #[allow(
        clippy::box_collection,
        reason = "a word instead of three in every connection"
    )]
    gaps: Option<Box<Vec<(u64, u64)>>>,
    wraps: u32,
    started: bool,
    inexact: bool,
}

impl SeqSpace {
    /// Whether a sequence number is known.
    #[must_use]
    pub fn started(&self) -> bool {
        self.started
    }

    /// Return the next expected sequence number, modulo 2^32.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.high as u32
    }

    /// Return how many times the sequence numbers passed 2^32.
    #[must_use]
    pub fn wraps(&self) -> u32 {
        self.wraps
    }

    /// Whether a gap was forgotten: the numbers of unique and repeated bytes are then only bounds.
    #[must_use]
    pub fn inexact(&self) -> bool {
        self.inexact
    }

    /// Whether bytes between the lowest and the highest were not seen (yet).
    #[inline]
    #[must_use]
    pub fn has_gaps(&self) -> bool {
        self.gaps.as_ref().is_some_and(|gaps| !gaps.is_empty())
    }

    /// Return how many bytes below `ack` (the peer's highest acknowledgement) were never seen. An acknowledgement 2^31
    /// bytes or more beyond the highest number seen cannot be told from an old one.
    #[must_use]
    pub fn unseen_below(&self, ack: u32) -> u64 {
        if !self.started {
            return 0;
        }
        let ack = self.unwrap(ack);
        let holes: u64 = self
            .gaps
            .iter()
            .flat_map(|gaps| gaps.iter())
            .map(|&(from, to)| to.min(ack).saturating_sub(from))
            .sum();
        holes + ack.saturating_sub(self.high)
    }

    /// Return a sequence number relative to the first one, unwrapped; 0 for anything before it.
    #[must_use]
    pub fn position(&self, seq: u32) -> u64 {
        if self.started {
            self.unwrap(seq).saturating_sub(self.low)
        } else {
            0
        }
    }

    /// Start the space at `seq` (or extend it there): `seq` itself is a SYN or a FIN, which takes one number.
    pub fn add_phantom(&mut self, seq: u32) {
        if !self.started {
            self.start(seq);
        }
        let at = self.unwrap(seq);
        if at == self.high {
            self.raise(at + 1);
        }
    }

    /// Begin anew at `seq` if all packets so far were keep-alives without data: these have the sequence number before the
    /// next byte's. Return whether that is so.
    #[inline]
    pub fn skip_keep_alive(&mut self, seq: u32) -> bool {
        let begins =
            seq.wrapping_sub(self.high as u32) == 1 && self.low == self.high && self.started;
        if begins {
            self.start(seq);
        }
        begins
    }

    /// Record `len` bytes of payload at `seq`.
    #[inline]
    pub fn payload(&mut self, seq: u32, len: u32) -> PayloadNovelty {
        if !self.started {
            self.start(seq);
        }
        let len = u64::from(len);
        if len == 0 {
            return PayloadNovelty::default();
        }
        if seq == self.high as u32 {
            self.raise(self.high + len);
            return PayloadNovelty {
                new: len,
                ..PayloadNovelty::default()
            };
        }
        self.elsewhere(seq, len)
    }

    fn start(&mut self, seq: u32) {
        self.started = true;
        self.low = ORIGIN + u64::from(seq);
        self.high = self.low;
    }

    fn unwrap(&self, seq: u32) -> u64 {
        self.high
            .wrapping_add_signed(i64::from(seq.wrapping_sub(self.high as u32) as i32))
    }

    #[inline]
    fn raise(&mut self, to: u64) {
        self.wraps += ((to >> 32) - (self.high >> 32)) as u32;
        self.high = to;
    }

    fn elsewhere(&mut self, seq: u32, len: u64) -> PayloadNovelty {
        let room = self.heap();
        let mut gaps = self.gaps.take().unwrap_or_default();
        let from = self.unwrap(seq);
        let to = from + len;
        let mut new = 0;
        let mut late = false;
        let old_low = self.low;
        if from < old_low {
            new += to.min(old_low) - from;
            late = true;
            if to < old_low {
                gaps.insert(0, (to, old_low));
            }
            self.low = from;
        }
        let filled = fill(&mut gaps, from.max(old_low), to.min(self.high));
        new += filled;
        late |= filled > 0;
        if to > self.high {
            if from > self.high {
                gaps.push((self.high, from));
            }
            new += to - from.max(self.high);
            self.raise(to);
        }
        while gaps.len() > MAX_GAPS {
            gaps.remove(0);
            self.inexact = true;
        }
        // A stream with one gap usually gets more, so keep the allocation.
        self.gaps = (gaps.capacity() > 0).then_some(gaps);
        PayloadNovelty {
            new,
            repeated: len - new,
            late,
            grown: self.heap() - room,
        }
    }

    fn heap(&self) -> usize {
        self.gaps.as_ref().map_or(0, |gaps| {
            size_of::<Vec<(u64, u64)>>() + gaps.capacity() * size_of::<(u64, u64)>()
        })
    }
}

/// Close the gaps inside `from..to`; return how many bytes of them were open.
fn fill(gaps: &mut Vec<(u64, u64)>, from: u64, to: u64) -> u64 {
    let mut filled = 0;
    let mut i = gaps.partition_point(|gap| gap.1 <= from);
    while i < gaps.len() && gaps[i].0 < to {
        let (start, end) = gaps[i];
        let (left, right) = (start.max(from), end.min(to));
        filled += right - left;
        match (start < left, right < end) {
            (false, false) => {
                gaps.remove(i);
            }
            (true, false) => {
                gaps[i].1 = left;
                i += 1;
            }
            (false, true) => {
                gaps[i].0 = right;
                i += 1;
            }
            (true, true) => {
                gaps[i].1 = left;
                gaps.insert(i + 1, (right, end));
                i += 2;
            }
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        /// Compares with the obvious solution, a set of all byte numbers, starting close to 2^32.
        #[test]
        fn agrees_with_a_set_of_bytes(start: u32, segments in prop::collection::vec((-400_i64..4000, 0_u32..120), 1..200)) {
            let mut space = SeqSpace::default();
            let mut set = HashSet::new();
            let base = i64::from(start) + (1 << 33);
            space.payload(start, 0);
            let mut highest = base;
            for (at, len) in segments {
                let at = base + at;
                let (mut new, mut late) = (0, false);
                for byte in at..at + i64::from(len) {
                    let first = set.insert(byte);
                    new += u64::from(first);
                    late |= first && byte < highest;
                }
                let seen = space.payload(at as u32, len);
                if len > 0 { highest = highest.max(at + i64::from(len)); }
                if space.inexact() { return Ok(()); }
                prop_assert_eq!(seen.new, new);
                prop_assert_eq!(seen.repeated, u64::from(len) - new);
                prop_assert_eq!(seen.late, late);
            }
        }
    }

    #[test]
    fn counts_wraps_and_unseen_bytes() {
        let mut space = SeqSpace::default();
        space.add_phantom(u32::MAX - 9);
        assert_eq!(space.next(), u32::MAX - 8);
        assert_eq!(space.payload(u32::MAX - 8, 100).new, 100);
        assert_eq!(space.wraps(), 1);
        assert_eq!(space.payload(191, 10).new, 10);
        assert_eq!(space.unseen_below(201), 100);
        assert_eq!(space.unseen_below(301), 200);
        assert_eq!(space.unseen_below(141), 50);
    }

    #[test]
    fn a_keep_alive_is_no_first_byte() {
        let mut space = SeqSpace::default();
        space.payload(99, 0);
        assert!(!space.skip_keep_alive(99) && space.skip_keep_alive(100));
        assert_eq!(space.payload(100, 10).new, 10);
        assert_eq!((space.unseen_below(110), space.has_gaps()), (0, false));
    }

    #[test]
    fn forgets_gaps_with_a_mark() {
        let mut space = SeqSpace::default();
        for i in 0..1000 {
            space.payload(i * 10, 5);
        }
        assert!(space.inexact() && space.gaps.is_some_and(|gaps| gaps.len() == MAX_GAPS));
    }
}
