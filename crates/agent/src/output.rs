//! Reads a program's output, which is kept or passed on up to a limit; beyond the limit it is only counted.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::frame::Outbox;
use crate::sys;

/// One output stream.
pub struct Output {
    /// Read end; `None` once at its end.
    pub fd: Option<OwnedFd>,
    /// Its number in chunks: 1 for standard output, 2 for standard error.
    pub stream: u8,
    live: bool,
    limit: u64,
    tail: bool,
    /// The kept bytes.
    pub kept: Vec<u8>,
    seen: u64,
}

impl Output {
    /// Creates a stream of which `limit` bytes are kept, or passed on if it is `live`; with `tail` the last ones are
    /// kept.
    pub fn new(fd: Option<OwnedFd>, stream: u8, live: bool, limit: u64, tail: bool) -> Self {
        Self {
            fd,
            stream,
            live,
            limit,
            tail,
            kept: Vec::new(),
            seen: 0,
        }
    }

    /// Reads available bytes, at most a few buffers so that other calls are served too. Returns whether there may be
    /// more.
    pub fn receive(&mut self, id: u64, out: &mut Outbox) -> bool {
        let Some(fd) = &self.fd else { return false };
        let fd = fd.as_raw_fd();
        let mut buffer = vec![0_u8; 64 << 10];
        for _ in 0..4 {
            match sys::read(fd, &mut buffer) {
                Ok(None) => return false,
                Ok(Some(count @ 1..)) => {
                    let room = self.limit.saturating_sub(self.seen).min(count as u64) as usize;
                    self.seen += count as u64;
                    if self.tail && !self.live {
                        self.keep_last(&buffer[..count]);
                        continue;
                    }
                    if room > 0 && self.live {
                        out.push(&guestmark_wire::Chunk {
                            id,
                            stream: self.stream,
                            data: &buffer[..room],
                        });
                    } else {
                        self.kept.extend_from_slice(&buffer[..room]);
                    }
                }
                // A terminal reports EIO when its last user has closed it.
                Ok(Some(0)) | Err(_) => {
                    self.fd = None;
                    return false;
                }
            }
        }
        true
    }

    /// Appends bytes and drops as many of the first ones as exceed the limit.
    fn keep_last(&mut self, data: &[u8]) {
        let limit = self.limit as usize;
        let data = &data[data.len().saturating_sub(limit)..];
        let over = (self.kept.len() + data.len()).saturating_sub(limit);
        self.kept.drain(..over);
        self.kept.extend_from_slice(data);
    }

    /// Returns how many bytes beyond the limit were discarded.
    pub fn discarded(&self) -> u64 {
        self.seen.saturating_sub(self.limit)
    }
}
