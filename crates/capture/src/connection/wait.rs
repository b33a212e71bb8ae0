//! Store the longest uninterrupted wait of a connection and its cause in a single word.

/// A duration in units of 2^14 ns (up to 73 minutes), and the position of its cause, which is less than 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wait(u32);

/// Number of bits of the duration; the bits above them hold the cause.
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

    /// Return the position of the cause; `None` if there was no wait.
    #[must_use]
    pub fn cause(self) -> Option<usize> {
        (self.0 & MOST as u32 > 0).then_some((self.0 >> LENGTH) as usize)
    }

    /// Update the longest wait after the time by cause changed from `before` to `now`; only causes for which `counts`
    /// returns true are considered.
    #[cold]
    pub(crate) fn update(&mut self, before: &[u64], now: &[u64], counts: fn(usize) -> bool) {
        for (cause, (now, before)) in now.iter().zip(before).enumerate() {
            let nanos = now.saturating_sub(*before);
            if nanos > self.nanos() + (1 << UNIT) && counts(cause) {
                let length = (nanos >> UNIT).min(MOST) as u32;
                self.0 = (cause as u32) << LENGTH | length;
            }
        }
    }
}

/// The longest duration of one kind in half a word, with an error of up to a twentieth of a percent or 16 microseconds.
/// An exponent is stored above eleven bits of mantissa, so a longer duration has a greater value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactDuration(u16);

const DIGITS: u32 = 11;

impl CompactDuration {
    /// Nanoseconds, rounded down.
    #[inline]
    #[must_use]
    pub fn nanos(self) -> u64 {
        let exponent = self.0 >> DIGITS;
        u64::from(self.0 & ((1 << DIGITS) - 1)) << exponent << UNIT
    }

    /// Record one uninterrupted wait.
    #[inline]
    pub(crate) fn note(&mut self, nanos: u64) {
        let length = nanos >> UNIT;
        let exponent = (u64::BITS - length.leading_zeros()).saturating_sub(DIGITS);
        let brief = exponent << DIGITS | (length >> exponent) as u32;
        self.0 = self.0.max(u16::try_from(brief).unwrap_or(u16::MAX));
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
        wait.update(&before, &now, counts);
        assert_eq!(wait.cause(), Some(1));
        assert!(wait.nanos().abs_diff(300_000_000) < 20_000);
        before = now;
        now[2] = 10_000_000_000_000;
        wait.update(&before, &now, counts);
        assert_eq!(wait.cause(), Some(2));
        assert_eq!(wait.nanos(), MOST << UNIT);
    }

    proptest::proptest! {
        #[test]
        fn the_longest_of_a_kind_is_kept_to_a_twentieth_of_a_percent(all in proptest::collection::vec(0..1_u64 << 52, 1..9)) {
            let mut brief = CompactDuration::default();
            for &nanos in &all {
                brief.note(nanos);
            }
            let longest = all.into_iter().max().unwrap_or(0);
            proptest::prop_assert!(brief.nanos() <= longest);
            proptest::prop_assert!(longest - brief.nanos() <= (longest / 1000).max(1 << UNIT));
        }
    }
}
