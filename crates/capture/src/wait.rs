//! The longest time that a connection waited for one thing, in the room of a word.

use crate::cause::{on, Spent};

/// A duration in units of 2^14 nanoseconds (up to 73 minutes), and what it was put down to.
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

    /// What was waited for: a position in [`Spent`]; `None` where nothing was.
    #[must_use]
    pub fn cause(self) -> Option<usize> {
        (self.0 & MOST as u32 > 0).then_some((self.0 >> LENGTH) as usize)
    }

    /// Time was spent like `before`, and is now: was anything waited for longer? Idleness is nobody's wait, and what is unknown
    /// was perhaps none.
    #[cold]
    pub(crate) fn see(&mut self, before: &Spent, now: &Spent) {
        for (cause, (now, before)) in now.iter().zip(before).enumerate() {
            let nanos = now.saturating_sub(*before);
            if nanos > self.nanos() + (1 << UNIT) && !matches!(cause, on::IDLE | on::UNKNOWN) {
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
        let (mut before, mut now) = ([0; on::COUNT], [0; on::COUNT]);
        now[on::RECOVERY] = 300_000_000;
        now[on::IDLE] = 9_000_000_000;
        wait.see(&before, &now);
        assert_eq!(wait.cause(), Some(on::RECOVERY));
        assert!(wait.nanos().abs_diff(300_000_000) < 20_000);
        before = now;
        now[on::APPLICATION + 1] = 10_000_000_000_000;
        wait.see(&before, &now);
        assert_eq!(wait.cause(), Some(on::APPLICATION + 1));
        assert_eq!(wait.nanos(), MOST << UNIT);
    }
}
