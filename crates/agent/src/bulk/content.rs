//! Generates patterns, and computes checksums of files and of patterns.

use std::fs::File;
use std::io::Read;

use guestmark_wire::bulk::{Checksum, Extent, Pattern, PatternExtent};
use guestmark_wire::Failure;
use xxhash_rust::xxh3::Xxh3;

use crate::failure::{os_failure, source_too_short};
use crate::sys;

/// Random bytes repeat after this many, except for the number at the start of each page.
const PERIOD: usize = 1 << 20;
const PAGE: usize = 4096;
const CHUNK: usize = 1 << 20;
const PIECE: usize = 256 << 10; // bytes read at a time: they stay in a processor's cache while they are hashed

/// Generates the bytes of a pattern.
pub struct Generator {
    pattern: Pattern,
    base: Vec<u8>,
}

impl Generator {
    /// Creates a generator of this pattern.
    pub fn new(pattern: Pattern) -> Self {
        let base = match pattern {
            Pattern::Random => generate_random_bytes(PERIOD),
            _ => Vec::new(),
        };
        Self { pattern, base }
    }

    /// Fills a buffer with the first block; `advance` then turns it into any other block of the same size.
    pub fn prepare(&self, buffer: &mut [u8]) {
        match self.pattern {
            Pattern::Zero => buffer.fill(0),
            Pattern::One => buffer.fill(1),
            Pattern::Random => self.write(buffer, 0),
        }
    }

    /// Turns a prepared buffer into the bytes at `offset` (a multiple of its size).
    pub fn advance(&self, buffer: &mut [u8], offset: u64) {
        if self.pattern != Pattern::Random {
            return;
        }
        if buffer.len() % PERIOD == 0 {
            number_pages(buffer, offset);
        } else {
            self.write(buffer, offset);
        }
    }

    fn write(&self, buffer: &mut [u8], offset: u64) {
        let mut at = offset as usize % PERIOD;
        let mut rest = &mut *buffer;
        while !rest.is_empty() {
            let count = rest.len().min(PERIOD - at);
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(&self.base[at..at + count]);
            (rest, at) = (later, 0);
        }
        number_pages(buffer, offset);
    }
}

/// Writes the page's number at the start of every page, so that all pages differ. Neither offset nor length has to be a
/// multiple of the page size.
fn number_pages(buffer: &mut [u8], offset: u64) {
    let end = offset + buffer.len() as u64;
    let mut page = offset / PAGE as u64;
    while page * (PAGE as u64) < end {
        let start = page * PAGE as u64;
        for (index, byte) in page.to_le_bytes().into_iter().enumerate() {
            let at = start + index as u64;
            if (offset..end).contains(&at) {
                buffer[(at - offset) as usize] = byte;
            }
        }
        page += 1;
    }
}

/// Returns pseudo-random bytes (`SplitMix64`, Steele, Lea and Flood 2014), the same ones each time.
fn generate_random_bytes(size: usize) -> Vec<u8> {
    let mut state = 0_u64;
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes
}

/// Computes the checksum of a file or device.
pub fn compute_file_checksum(extent: &Extent) -> Result<Checksum, Failure> {
    let name = String::from_utf8_lossy(&extent.path);
    let failed = |error: &std::io::Error| os_failure(&name, error);
    let mut file = File::open(sys::as_os_path(&extent.path)).map_err(|error| failed(&error))?;
    let mut state = Xxh3::new();
    let mut buffer = vec![0; PIECE];
    let mut size = 0;
    loop {
        let left = extent.length.map_or(u64::MAX, |length| length - size);
        let limit = left.min(PIECE as u64) as usize;
        let count = match file.read(&mut buffer[..limit]) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            other => other.map_err(|error| failed(&error))?,
        };
        if count == 0 {
            break;
        }
        state.update(&buffer[..count]);
        size += count as u64;
    }
    match extent.length {
        Some(length) if size < length => Err(source_too_short(&name, size, length)),
        _ => Ok(make_checksum(&state, size)),
    }
}

/// Computes the checksum of the bytes that a pattern generates.
pub fn compute_pattern_checksum(extent: &PatternExtent) -> Checksum {
    let generator = Generator::new(extent.pattern);
    let mut state = Xxh3::new();
    let mut buffer = vec![0; CHUNK];
    generator.prepare(&mut buffer);
    let mut offset = 0;
    while offset < extent.size {
        generator.advance(&mut buffer, offset);
        let count = (extent.size - offset).min(CHUNK as u64);
        state.update(&buffer[..count as usize]);
        offset += count;
    }
    make_checksum(&state, extent.size)
}

fn make_checksum(state: &Xxh3, size: u64) -> Checksum {
    Checksum {
        xxh3: format!("{:032x}", state.digest128()),
        size,
    }
}

#[cfg(test)]
mod tests {
    use super::{Generator, Pattern, PAGE, PERIOD};

    fn bytes(pattern: Pattern, block: usize, size: usize) -> Vec<u8> {
        let generator = Generator::new(pattern);
        let mut buffer = vec![0xee; block];
        generator.prepare(&mut buffer);
        let mut all = Vec::new();
        while all.len() < size {
            generator.advance(&mut buffer, all.len() as u64);
            all.extend_from_slice(&buffer);
        }
        all.truncate(size);
        all
    }

    #[test]
    fn the_content_does_not_depend_on_the_block_size() {
        let whole = bytes(Pattern::Random, 2 * PERIOD, 3 * PERIOD);
        for block in [512, 1000, PAGE, 3 * PAGE, PERIOD, 3 * PERIOD] {
            assert!(
                bytes(Pattern::Random, block, 3 * PERIOD) == whole,
                "{block}"
            );
        }
        assert!(bytes(Pattern::One, 4096, 10000)
            .iter()
            .all(|&byte| byte == 1));
        assert!(bytes(Pattern::Zero, 4096, 10000)
            .iter()
            .all(|&byte| byte == 0));
    }

    #[test]
    fn no_two_pages_are_alike() {
        let all = bytes(Pattern::Random, PERIOD, 4 * PERIOD);
        let pages: std::collections::HashSet<_> = all.chunks(PAGE).collect();
        assert_eq!(pages.len(), all.len() / PAGE);
    }
}
