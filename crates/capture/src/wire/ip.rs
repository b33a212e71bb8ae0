//! Parse the network header: IPv4, and IPv6 with its chain of extensions.

use crate::wire::link::{read_u16, read_u32, SkipReason};
use crate::wire::packet::{AddrWords, Family};

/// The relevant contents of the network header.
pub(crate) struct Ip {
    pub(crate) family: Family,
    pub(crate) src: AddrWords,
    pub(crate) dst: AddrWords,
    pub(crate) protocol: u8,
    /// Identification of an IPv4 packet.
    pub(crate) id: u16,
    /// Offset of the transport header in the frame.
    pub(crate) at: usize,
    /// End of the IP packet in the frame, as it was on the wire.
    pub(crate) end: usize,
}

pub(crate) fn parse_ipv4(data: &[u8], at: usize, wire: usize) -> Result<Ip, SkipReason> {
    let header = usize::from(data[at] & 15) * 4;
    if header < 20 {
        return Err(SkipReason::Malformed);
    }
    let total = usize::from(read_u16(data, at + 2).ok_or(SkipReason::Cut)?);
    let fragment = read_u16(data, at + 6).ok_or(SkipReason::Cut)? & 0x1fff;
    let protocol = *data.get(at + 9).ok_or(SkipReason::Cut)?;
    let src = read_u32(data, at + 12).ok_or(SkipReason::Cut)?;
    let dst = read_u32(data, at + 16).ok_or(SkipReason::Cut)?;
    if fragment != 0 {
        return Err(SkipReason::Fragment);
    }
    // Segmentation offload writes length 0 for packets that will be split later. A length beyond the frame is invalid.
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
        id: read_u16(data, at + 4).ok_or(SkipReason::Cut)?,
        at: at + header,
        end,
    })
}

pub(crate) fn parse_ipv6(data: &[u8], at: usize, wire: usize) -> Result<Ip, SkipReason> {
    let words = |from: usize| -> Result<AddrWords, SkipReason> {
        let bytes: &[u8; 16] = data
            .get(from..from + 16)
            .and_then(|b| b.try_into().ok())
            .ok_or(SkipReason::Cut)?;
        let whole = u128::from_be_bytes(*bytes);
        Ok([(whole >> 64) as u64, whole as u64])
    };
    let length = usize::from(read_u16(data, at + 4).ok_or(SkipReason::Cut)?);
    let mut next = *data.get(at + 6).ok_or(SkipReason::Cut)?;
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
                8 + usize::from(*data.get(at + 1).ok_or(SkipReason::Cut)?) * 8
            }
            44 => {
                if read_u16(data, at + 2).ok_or(SkipReason::Cut)? & 0xfff8 != 0 {
                    return Err(SkipReason::Fragment);
                }
                8
            }
            51 => 8 + usize::from(*data.get(at + 1).ok_or(SkipReason::Cut)?) * 4,
            _ => {
                return Ok(Ip {
                    family: Family::V6,
                    src,
                    dst,
                    protocol: next,
                    id: 0,
                    at,
                    end,
                })
            }
        };
        next = *data.get(at).ok_or(SkipReason::Cut)?;
        at += size;
    }
    Err(SkipReason::Malformed)
}
