//! The longest time that a connection waited for one thing, in the room of a word.

/// A duration in units of 2^14 nanoseconds (up to 73 minutes), and the position of what it was put down to, below 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wait(u32);

/// Bits of the duration; the cause stands above them.
const LENGTH: u32 = 28;
const MOST: u64 = (1 << LENGTH) - 1;
const UNIT: u32 = 14;

impl Wait {
    /// Nanoseconds, rounded down.
    #[inline]
    #[must_use]
    pub fn nanos(self) -> u64 {
        u64::from(self.0 & MOST as u32) << UNIT
    }

    /// What was waited for, by its position; `None` where nothing was.
    #[must_use]
    pub fn cause(self) -> Option<usize> {
        (self.0 & MOST as u32 > 0).then_some((self.0 >> LENGTH) as usize)
    }

    /// Time by cause was `before`, and is `now`: was anything waited for longer, of what `counts`?
    #[cold]
    pub(crate) fn see(&mut self, before: &[u64], now: &[u64], counts: fn(usize) -> bool) {
        for (cause, (now, before)) in now.iter().zip(before).enumerate() {
            let nanos = now.saturating_sub(*before);
            if nanos > self.nanos() + (1 << UNIT) && counts(cause) {
                let length = (nanos >> UNIT).min(MOST) as u32;
                self.0 = (cause as u32) << LENGTH | length;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_is_kept_with_its_cause() {
        let mut wait = Wait::default();
        assert_eq!((wait.nanos(), wait.cause()), (0, None));
        let counts = |cause| cause != 3;
        let (mut before, mut now) = ([0; 4], [0, 300_000_000, 0, 9_000_000_000]);
        wait.see(&before, &now, counts);
        assert_eq!(wait.cause(), Some(1));
        assert!(wait.nanos().abs_diff(300_000_000) < 20_000);
        before = now;
        now[2] = 10_000_000_000_000;
        wait.see(&before, &now, counts);
        assert_eq!(wait.cause(), Some(2));
        assert_eq!(wait.nanos(), MOST << UNIT);
    }
}
