//! Keep the packets that ended the longest waits, by cause; and extract chosen packets from a capture.

use crate::connection::latency::seconds;
use crate::connection::spent::{on, Spent};
use crate::results::figures;
use crate::wire::fault::Fault;
use crate::wire::input::Source;
use crate::wire::packet::{Packet, PacketSink};
use crate::wire::pcap;
use crate::wire::pcapng;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::io::{self, Write};

/// Maximum number of packets kept for each cause.
const MOST: usize = 32;
const NANOSECONDS: u8 = 9;

/// A packet that ended one of the longest waits.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ended {
    /// Its number in the capture; the first packet has number 1.
    pub frame: u64,
    /// The cause of the wait, as in [`figures::name_cause`].
    pub cause: &'static str,
    /// The duration of the wait.
    pub waited_s: f64,
}

/// The nanoseconds of a wait and the packet that ended it: the shortest wait sorts last, and among equals the last
/// packet.
type Wait = Reverse<(u64, Reverse<u64>)>;

/// The packets that ended the longest waits for each cause.
#[derive(Debug, Default)]
pub struct LongestWaits {
    /// The waits of each cause, the shortest first. Causes are numbered as if the client were end 0.
    longest: [BinaryHeap<Wait>; on::COUNT],
    /// The shortest kept wait of each cause, and its packet; 0 if there is still room.
    least: [(u64, u64); on::COUNT],
}

impl LongestWaits {
    /// Record that the packet `frame` changed the time by cause of a connection whose client is end `client`.
    #[inline]
    pub(crate) fn record(&mut self, frame: u64, client: usize, before: &Spent, now: &Spent) {
        for (position, (now, before)) in now.iter().zip(before).enumerate() {
            let paired = position < on::LATENCY;
            let position = if paired { position ^ client } else { position };
            // Nearly every wait is shorter than the shortest kept one, or as long and later, so return early.
            let waited = now.saturating_sub(*before);
            let (shortest, last) = self.least[position];
            if waited > 0 && (waited > shortest || waited == shortest && frame < last) {
                self.keep(position, (waited, Reverse(frame)));
            }
        }
    }

    #[cold]
    fn keep(&mut self, position: usize, wait: (u64, Reverse<u64>)) {
        let list = &mut self.longest[position];
        list.push(Reverse(wait));
        if list.len() > MOST {
            list.pop();
            if let Some(&Reverse((least, Reverse(last)))) = list.peek() {
                self.least[position] = (least, last);
            }
        }
    }

    /// Return all packets by cause, the longest wait of each first.
    #[must_use]
    pub fn found(self) -> Vec<Ended> {
        let mut found = Vec::new();
        for (position, list) in self.longest.into_iter().enumerate() {
            for Reverse((waited, Reverse(frame))) in list.into_sorted_vec() {
                found.push(Ended {
                    frame,
                    cause: figures::name_cause(position, 0),
                    waited_s: seconds(waited),
                });
            }
        }
        found
    }
}

/// Write the packets `frames` of the capture `name` as pcapng to `out`.
///
/// # Errors
///
/// If the capture cannot be read up to the last of them or contains no packets, or `out` cannot be written.
pub fn extract(name: &str, frames: &BTreeSet<u64>, out: &mut dyn Write) -> Result<(), Fault> {
    let mut source = Source::open(name).map_err(|e| Fault::io(0, &e))?;
    source.need(4096).map_err(|e| Fault::io(0, &e))?;
    let mut picked = PacketExtractor {
        frames,
        out,
        frame: 0,
        left: frames.len(),
        sections: 0,
        interfaces: HashMap::new(),
        error: None,
    };
    picked.write(&block(
        0x0a0d_0d0a,
        &[
            &0x1a2b_3c4d_u32.to_le_bytes(),
            &[1, 0, 0, 0],
            &u64::MAX.to_le_bytes(),
        ],
    ));
    let head = source.data();
    let read = if pcap::matches(head) {
        pcap::read(&mut source, &mut picked)
    } else if pcapng::matches(head) {
        pcapng::read(&mut source, &mut picked)
    } else {
        Err(Fault::new(0, "it contains no packets")
            .hint("packets can be extracted from pcap and pcapng files"))
    };
    if let Some(error) = picked.error {
        return Err(Fault::io(0, &error));
    }
    // Stop after the last requested packet.
    if picked.left == 0 {
        Ok(())
    } else {
        read.and_then(|()| Err(Fault::new(0, "it has fewer packets than requested")))
    }
}

struct PacketExtractor<'p> {
    frames: &'p BTreeSet<u64>,
    out: &'p mut dyn Write,
    frame: u64,
    left: usize,
    sections: u32,
    /// The numbers of the interfaces in the output, by section and number in the input.
    interfaces: HashMap<(u32, u32), u32>,
    error: Option<io::Error>,
}

impl PacketExtractor<'_> {
    fn write(&mut self, bytes: &[u8]) {
        if self.error.is_none() {
            self.error = self.out.write_all(bytes).err();
        }
    }
}

/// Make a block of pcapng in little-endian order.
fn block(kind: u32, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let padded = body.len().next_multiple_of(4);
    let length = (padded as u32 + 12).to_le_bytes();
    let mut out = [&kind.to_le_bytes()[..], &length, &body].concat();
    out.resize(8 + padded, 0);
    out.extend_from_slice(&length);
    out
}

impl PacketSink for PacketExtractor<'_> {
    fn packet(&mut self, packet: &Packet<'_>) {
        self.frame += 1;
        if !self.frames.contains(&self.frame) {
            return;
        }
        self.left -= 1;
        let next = self.interfaces.len() as u32;
        let key = (self.sections, packet.interface);
        let number = *self.interfaces.entry(key).or_insert(next);
        if number == next {
            let clock = [9, 0, 1, 0, NANOSECONDS, 0, 0, 0, 0, 0, 0, 0];
            self.write(&block(
                1,
                &[&packet.link.to_le_bytes(), &[0; 6], &clock[..]],
            ));
        }
        let ticks = packet.ts.max(0) as u64;
        self.write(&block(
            6,
            &[
                &number.to_le_bytes(),
                &((ticks >> 32) as u32).to_le_bytes(),
                &(ticks as u32).to_le_bytes(),
                &(packet.data.len() as u32).to_le_bytes(),
                &packet.wire_len.to_le_bytes(),
                packet.data,
            ],
        ));
    }

    fn dropped(&mut self, _packets: u64) {}

    fn section(&mut self) {
        self.sections += 1;
    }
}
