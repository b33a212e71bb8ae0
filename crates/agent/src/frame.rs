//! Reads and writes frames, each of which is a length and a payload. Memory is bounded in both directions.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::RawFd;

use guestmark_wire::MAX_FRAME;
use serde::Serialize;

use crate::sys;

const HEADER: usize = 4;

/// Received bytes that have not been taken as frames yet.
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
    /// Creates an empty decoder.
    pub fn new() -> Self {
        Self {
            buffer: vec![0; HEADER + MAX_FRAME],
            start: 0,
            end: 0,
        }
    }

    /// Returns the space for received bytes; it is never empty as long as complete frames are taken.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < self.wanted() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// Returns how many bytes of the current frame are missing.
    pub fn wanted(&self) -> usize {
        let have = self.end - self.start;
        self.announced()
            .map_or(HEADER, |length| HEADER + length.min(MAX_FRAME))
            .saturating_sub(have)
    }

    fn announced(&self) -> Option<usize> {
        let header = self.buffer[self.start..self.end].first_chunk::<HEADER>()?;
        Some(u32::from_le_bytes(*header) as usize)
    }

    /// Notes that `count` bytes were put into [`Decoder::space`].
    pub fn note_received(&mut self, count: usize) {
        self.end += count;
    }

    /// Reads what an earlier decoder of the same channel has left in `file`.
    pub fn load_leftover(&mut self, mut file: &File) -> io::Result<()> {
        file.rewind()?;
        self.end += file.read(self.space())?;
        file.set_len(0)
    }

    /// Writes what was received after the last taken frame to `file`, for the next decoder of this channel.
    pub fn save_leftover(&mut self, mut file: &File) -> io::Result<()> {
        file.rewind()?;
        file.write_all(&self.buffer[self.start..self.end])
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
    /// How many bytes are waiting.
    pub fn len(&self) -> usize {
        self.buffer.len() - self.sent
    }

    /// Appends a message as one frame.
    pub fn push<T: Serialize>(&mut self, message: &T) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; HEADER]);
        // Writing to memory cannot fail, and our types contain nothing that MessagePack cannot hold.
        rmp_serde::encode::write_named(&mut self.buffer, message)
            .expect("message types are encodable");
        self.patch(start);
    }

    /// Appends a chunk frame whose data `fill` reads directly into the given space (at most `limit` bytes), which
    /// avoids a copy. `fill` returns how many bytes it wrote; with 0 or an error nothing is sent.
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
        // The empty byte string is last, as `bin 8` (2 bytes): turn it into a `bin 32` (5 bytes), whose length follows.
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

    /// Acknowledges that `count` more bytes were taken from the channel.
    pub fn acknowledge(&mut self, count: usize) {
        let mark = guestmark_wire::ACKNOWLEDGEMENT | count as u32;
        self.buffer.extend_from_slice(&mark.to_le_bytes());
    }

    fn patch(&mut self, start: usize) {
        let length = (self.buffer.len() - start - HEADER) as u32;
        self.buffer[start..start + HEADER].copy_from_slice(&length.to_le_bytes());
    }

    /// Sends as much as the channel accepts now.
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

#[cfg(test)]
mod tests {
    use super::{Decoder, Outbox, HEADER, MAX_FRAME};
    use guestmark_wire::{Call, Chunk, Exec, Kill, Request, StandardOutput, Winsize, MAX_CHUNK};
    use proptest::prelude::*;
    use serde_bytes::ByteBuf;

    /// Feeds `stream` in pieces of the given sizes (cycled) and takes all frames until one is refused.
    fn frames(stream: &[u8], sizes: &[usize]) -> (Vec<Vec<u8>>, bool) {
        let (mut decoder, mut taken, mut left) = (Decoder::new(), Vec::new(), stream);
        let capacity = decoder.buffer.capacity();
        for size in sizes.iter().cycle() {
            let space = decoder.space();
            assert!(!space.is_empty(), "a complete frame was not taken");
            let count = (*size).min(space.len()).min(left.len());
            space[..count].copy_from_slice(&left[..count]);
            decoder.note_received(count);
            left = &left[count..];
            loop {
                match decoder.next_frame() {
                    Ok(Some(frame)) => taken.push(frame.to_vec()),
                    Ok(None) => break,
                    Err(_) => return (taken, true),
                }
            }
            assert_eq!(
                decoder.buffer.capacity(),
                capacity,
                "the buffer must never grow"
            );
            if left.is_empty() {
                break;
            }
        }
        (taken, false)
    }

    fn framed(payload: &[u8]) -> Vec<u8> {
        [&(payload.len() as u32).to_le_bytes(), payload].concat()
    }

    fn strings() -> impl Strategy<Value = Vec<ByteBuf>> {
        let string = proptest::collection::vec(any::<u8>(), 0..40).prop_map(ByteBuf::from);
        proptest::collection::vec(string, 0..6)
    }

    fn execs() -> impl Strategy<Value = Exec> {
        let who = (
            any::<Option<u32>>(),
            any::<Option<u32>>(),
            any::<Option<Vec<u32>>>(),
        );
        let how = (
            any::<bool>(),
            any::<Option<u64>>(),
            any::<u64>(),
            any::<bool>(),
        );
        let size = proptest::option::of((any::<u16>(), any::<u16>()));
        (strings(), proptest::option::of(strings()), who, how, size).prop_map(
            |(argv, env, who, how, size)| Exec {
                argv,
                env,
                cwd: None,
                uid: who.0,
                gid: who.1,
                groups: who.2,
                stdin: how.0,
                time_limit_ns: how.1,
                output_limit: how.2,
                tail: how.3,
                stream: how.3,
                pty: size.map(|(rows, cols)| Winsize { rows, cols }),
                counters: Vec::new(),
                stdout: StandardOutput::default(),
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn frames_survive_any_division(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..20),
            sizes in proptest::collection::vec(1_usize..200, 1..10),
        ) {
            let stream: Vec<u8> = payloads.iter().flat_map(|payload| framed(payload)).collect();
            prop_assert_eq!(frames(&stream, &sizes), (payloads, false));
        }

        #[test]
        fn truncated_streams_give_the_whole_frames_only(
            payload in proptest::collection::vec(any::<u8>(), 1..300), cut in any::<prop::sample::Index>(),
        ) {
            let whole = framed(&payload);
            let stream = [whole.clone(), whole[..cut.index(whole.len())].to_vec()].concat();
            prop_assert_eq!(frames(&stream, &[7]), (vec![payload], false));
        }

        #[test]
        fn oversized_frames_are_refused_at_once(length in MAX_FRAME as u32 + 1.., tail in any::<[u8; 16]>()) {
            let stream = [length.to_le_bytes().as_slice(), &tail].concat();
            prop_assert_eq!(frames(&stream, &[5]), (vec![], true));
        }

        #[test]
        fn garbage_never_panics(stream in proptest::collection::vec(any::<u8>(), 0..2000)) {
            for frame in frames(&stream, &[64]).0 {
                let _ = rmp_serde::from_slice::<Request<'_>>(&frame);
            }
            let _ = rmp_serde::from_slice::<Request<'_>>(&stream);
        }

        #[test]
        fn requests_come_back_as_they_were(id in any::<u64>(), exec in execs(), data in any::<Vec<u8>>(), signal in any::<i32>()) {
            for call in [Call::Exec(Box::new(exec)), Call::Data(&data), Call::Kill(Kill { signal }), Call::Sync] {
                let request = Request { id, call, ahead: false };
                let encoded = rmp_serde::to_vec_named(&request).unwrap();
                prop_assert_eq!(rmp_serde::from_slice::<Request<'_>>(&encoded).unwrap(), request.clone());
                // A changed or missing byte may give anything but a panic.
                for at in 0..encoded.len().min(200) {
                    let mut broken = encoded.clone();
                    broken[at] ^= 0x81;
                    let _ = rmp_serde::from_slice::<Request<'_>>(&broken);
                    prop_assert!(rmp_serde::from_slice::<Request<'_>>(&encoded[..at]).is_err());
                }
            }
        }

        #[test]
        fn chunks_filled_in_place_equal_encoded_ones(id in any::<u64>(), data in proptest::collection::vec(any::<u8>(), 1..70_000)) {
            let mut out = Outbox::default();
            out.push_chunk(id, 2, MAX_CHUNK, |space| {
                space[..data.len()].copy_from_slice(&data);
                Ok(data.len())
            }).unwrap();
            let (taken, refused) = frames(&out.buffer, &[4096]);
            prop_assert!(!refused);
            let chunk: Chunk<'_> = rmp_serde::from_slice(&taken[0]).unwrap();
            prop_assert_eq!(chunk, Chunk { id, stream: 2, data: &data });
            prop_assert_eq!(taken.len(), 1);
        }
    }

    #[test]
    fn a_length_that_lies_allocates_nothing() {
        // An array of 2^32-1 strings, a byte string of 2^32-1 bytes, a map of as many entries.
        for lie in [
            &b"\xdd\xff\xff\xff\xff"[..],
            b"\xc6\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
        ] {
            let head = b"\x82\xa2id\x01\xa4call\x81\xa4exec\x81\xa4argv".as_slice();
            let frame = [head, lie].concat();
            assert!(rmp_serde::from_slice::<Request<'_>>(&frame).is_err());
        }
    }

    #[test]
    fn nothing_is_sent_for_an_empty_or_failed_chunk() {
        let mut out = Outbox::default();
        assert_eq!(out.push_chunk(1, 1, 100, |_| Ok(0)).unwrap(), 0);
        assert!(out
            .push_chunk(1, 1, 100, |_| Err(std::io::Error::other("x")))
            .is_err());
        assert_eq!(out.len(), 0);
        let full = Chunk {
            id: u64::MAX,
            stream: 1,
            data: &vec![0; MAX_CHUNK],
        };
        out.push(&full);
        assert!(out.len() <= HEADER + MAX_FRAME);
    }
}
