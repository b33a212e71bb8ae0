//! Interpret IPv4's identification, which may number the packets of a connection or of a host, or be no number at all.

/// How often the identification must have risen as expected before a jump counts as evidence, and again for each jump.
const STEADY: u8 = 4;
/// A step up to this size is a loss even if the counter rose only once as expected, provided that the silence before
/// fits a repeat.
const FEW_LOST: u16 = 8;
/// A larger step shows that other connections use the counter too.
const MOST_LOST: u16 = 1000;
/// Number of steps not explained by a loss that show that other connections use the counter too.
const SHARED: u8 = 2;

/// What IPv4's identification shows about a packet's position among those of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The identification shows nothing.
    Unknown,
    /// The packet follows the previous one.
    Next,
    /// This many packets of its connection are missing between it and the previous one.
    Jumped(u16),
    /// The same, unless the host sent them on other connections: it is unknown what its numbers count.
    Skipped,
    /// The same, for an end that has sent too few packets to be sure that it numbers them.
    Perhaps,
    /// The packet was sent before one that has already passed.
    Earlier,
}

/// How the packets of one end of a connection are numbered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbers {
    /// The last number.
    id: u16,
    /// How often the number has risen as expected, less a deduction for each jump.
    steady: u8,
    /// Number of steps that no loss explains.
    strays: u8,
    /// How often the number has risen by a step that is plausible for a counter of any kind.
    rises: u8,
    /// Whether the host numbers the packets of each connection separately, as its other connections have shown.
    pub own: bool,
    /// Whether the last packet was compared with those of other connections.
    pub compared: bool,
}

impl Numbers {
    /// Whether a packet with this number follows the previous one, which had this many `segments`.
    #[inline]
    #[must_use]
    pub fn follows(&self, id: u16, segments: u32) -> bool {
        let step = id.wrapping_sub(self.id);
        step == 1 || u32::from(step) == segments
    }

    /// Whether a packet with this number was sent before the last one.
    #[must_use]
    pub fn is_before(&self, id: u16) -> bool {
        self.rises > 0 && id != 0 && self.id.wrapping_sub(id) < MOST_LOST
    }

    /// Return the position of a packet with this number among those of its end, whose previous packet had `segments`;
    /// with `hole`, bytes are missing before it.
    ///
    /// Some systems count the packets of a connection there, some those of the host, and some do not count. In each
    /// case, if a number follows the last one directly, no packet was lost in between, and a packet with a smaller
    /// number was sent earlier.
    #[inline]
    pub fn order(&mut self, id: u16, segments: u32, hole: bool) -> Order {
        if id == 0 {
            return Order::Unknown;
        }
        let step = id.wrapping_sub(self.id);
        if self.is_before(id) {
            // The end does not count its packets: the next one follows the previous one.
            return if self.steady >= STEADY {
                Order::Earlier
            } else {
                Order::Unknown
            };
        }
        let next = self.follows(id, segments);
        self.id = id;
        let rises = u8::from(step < MOST_LOST);
        self.rises = self.rises.saturating_add(rises);
        if next {
            self.steady = self.steady.saturating_add(1);
            return if self.steady > STEADY {
                Order::Next
            } else {
                Order::Unknown
            };
        }
        let jumped = self.steady >= STEADY && step < MOST_LOST;
        let few = self.steady > 0 && step <= FEW_LOST;
        // Real losses are neither this large nor this close to each other.
        let stray = if step > FEW_LOST { !hole } else { !jumped };
        if stray && self.steady > 0 && step < MOST_LOST {
            self.strays = self.strays.saturating_add(1);
        }
        self.steady = if jumped { self.steady - STEADY } else { 0 };
        if jumped && self.own {
            Order::Jumped(step - 1)
        } else if self.strays >= SHARED {
            Order::Unknown
        } else if jumped {
            Order::Skipped
        } else if few {
            Order::Perhaps
        } else {
            Order::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Return those of these packets, each of one segment, that are in this order.
    fn find_packets(ids: &[u16], own: bool, order: fn(Order) -> bool) -> Vec<u16> {
        let mut numbers = Numbers {
            own,
            ..Numbers::default()
        };
        let known = ids.iter().filter(|&&id| order(numbers.order(id, 1, false)));
        known.copied().collect()
    }

    fn jumped(order: Order) -> bool {
        matches!(order, Order::Jumped(_))
    }

    fn skipped(order: Order) -> bool {
        order == Order::Skipped
    }

    fn losses(ids: &[u16]) -> Vec<u16> {
        find_packets(ids, true, jumped)
    }

    #[test]
    fn losses_that_follow_each_other_closely_are_all_seen() {
        let with_gaps: Vec<u16> = (1..40).filter(|id| id % 6 != 0).collect();
        assert_eq!(losses(&with_gaps), [7, 13, 19, 25, 31, 37]);
        // A counter that other connections use too jumps as often as not, and a random one always.
        assert!(losses(&[1, 2, 5, 6, 7, 9, 10, 14, 15, 16, 17, 20]).is_empty());
        assert!(losses(&[9, 700, 64_000, 12, 300, 301, 302, 8]).is_empty());
    }

    #[test]
    fn a_counter_that_nothing_shows_to_be_the_connections_tells_of_no_loss() {
        let with_gaps: Vec<u16> = (1..40).filter(|id| id % 6 != 0).collect();
        assert!(find_packets(&with_gaps, false, jumped).is_empty());
        assert_eq!(
            find_packets(&with_gaps, false, skipped),
            [7, 13, 19, 25, 31, 37]
        );
        // Steps that are too large for a loss show that other connections use the counter: then a small step is no
        // evidence either.
        let shared: Vec<u16> = (0..60_u16).map(|at| at + at / 6 * 20).collect();
        assert_eq!(find_packets(&shared, false, skipped).len(), 1);
    }
}
