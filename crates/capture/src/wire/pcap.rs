//! Read the classic capture file: microseconds or nanoseconds, either byte order.

use crate::wire::fault::Fault;
use crate::wire::input::Source;
use crate::wire::packet::{Direction, Packet, PacketSink};

/// Maximum length of a captured packet in libpcap and Wireshark.
pub const MAX_CAPTURED: u32 = 262_144;

/// Whether the input begins like a classic capture file.
#[must_use]
pub fn matches(head: &[u8]) -> bool {
    head.first_chunk()
        .is_some_and(|magic| parse_magic(*magic).is_some())
}

/// Return (big endian, nanoseconds) for a file's magic number; `None` if it has another one.
fn parse_magic(magic: [u8; 4]) -> Option<(bool, bool)> {
    match magic {
        [0xa1, 0xb2, 0xc3, 0xd4] => Some((true, false)),
        [0xd4, 0xc3, 0xb2, 0xa1] => Some((false, false)),
        [0xa1, 0xb2, 0x3c, 0x4d] => Some((true, true)),
        [0x4d, 0x3c, 0xb2, 0xa1] => Some((false, true)),
        _ => None,
    }
}

/// Read packets until the end of the input or a fault.
pub fn read(source: &mut Source<'_>, sink: &mut impl PacketSink) -> Result<(), Fault> {
    if !source
        .need(24)
        .map_err(|e| Fault::io(source.offset(), &e))?
    {
        return Err(Fault::new(
            0,
            "the file header is cut short: a complete one has 24 bytes",
        ));
    }
    let head = source.data();
    let (big, nanos) = head
        .first_chunk()
        .and_then(|m| parse_magic(*m))
        .ok_or_else(|| Fault::new(0, "not a capture file"))?;
    let at = |i: usize| -> [u8; 4] { [head[i], head[i + 1], head[i + 2], head[i + 3]] };
    let word = |b: [u8; 4]| {
        if big {
            u32::from_be_bytes(b)
        } else {
            u32::from_le_bytes(b)
        }
    };
    // The upper half holds the length of the frame check sequence and flags.
    let link = word(at(20)) as u16;
    source.consume(24);
    if big {
        read_records(source, sink, link, nanos, u32::from_be_bytes)
    } else {
        read_records(source, sink, link, nanos, u32::from_le_bytes)
    }
}

fn read_records(
    source: &mut Source<'_>,
    sink: &mut impl PacketSink,
    link: u16,
    nanos: bool,
    word: impl Fn([u8; 4]) -> u32,
) -> Result<(), Fault> {
    let unit: i64 = if nanos { 1 } else { 1000 };
    loop {
        let data = source.data();
        let mut pos = 0;
        let mut wanted = 16;
        while let Some((head, rest)) = data[pos..].split_first_chunk::<16>() {
            let field = |i: usize| word([head[i], head[i + 1], head[i + 2], head[i + 3]]);
            let (captured, original) = (field(8), field(12));
            // A file header in the middle looks like a packet without captured bytes.
            if captured > MAX_CAPTURED || captured == 0 && matches(head) {
                let offset = source.offset() + pos as u64;
                return Err(make_length_error(offset, captured, matches(head)));
            }
            let Some(bytes) = rest.get(..captured as usize) else {
                wanted = 16 + captured as usize;
                break;
            };
            sink.packet(&Packet {
                link,
                interface: 0,
                ts: i64::from(field(0)) * 1_000_000_000 + i64::from(field(4)) * unit,
                data: bytes,
                wire_len: original.max(captured),
                direction: Direction::Unknown,
            });
            pos += 16 + captured as usize;
        }
        source.consume(pos);
        let offset = source.offset();
        if !source.need(wanted).map_err(|e| Fault::io(offset, &e))? {
            let left = source.data().len();
            return if left == 0 {
                Ok(())
            } else {
                Err(Fault::new(
                    offset,
                    format!("the last packet is cut short: {left} of {wanted} bytes are present"),
                )
                .hint("the capture was still being written, or was not copied completely"))
            };
        }
    }
}

fn make_length_error(offset: u64, captured: u32, another_file: bool) -> Fault {
    if another_file {
        return Fault::new(offset, "another capture file begins here")
            .hint("join captures with mergecap, not with cat");
    }
    Fault::new(
        offset,
        format!("a packet claims {captured} captured bytes, more than {MAX_CAPTURED}"),
    )
    .hint("the file is damaged from here on")
}
