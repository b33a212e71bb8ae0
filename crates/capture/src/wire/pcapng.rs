//! Read pcapng: any number of sections, each with its own byte order and interfaces, and each interface with its own
//! clock.

use crate::wire::fault::Fault;
use crate::wire::input::{Source, MAX_RECORD};
use crate::wire::packet::{Direction, Packet, PacketSink, NO_TIME};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// More interfaces than this in one section mean a damaged file.
const MAX_INTERFACES: usize = 65_536;

/// Whether the input begins like pcapng.
#[must_use]
pub fn matches(head: &[u8]) -> bool {
    head.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a])
}

#[derive(Clone, Copy)]
struct Interface {
    link: u16,
    snaplen: u32,
    clock: Clock,
    drops: Drops,
}

/// How many packets were lost on one interface: as its packets say in sum, and as its statistics say, which are
/// cumulative. A file may have both counts, of the same packets, so the larger one is reported.
#[derive(Clone, Copy, Default)]
struct Drops {
    by_packets: u64,
    by_statistics: u64,
    reported: u64,
}

impl Drops {
    /// Return how many packets are known now that were not reported.
    fn report(&mut self) -> u64 {
        let known = self.by_packets.max(self.by_statistics);
        let more = known.saturating_sub(self.reported);
        self.reported += more;
        more
    }
}

/// `if_tsresol` and `if_tsoffset`.
#[derive(Clone, Copy)]
struct Clock {
    resolution: u8,
    offset_s: i64,
}

impl Clock {
    /// Convert to nanoseconds since 1970. Finer clocks are truncated, and values out of range saturate.
    #[inline]
    fn nanos(self, ticks: u64) -> i64 {
        let nanos = match self.resolution {
            6 => i128::from(ticks) * 1000,
            9 => i128::from(ticks),
            r if r & 0x80 != 0 => {
                let shift = u32::from(r & 0x7f);
                (i128::from(ticks) * 1_000_000_000) >> shift
            }
            r if r <= 9 => i128::from(ticks) * 10_i128.pow(u32::from(9 - r)),
            r if r - 9 <= 20 => i128::from(ticks) / 10_i128.pow(u32::from(r - 9)),
            _ => 0,
        };
        let whole = nanos + i128::from(self.offset_s) * 1_000_000_000;
        i64::try_from(whole)
            .unwrap_or(if whole < 0 {
                i64::MIN / 2
            } else {
                i64::MAX / 2
            })
            .clamp(i64::MIN / 2, i64::MAX / 2)
    }
}

struct Reader<'s, S> {
    sink: &'s mut S,
    big: bool,
    interfaces: Vec<Interface>,
}

/// Read packets until the end of the input or a fault.
pub fn read(source: &mut Source<'_>, sink: &mut impl PacketSink) -> Result<(), Fault> {
    let mut reader = Reader {
        sink,
        big: false,
        interfaces: Vec::new(),
    };
    loop {
        let offset = source.offset();
        if !source.need(12).map_err(|e| Fault::io(offset, &e))? {
            let left = source.data().len();
            return if left == 0 {
                Ok(())
            } else {
                Err(make_cut_error(offset, left, 12))
            };
        }
        // Read as many whole blocks as are in the buffer, then more bytes.
        let mut pos = 0;
        let data = source.data();
        let wanted = loop {
            let here = &data[pos..];
            if here.len() < 12 {
                break 12;
            }
            let at = offset + pos as u64;
            let length = reader
                .block_length(here)
                .map_err(|reason| make_damage_error(at, reason))?;
            let Some(block) = here.get(..length) else {
                break length;
            };
            reader
                .read_block(block)
                .map_err(|reason| make_damage_error(at, reason))?;
            pos += length;
        };
        source.consume(pos);
        let offset = source.offset();
        if !source.need(wanted).map_err(|e| Fault::io(offset, &e))? {
            let left = source.data().len();
            return if left == 0 {
                Ok(())
            } else {
                Err(make_cut_error(offset, left, wanted))
            };
        }
    }
}

fn make_cut_error(offset: u64, left: usize, wanted: usize) -> Fault {
    Fault::new(
        offset,
        format!("the last block is cut short: {left} of {wanted} bytes are present"),
    )
    .hint("the capture was still being written, or was not copied completely")
}

fn make_damage_error(offset: u64, reason: String) -> Fault {
    Fault::new(offset, reason).hint("the file is damaged from here on")
}

impl<S: PacketSink> Reader<'_, S> {
    fn u32(&self, data: &[u8], at: usize) -> u32 {
        let bytes = data
            .get(at..at + 4)
            .and_then(|b| b.try_into().ok())
            .unwrap_or([0; 4]);
        if self.big {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        }
    }

    fn u16(&self, data: &[u8], at: usize) -> u16 {
        let bytes = data
            .get(at..at + 2)
            .and_then(|b| b.try_into().ok())
            .unwrap_or([0; 2]);
        if self.big {
            u16::from_be_bytes(bytes)
        } else {
            u16::from_le_bytes(bytes)
        }
    }

    fn u64(&self, data: &[u8], at: usize) -> u64 {
        let (first, second) = (
            u64::from(self.u32(data, at)),
            u64::from(self.u32(data, at + 4)),
        );
        if self.big {
            first << 32 | second
        } else {
            second << 32 | first
        }
    }

    /// Return the total length of the block that begins here; a section header also sets the byte order.
    fn block_length(&mut self, data: &[u8]) -> Result<usize, String> {
        if matches(data) {
            self.big = match data[8..12] {
                [0x1a, 0x2b, 0x3c, 0x4d] => true,
                [0x4d, 0x3c, 0x2b, 0x1a] => false,
                _ => return Err("a section header without a byte-order mark".into()),
            };
        }
        let length = self.u32(data, 4) as usize;
        if length < 12 || length % 4 != 0 {
            return Err(format!("a block claims a length of {length} bytes"));
        }
        if length > MAX_RECORD {
            return Err(format!(
                "a block claims a length of {length} bytes, more than {MAX_RECORD}"
            ));
        }
        Ok(length)
    }

    #[inline]
    fn read_block(&mut self, block: &[u8]) -> Result<(), String> {
        let trailer = self.u32(block, block.len() - 4) as usize;
        if trailer != block.len() {
            return Err(format!(
                "a block's two lengths differ: {} and {trailer}",
                block.len()
            ));
        }
        let body = &block[8..block.len() - 4];
        match self.u32(block, 0) {
            ENHANCED_PACKET => self.read_packet(body, self.u32(body, 0), 4, 20),
            OLD_PACKET => self.read_packet(body, u32::from(self.u16(body, 0)), 4, 20),
            SIMPLE_PACKET => self.read_simple_packet(body),
            INTERFACE => self.read_interface(body),
            STATISTICS => {
                self.read_statistics(body);
                Ok(())
            }
            SECTION => self.read_section(body),
            _ => Ok(()),
        }
    }

    fn read_section(&mut self, body: &[u8]) -> Result<(), String> {
        let major = self.u16(body, 4);
        if body.len() < 16 || major != 1 {
            return Err(format!(
                "a section has version {major}, but only version 1 is supported"
            ));
        }
        self.interfaces.clear();
        self.sink.section();
        Ok(())
    }

    fn read_interface(&mut self, body: &[u8]) -> Result<(), String> {
        if body.len() < 8 {
            return Err("an interface description is too short".into());
        }
        if self.interfaces.len() >= MAX_INTERFACES {
            return Err(format!(
                "more than {MAX_INTERFACES} interfaces in one section"
            ));
        }
        let mut clock = Clock {
            resolution: 6,
            offset_s: 0,
        };
        self.read_options(&body[8..], |reader, code, value| {
            match (code, value.len()) {
                (9, 1..) => clock.resolution = value[0],
                (14, 8..) => clock.offset_s = reader.u64(value, 0) as i64,
                _ => {}
            }
        });
        let interface = Interface {
            link: self.u16(body, 0),
            snaplen: self.u32(body, 4),
            clock,
            drops: Drops::default(),
        };
        self.interfaces.push(interface);
        Ok(())
    }

    fn find_interface(&self, number: u32) -> Result<Interface, String> {
        let count = self.interfaces.len();
        self.interfaces
            .get(number as usize)
            .copied()
            .ok_or_else(|| {
                format!("a packet refers to interface {number}, but only {count} are described")
            })
    }

    #[inline]
    fn read_packet(
        &mut self,
        body: &[u8],
        number: u32,
        time_at: usize,
        data_at: usize,
    ) -> Result<(), String> {
        let interface = self.find_interface(number)?;
        let (captured, original) = (self.u32(body, 12), self.u32(body, 16));
        let end = data_at + captured as usize;
        if end > body.len() {
            return Err(format!(
                "a packet claims {captured} captured bytes in a block of {}",
                body.len() + 12
            ));
        }
        let ticks =
            u64::from(self.u32(body, time_at)) << 32 | u64::from(self.u32(body, time_at + 4));
        let mut direction = Direction::Unknown;
        let mut dropped = 0;
        let options = body.get((end + 3) & !3..).unwrap_or(&[]);
        if !options.is_empty() {
            self.read_options(options, |reader, code, value| match (code, value.len()) {
                (2, 4..) => {
                    direction = match reader.u32(value, 0) & 3 {
                        1 => Direction::In,
                        2 => Direction::Out,
                        _ => Direction::Unknown,
                    }
                }
                (4, 8..) => dropped = reader.u64(value, 0),
                _ => {}
            });
        }
        // All bits set means "unknown".
        if dropped > 0 && dropped != u64::MAX {
            if let Some(Interface { drops, .. }) = self.interfaces.get_mut(number as usize) {
                drops.by_packets = drops.by_packets.saturating_add(dropped);
                self.sink.dropped(drops.report());
            }
        }
        self.sink.packet(&Packet {
            link: interface.link,
            interface: number,
            ts: interface.clock.nanos(ticks),
            data: &body[data_at..end],
            wire_len: original.max(captured),
            direction,
        });
        Ok(())
    }

    /// Read a packet without a time: it is counted, but cannot be used to time anything.
    fn read_simple_packet(&mut self, body: &[u8]) -> Result<(), String> {
        let interface = self.find_interface(0)?;
        let original = self.u32(body, 0);
        let limit = if interface.snaplen == 0 {
            u32::MAX
        } else {
            interface.snaplen
        };
        let data = body.get(4..).unwrap_or(&[]);
        let captured = (original.min(limit) as usize).min(data.len());
        self.sink.packet(&Packet {
            link: interface.link,
            interface: 0,
            ts: NO_TIME,
            data: &data[..captured],
            wire_len: original.max(captured as u32),
            direction: Direction::Unknown,
        });
        Ok(())
    }

    /// Read the counters, which are cumulative per interface.
    fn read_statistics(&mut self, body: &[u8]) {
        let (mut by_interface, mut by_system) = (0, 0);
        self.read_options(body.get(12..).unwrap_or(&[]), |reader, code, value| match (
            code,
            value.len(),
        ) {
            (5, 8..) => by_interface = reader.u64(value, 0),
            (7, 8..) => by_system = reader.u64(value, 0),
            _ => {}
        });
        // All bits set means "unknown".
        let total = [by_interface, by_system]
            .iter()
            .filter(|&&v| v != u64::MAX)
            .fold(0, |a: u64, &v| a.saturating_add(v));
        let number = self.u32(body, 0) as usize;
        if let Some(Interface { drops, .. }) = self.interfaces.get_mut(number) {
            drops.by_statistics = drops.by_statistics.max(total);
            self.sink.dropped(drops.report());
        }
    }

    fn read_options(&self, mut data: &[u8], mut each: impl FnMut(&Self, u16, &[u8])) {
        while data.len() >= 4 {
            let (code, length) = (self.u16(data, 0), usize::from(self.u16(data, 2)));
            let Some(value) = data.get(4..4 + length) else {
                return;
            };
            if code == 0 {
                return;
            }
            each(self, code, value);
            data = data.get(4 + length.next_multiple_of(4)..).unwrap_or(&[]);
        }
    }
}
