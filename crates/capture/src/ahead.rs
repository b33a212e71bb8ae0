//! Looking ahead in mapped memory: where the next records begin is only known one by one, each from the length in the one
//! before, and every step would wait for main memory. Traffic repeats itself, so a guess from the sizes of the last two
//! records is nearly always right, and the headers of many records are fetched at the same time.
//!
//! A wrong guess costs a little time and never a result.

#[cfg(not(target_arch = "x86_64"))]
use std::hint::black_box;

/// Records guessed at once: about as many as a core can wait for at the same time.
const DEPTH: usize = 6;
/// What is looked at of nearly every packet: Ethernet, IPv4, TCP.
pub const HEADERS: usize = 54;
const KNOWN: usize = 1024;

/// What followed which sizes.
pub struct Ahead {
    followed: [u32; KNOWN],
    last: [u32; 2],
    /// Where the next record begins, by the last guess.
    expected: usize,
    /// The furthest record that was guessed: its place, and the sizes of the two before it.
    furthest: usize,
    before: [u32; 2],
}

impl Default for Ahead {
    fn default() -> Self {
        Self {
            followed: [0; KNOWN],
            last: [0; 2],
            expected: usize::MAX,
            furthest: 0,
            before: [0; 2],
        }
    }
}

impl Ahead {
    /// Another piece of memory begins.
    pub fn restart(&mut self) {
        self.expected = usize::MAX;
    }

    /// A record of `size` bytes lies at `pos` of `data`, headers in its first `head` bytes.
    #[inline]
    pub fn record(&mut self, data: &[u8], pos: usize, size: usize, head: usize) {
        let at = slot(self.last);
        let guessed = self.followed[at] as usize;
        self.last = [self.last[1], size as u32];
        if guessed == size && pos == self.expected {
            // One record further.
            self.expected = pos + size;
            self.go_on(data, head);
        } else {
            self.followed[at] = size as u32;
            self.expected = pos + size;
            (self.furthest, self.before) = (pos + size, self.last);
            for _ in 0..DEPTH {
                self.go_on(data, head);
            }
        }
    }

    #[inline]
    fn go_on(&mut self, data: &[u8], head: usize) {
        let size = self.followed[slot(self.before)];
        fetch(data, self.furthest);
        fetch(data, self.furthest + head - 1);
        self.before = [self.before[1], size];
        self.furthest += size as usize;
    }
}

/// Have the byte at `at` fetched, without waiting for it.
#[inline]
fn fetch(data: &[u8], at: usize) {
    let Some(byte) = data.get(at) else { return };
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that never faults, whatever lies there.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    black_box(*byte);
}

#[inline]
fn slot(sizes: [u32; 2]) -> usize {
    let mixed = (sizes[0].wrapping_mul(31).wrapping_add(sizes[1])).wrapping_mul(0x9e37_79b9);
    mixed as usize >> 22 & (KNOWN - 1)
}
