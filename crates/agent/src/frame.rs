//! Frames: a length and a payload. Bounded in both directions.

use std::io;
use std::os::fd::RawFd;

use guestmark_wire::MAX_FRAME;
use serde::Serialize;

use crate::sys;

const HEADER: usize = 4;

/// Bytes received that are not yet taken as frames.
///
/// The buffer has one fixed size; its pages are touched only as far as frames reach.
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// A frame longer than [`MAX_FRAME`] was announced.
#[derive(Debug, PartialEq, Eq)]
pub struct Oversized(pub usize);

impl Decoder {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            buffer: vec![0; HEADER + MAX_FRAME],
            start: 0,
            end: 0,
        }
    }

    /// Where to put received bytes; never empty as long as frames are taken when complete.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < self.wanted() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// Bytes missing for the frame under way.
    fn wanted(&self) -> usize {
        let have = self.end - self.start;
        self.announced()
            .map_or(HEADER, |length| HEADER + length.min(MAX_FRAME))
            .saturating_sub(have)
    }

    fn announced(&self) -> Option<usize> {
        let header = self.buffer[self.start..self.end].first_chunk::<HEADER>()?;
        Some(u32::from_le_bytes(*header) as usize)
    }

    /// Says that `count` bytes were put into [`Decoder::space`].
    pub fn filled(&mut self, count: usize) {
        self.end += count;
    }

    /// Takes the next whole frame.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, Oversized> {
        let Some(length) = self.announced() else {
            return Ok(None);
        };
        if length > MAX_FRAME {
            return Err(Oversized(length));
        }
        let from = self.start + HEADER;
        if self.end - from < length {
            return Ok(None);
        }
        self.start = from + length;
        Ok(Some(&self.buffer[from..from + length]))
    }
}

/// Frames waiting to be sent.
#[derive(Default)]
pub struct Outbox {
    buffer: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Bytes waiting.
    pub fn len(&self) -> usize {
        self.buffer.len() - self.sent
    }

    /// Appends a message as one frame.
    pub fn push<T: Serialize>(&mut self, message: &T) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; HEADER]);
        // Writing into memory cannot fail and our types have nothing that MessagePack cannot hold.
        rmp_serde::encode::write_named(&mut self.buffer, message)
            .expect("message types are encodable");
        self.patch(start);
    }

    /// Appends a chunk frame whose data `fill` reads into the space given (at most `limit` bytes): saves copying bulk
    /// data. `fill` returns how many bytes it put there; with 0 or an error nothing is sent.
    pub fn push_chunk(
        &mut self,
        id: u64,
        stream: u8,
        limit: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; HEADER]);
        let chunk = guestmark_wire::Chunk {
            id,
            stream,
            data: &[],
        };
        rmp_serde::encode::write_named(&mut self.buffer, &chunk)
            .expect("message types are encodable");
        // The empty byte string comes last, as `bin 8` (2 bytes): make it a `bin 32` (5 bytes) whose length follows.
        self.buffer.truncate(self.buffer.len() - 2);
        self.buffer.push(0xc6);
        let length_at = self.buffer.len();
        let data_at = length_at + 4;
        self.buffer.resize(data_at + limit, 0);
        let filled = fill(&mut self.buffer[data_at..]);
        match filled {
            Ok(count @ 1..) => {
                self.buffer[length_at..data_at].copy_from_slice(&(count as u32).to_be_bytes());
                self.buffer.truncate(data_at + count);
                self.patch(start);
            }
            _ => self.buffer.truncate(start),
        }
        filled
    }

    fn patch(&mut self, start: usize) {
        let length = (self.buffer.len() - start - HEADER) as u32;
        self.buffer[start..start + HEADER].copy_from_slice(&length.to_le_bytes());
    }

    /// Sends as much as the channel takes now.
    pub fn flush(&mut self, fd: RawFd) -> io::Result<()> {
        while self.sent < self.buffer.len() {
            match sys::write(fd, &self.buffer[self.sent..])? {
                Some(count) => self.sent += count,
                None => return Ok(()),
            }
        }
        self.sent = 0;
        self.buffer.clear();
        self.buffer.shrink_to(64 << 10);
        Ok(())
    }
}
