//! From a captured frame to a TCP segment or UDP datagram, without copying.
//!
//! [`fast`] knows one shape only, Ethernet, IPv4 without options, TCP, which is nearly every packet of nearly every trace;
//! [`general`] knows all of them. Whatever `fast` accepts, `general` decodes to the same (a property test holds them to it).

use crate::packet::{flag, AddrWords, Direction, Family, FlowKey, Packet, Segment, TCP, UDP};

/// Link types (`LINKTYPE_…` of the tcpdump group's registry) that can be read.
pub mod link {
    /// BSD loopback, family in the host's byte order.
    pub const NULL: u16 = 0;
    /// Ethernet.
    pub const ETHERNET: u16 = 1;
    /// Raw IP; 12 and 14 are what some systems wrote for it.
    pub const RAW: u16 = 101;
    /// OpenBSD loopback, family in network byte order.
    pub const LOOP: u16 = 108;
    /// Linux cooked capture.
    pub const LINUX_SLL: u16 = 113;
    /// Raw IPv4.
    pub const IPV4: u16 = 228;
    /// Raw IPv6.
    pub const IPV6: u16 = 229;
    /// Linux cooked capture, version 2.
    pub const LINUX_SLL2: u16 = 276;
}

/// Why a packet is not part of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// Not IP.
    NotIp,
    /// IP, but neither TCP nor UDP.
    OtherProtocol,
    /// A later fragment: only the first one has ports.
    Fragment,
    /// Cut off by the snapshot length before the ports and flags.
    Cut,
    /// Its own length fields contradict each other.
    Malformed,
    /// A link type that cannot be read.
    UnknownLink,
}

#[inline]
fn be16(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(data.get(at..at + 2)?.try_into().ok()?))
}

#[inline]
fn be32(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

/// The fast path: `None` means "ask [`general`]", never "there is nothing".
#[inline]
#[must_use]
pub fn fast(packet: &Packet<'_>) -> Option<Segment> {
    let head: &[u8; 54] = packet.data.first_chunk()?;
    let be16 = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let be32 = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let flags = head[47];
    let plain = packet.link == link::ETHERNET
        && be16(12) == 0x0800
        && head[14] == 0x45
        && matches!(be16(20), 0 | 0x4000 | 0x8000 | 0xc000)
        && head[23] == TCP
        && flags & flag::SYN == 0;
    let ip_len = u32::from(be16(16));
    let headers = 20 + u32::from(head[46] >> 4) * 4;
    if !plain || headers < 40 || ip_len < headers || packet.wire_len < 14 + ip_len {
        return None;
    }
    let src = ([u64::from(be32(26)), 0], be16(34));
    let dst = ([u64::from(be32(30)), 0], be16(36));
    let (key, from) = FlowKey::new(Family::V4, TCP, src, dst);
    Some(Segment {
        key,
        from,
        flags,
        window: be16(48),
        mss: 0,
        direction: packet.direction,
        seq_known: true,
        ts: packet.ts,
        wire_len: packet.wire_len,
        payload: ip_len - headers,
        seq: be32(38),
        ack: be32(42),
    })
}

/// Decode any supported packet.
pub fn decode(packet: &Packet<'_>) -> Result<Segment, Skip> {
    fast(packet).map_or_else(|| general(packet), Ok)
}

/// The general path.
pub fn general(packet: &Packet<'_>) -> Result<Segment, Skip> {
    let data = packet.data;
    let mut direction = packet.direction;
    let (at, version) = match packet.link {
        link::ETHERNET => ethertype(data, 12)?,
        link::LINUX_SLL => {
            direction = sll_direction(u32::from(be16(data, 0).ok_or(Skip::Cut)?), direction);
            ethertype(data, 14)?
        }
        link::LINUX_SLL2 => {
            direction = sll_direction(u32::from(*data.get(10).ok_or(Skip::Cut)?), direction);
            // The protocol comes first, the payload after 20 bytes; a VLAN tag is part of the payload.
            match be16(data, 0).ok_or(Skip::Cut)? {
                0x0800 => (20, Some(4)),
                0x86dd => (20, Some(6)),
                0x8100 | 0x88a8 | 0x9100 | 0x9200 => ethertype(data, 22)?,
                _ => return Err(Skip::NotIp),
            }
        }
        link::NULL | link::LOOP => (4, None),
        12 | 14 | link::RAW | link::IPV4 | link::IPV6 => (0, None),
        _ => return Err(Skip::UnknownLink),
    };
    let first = *data.get(at).ok_or(Skip::Cut)?;
    let found = first >> 4;
    if version.is_some_and(|v| v != found) {
        return Err(Skip::Malformed);
    }
    let wire = packet.wire_len as usize;
    let ip = match found {
        4 => ipv4(data, at, wire)?,
        6 => ipv6(data, at, wire)?,
        _ => return Err(Skip::NotIp),
    };
    transport(packet, &ip, direction)
}

fn sll_direction(kind: u32, otherwise: Direction) -> Direction {
    match kind {
        0 => Direction::In,
        4 => Direction::Out,
        _ => otherwise,
    }
}

/// Offset of the network header and IP version behind an `EtherType` at `at`, VLAN tags skipped.
fn ethertype(data: &[u8], mut at: usize) -> Result<(usize, Option<u8>), Skip> {
    // Two tags are QinQ; more than that is seen in provider networks. Eight bound a hostile frame.
    for _ in 0..8 {
        match be16(data, at).ok_or(Skip::Cut)? {
            0x0800 => return Ok((at + 2, Some(4))),
            0x86dd => return Ok((at + 2, Some(6))),
            0x8100 | 0x88a8 | 0x9100 | 0x9200 => at += 4,
            _ => return Err(Skip::NotIp),
        }
    }
    Err(Skip::NotIp)
}

/// What the network layer says.
struct Ip {
    family: Family,
    src: AddrWords,
    dst: AddrWords,
    protocol: u8,
    /// Offset of the transport header in the frame.
    at: usize,
    /// End of the datagram in the frame as it was on the wire.
    end: usize,
}

fn ipv4(data: &[u8], at: usize, wire: usize) -> Result<Ip, Skip> {
    let header = usize::from(data[at] & 15) * 4;
    if header < 20 {
        return Err(Skip::Malformed);
    }
    let total = usize::from(be16(data, at + 2).ok_or(Skip::Cut)?);
    let fragment = be16(data, at + 6).ok_or(Skip::Cut)? & 0x1fff;
    let protocol = *data.get(at + 9).ok_or(Skip::Cut)?;
    let src = be32(data, at + 12).ok_or(Skip::Cut)?;
    let dst = be32(data, at + 16).ok_or(Skip::Cut)?;
    if fragment != 0 {
        return Err(Skip::Fragment);
    }
    // Length 0 is written by segmentation offload for what will be cut up later; a length beyond the frame is a lie.
    let end = if total == 0 {
        wire
    } else {
        (at + total).min(wire)
    };
    Ok(Ip {
        family: Family::V4,
        src: [u64::from(src), 0],
        dst: [u64::from(dst), 0],
        protocol,
        at: at + header,
        end,
    })
}

fn ipv6(data: &[u8], at: usize, wire: usize) -> Result<Ip, Skip> {
    let words = |from: usize| -> Result<AddrWords, Skip> {
        let bytes: &[u8; 16] = data
            .get(from..from + 16)
            .and_then(|b| b.try_into().ok())
            .ok_or(Skip::Cut)?;
        let whole = u128::from_be_bytes(*bytes);
        Ok([(whole >> 64) as u64, whole as u64])
    };
    let length = usize::from(be16(data, at + 4).ok_or(Skip::Cut)?);
    let mut next = *data.get(at + 6).ok_or(Skip::Cut)?;
    let (src, dst) = (words(at + 8)?, words(at + 24)?);
    let end = if length == 0 {
        wire
    } else {
        (at + 40 + length).min(wire)
    };
    let mut at = at + 40;
    for _ in 0..16 {
        let size = match next {
            // Hop-by-hop, routing, destination options, mobility, HIP, shim6.
            0 | 43 | 60 | 135 | 139 | 140 => {
                8 + usize::from(*data.get(at + 1).ok_or(Skip::Cut)?) * 8
            }
            44 => {
                if be16(data, at + 2).ok_or(Skip::Cut)? & 0xfff8 != 0 {
                    return Err(Skip::Fragment);
                }
                8
            }
            51 => 8 + usize::from(*data.get(at + 1).ok_or(Skip::Cut)?) * 4,
            _ => {
                return Ok(Ip {
                    family: Family::V6,
                    src,
                    dst,
                    protocol: next,
                    at,
                    end,
                })
            }
        };
        next = *data.get(at).ok_or(Skip::Cut)?;
        at += size;
    }
    Err(Skip::Malformed)
}

fn transport(packet: &Packet<'_>, ip: &Ip, direction: Direction) -> Result<Segment, Skip> {
    let (data, at) = (packet.data, ip.at);
    if ip.protocol != TCP && ip.protocol != UDP {
        return Err(Skip::OtherProtocol);
    }
    let ports = be32(data, at).ok_or(Skip::Cut)?;
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
        mss: 0,
        direction,
        seq_known: true,
        ts: packet.ts,
        wire_len: packet.wire_len,
        payload: 0,
        seq: 0,
        ack: 0,
    };
    if ip.protocol == UDP {
        let claimed = usize::from(be16(data, at + 4).ok_or(Skip::Cut)?);
        let end = if claimed == 0 {
            ip.end
        } else {
            ip.end.min(at + claimed)
        };
        segment.payload = end.checked_sub(at + 8).ok_or(Skip::Malformed)? as u32;
        return Ok(segment);
    }
    segment.seq = be32(data, at + 4).ok_or(Skip::Cut)?;
    segment.ack = be32(data, at + 8).ok_or(Skip::Cut)?;
    segment.window = be16(data, at + 14).ok_or(Skip::Cut)?;
    segment.flags = data[at + 13];
    let header = usize::from(data[at + 12] >> 4) * 4;
    if header < 20 {
        return Err(Skip::Malformed);
    }
    segment.payload = ip.end.checked_sub(at + header).ok_or(Skip::Malformed)? as u32;
    if segment.flags & flag::SYN != 0 {
        let options_end = (at + header).min(data.len());
        segment.mss = max_segment_size(data.get(at + 20..options_end).unwrap_or(&[]));
    }
    Ok(segment)
}

/// The MSS option's value, 0 when there is none.
fn max_segment_size(mut options: &[u8]) -> u16 {
    loop {
        match options {
            [1, rest @ ..] => options = rest,
            [2, 4, high, low, ..] => return u16::from_be_bytes([*high, *low]),
            [kind, length, ..] if *kind != 0 && *length >= 2 => {
                options = options.get(usize::from(*length)..).unwrap_or(&[]);
            }
            _ => return 0,
        }
    }
}
