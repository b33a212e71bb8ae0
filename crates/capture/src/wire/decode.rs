//! Decode a captured frame to a TCP segment or UDP datagram without copying it.
//!
//! [`decode_fast`] knows only one form, which nearly every packet of nearly every trace has: Ethernet, IPv4 without
//! options and TCP. [`decode_general`] knows all forms. Whatever `decode_fast` accepts, `decode_general` decodes to the
//! same segment (a property test checks this).

use crate::wire::contents;
use crate::wire::ip::{parse_ipv4, parse_ipv6, Ip};
use crate::wire::link::{self, read_u16, read_u32, skip_labels, skip_ppp, skip_tags, SkipReason};
use crate::wire::message::Message;
use crate::wire::options::parse_options;
use crate::wire::packet::{flag, Direction, Family, FlowKey, Options, Packet, Segment, TCP, UDP};
use crate::wire::tunnels;

/// Maximum nesting of tunnels that is followed.
const MOST_TUNNELS: u8 = 4;

/// Decode by the fast path; `None` means that [`decode_general`] has to decode the packet.
#[must_use]
pub fn decode_fast(packet: &Packet<'_>) -> Option<Segment> {
    let mut segment = Segment::EMPTY;
    decode_fast_into(packet, &mut segment).then_some(segment)
}

/// Decode by the fast path in place, because copying a segment takes as long as decoding it. Return false if
/// [`decode_general`] has to decode the packet.
#[inline]
pub fn decode_fast_into(packet: &Packet<'_>, segment: &mut Segment) -> bool {
    let Some(head) = packet.data.first_chunk::<54>() else {
        return false;
    };
    let read_u16 = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let read_u32 =
        |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let flags = head[47];
    let plain = packet.link == link::ETHERNET
        && read_u16(12) == 0x0800
        && head[14] == 0x45
        && matches!(read_u16(20), 0 | 0x4000 | 0x8000 | 0xc000)
        && head[23] == TCP
        && flags & flag::SYN == 0;
    let ip_len = u32::from(read_u16(16));
    let headers = 20 + u32::from(head[46] >> 4) * 4;
    if !plain || headers < 40 || ip_len < headers || packet.wire_len < 14 + ip_len {
        return false;
    }
    // Nearly all segments have no options, or only a time stamp with the padding that every system uses.
    let stamps = match head[46] >> 4 {
        5 => None,
        8 => {
            let Some([1, 1, 8, 10, rest @ ..]) = packet.data[54..].first_chunk::<12>() else {
                return false;
            };
            let whole = u64::from_be_bytes(*rest);
            Some(((whole >> 32) as u32, whole as u32))
        }
        _ => return false,
    };
    let src = ([u64::from(read_u32(26)), 0], read_u16(34));
    let dst = ([u64::from(read_u32(30)), 0], read_u16(36));
    let swap = dst < src;
    let (low, high) = if swap { (dst, src) } else { (src, dst) };
    segment.key.addr[0][0] = low.0[0];
    segment.key.addr[0][1] = 0;
    segment.key.addr[1][0] = high.0[0];
    segment.key.addr[1][1] = 0;
    segment.key.port = [low.1, high.1];
    segment.key.protocol = TCP;
    segment.key.family = Family::V4;
    segment.from = u8::from(swap);
    segment.flags = flags;
    segment.window = read_u16(48);
    segment.id = read_u16(18);
    segment.checksum = read_u16(50);
    segment.options = Options {
        stamps,
        ..Options::default()
    };
    segment.interface = packet.interface as u16;
    segment.tunnels = 0;
    segment.direction = packet.direction;
    segment.seq_known = true;
    segment.ts = packet.ts;
    segment.wire_len = packet.wire_len;
    segment.payload = ip_len - headers;
    segment.payload_at = 14 + headers as u16;
    segment.seq = read_u32(38);
    segment.ack = read_u32(42);
    true
}

/// Decode any supported packet.
pub fn decode(packet: &Packet<'_>) -> Result<Segment, SkipReason> {
    decode_fast(packet).map_or_else(|| decode_general(packet), Ok)
}

/// Decode by the general path.
pub fn decode_general(packet: &Packet<'_>) -> Result<Segment, SkipReason> {
    let data = packet.data;
    let mut direction = packet.direction;
    let mut interface = packet.interface as u16;
    let (at, version) = match packet.link {
        link::ETHERNET => skip_tags(data, 12)?,
        link::LINUX_SLL => {
            direction = parse_sll_direction(
                u32::from(read_u16(data, 0).ok_or(SkipReason::Cut)?),
                direction,
            );
            skip_tags(data, 14)?
        }
        link::LINUX_SLL2 => {
            interface = read_u16(data, 6).ok_or(SkipReason::Cut)?;
            direction =
                parse_sll_direction(u32::from(*data.get(10).ok_or(SkipReason::Cut)?), direction);
            // The protocol comes first, the payload after 20 bytes; a VLAN tag is part of the payload.
            match read_u16(data, 0).ok_or(SkipReason::Cut)? {
                0x0800 => (20, Some(4)),
                0x86dd => (20, Some(6)),
                0x8100 | 0x88a8 | 0x9100 | 0x9200 => skip_tags(data, 22)?,
                0x8847 | 0x8848 => skip_labels(data, 20)?,
                0x8864 => skip_ppp(data, 26)?,
                _ => return Err(SkipReason::NotIp),
            }
        }
        link::PPP | link::PPP_HDLC => skip_ppp(data, 0)?,
        link::PPP_ETHER => skip_ppp(data, 6)?,
        link::NULL | link::LOOP => (4, None),
        12 | 14 | link::RAW | link::IPV4 | link::IPV6 => (0, None),
        _ => return Err(SkipReason::UnknownLink),
    };
    let inner = decode_network(packet, at, version, packet.wire_len as usize, 0);
    inner.map(|segment| Segment {
        interface,
        direction,
        ..segment
    })
}

/// Decode the network header at `at`, which was announced as this version of IP and ends before `end`.
fn decode_network(
    packet: &Packet<'_>,
    at: usize,
    version: Option<u8>,
    end: usize,
    tunnels: u8,
) -> Result<Segment, SkipReason> {
    let data = packet.data;
    let first = *data.get(at).ok_or(SkipReason::Cut)?;
    let found = first >> 4;
    if version.is_some_and(|v| v != found) {
        return Err(SkipReason::Malformed);
    }
    let ip = match found {
        4 => parse_ipv4(data, at, end)?,
        6 => parse_ipv6(data, at, end)?,
        _ => return Err(SkipReason::NotIp),
    };
    if tunnels < MOST_TUNNELS {
        let is_cut = data.len() < packet.wire_len as usize;
        let found = tunnels::find_inner_header(data, ip.protocol, ip.at).and_then(|found| {
            let inner =
                found.map(|(at, version)| decode_network(packet, at, version, ip.end, tunnels + 1));
            inner.transpose()
        });
        match found {
            Ok(Some(segment)) => return Ok(segment),
            // The packet inside has the flow, and was cut before its ports.
            Err(SkipReason::Cut) if is_cut => return Err(SkipReason::Cut),
            // If the bytes only look like a tunnel, decode the packet as a datagram or as an unknown protocol.
            Ok(None) | Err(_) => {}
        }
    }
    decode_transport(packet, &ip).map(|segment| Segment { tunnels, ..segment })
}

fn parse_sll_direction(kind: u32, otherwise: Direction) -> Direction {
    match kind {
        0 => Direction::In,
        4 => Direction::Out,
        _ => otherwise,
    }
}

fn decode_transport(packet: &Packet<'_>, ip: &Ip) -> Result<Segment, SkipReason> {
    let (data, at) = (packet.data, ip.at);
    if ip.protocol != TCP && ip.protocol != UDP {
        return Err(tunnels::choose_skip_reason(ip.protocol));
    }
    let ports = read_u32(data, at).ok_or(SkipReason::Cut)?;
    let (key, from) = FlowKey::new(
        ip.family,
        ip.protocol,
        (ip.src, (ports >> 16) as u16),
        (ip.dst, ports as u16),
    );
    let mut segment = Segment {
        key,
        from,
        flags: 0,
        window: u16::MAX,
        id: ip.id,
        checksum: 0,
        options: Options::default(),
        interface: packet.interface as u16,
        tunnels: 0,
        direction: packet.direction,
        seq_known: true,
        said_again: false,
        frame: 0,
        ts: packet.ts,
        wire_len: packet.wire_len,
        payload: 0,
        message: Message::NOTHING,
        payload_at: u16::try_from(at + 8).unwrap_or(u16::MAX),
        seq: 0,
        ack: 0,
    };
    if ip.protocol == UDP {
        let claimed = usize::from(read_u16(data, at + 4).ok_or(SkipReason::Cut)?);
        let end = if claimed == 0 {
            ip.end
        } else {
            ip.end.min(at + claimed)
        };
        segment.payload = end.checked_sub(at + 8).ok_or(SkipReason::Malformed)? as u32;
        segment.checksum = read_u16(data, at + 6).unwrap_or(0);
        segment.seq = contents::identify_contents(&segment, ip, data);
        return Ok(segment);
    }
    segment.seq = read_u32(data, at + 4).ok_or(SkipReason::Cut)?;
    segment.ack = read_u32(data, at + 8).ok_or(SkipReason::Cut)?;
    segment.window = read_u16(data, at + 14).ok_or(SkipReason::Cut)?;
    segment.flags = data[at + 13];
    let header = usize::from(data[at + 12] >> 4) * 4;
    if header < 20 {
        return Err(SkipReason::Malformed);
    }
    segment.payload = ip
        .end
        .checked_sub(at + header)
        .ok_or(SkipReason::Malformed)? as u32;
    segment.payload_at = u16::try_from(at + header).unwrap_or(u16::MAX);
    segment.checksum = read_u16(data, at + 16).unwrap_or(0);
    let options_end = (at + header).min(data.len());
    segment.options = parse_options(
        data.get(at + 20..options_end).unwrap_or(&[]),
        segment.ack,
        segment.flags & flag::SYN != 0,
    );
    segment.options.cut = segment.flags & flag::SYN != 0 && options_end < at + header;
    Ok(segment)
}
