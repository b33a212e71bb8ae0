//! Tell datagrams with equal contents from others, since datagrams have no sequence numbers.
//!
//! The checksum alone does not show it: a system whose network card computes checksums leaves the sum of the pseudo
//! header there, which is the same for all datagrams of one length, and a capture on that system sees it.

use crate::wire::ip::Ip;
use crate::wire::packet::{Segment, UDP};

/// Return a number that is the same for datagrams of one flow with the same contents; 0 if the contents are unknown,
/// because the datagram was cut and has no checksum.
pub(crate) fn identify_contents(segment: &Segment, ip: &Ip, frame: &[u8]) -> u32 {
    let length = segment.payload + 8;
    if segment.checksum != 0 && segment.checksum != sum_pseudo_header(ip, length) {
        return u32::from(segment.checksum) << 16 | segment.payload & 0xffff;
    }
    let payload = segment.payload_in(frame);
    if payload.len() == segment.payload as usize {
        hash_payload(payload)
    } else {
        0
    }
}

/// Return the sum of the pseudo header (RFC 768; RFC 8200, 8.1) without its complement, as systems store it for the
/// network card.
fn sum_pseudo_header(ip: &Ip, length: u32) -> u16 {
    let parts = [ip.src[0], ip.src[1], ip.dst[0], ip.dst[1]];
    let halves = parts
        .iter()
        .flat_map(|part| [part >> 48, part >> 32, part >> 16, *part]);
    let mut sum =
        halves.map(|half| half & 0xffff).sum::<u64>() + u64::from(length) + u64::from(UDP);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Return a hash that is never 0.
fn hash_payload(payload: &[u8]) -> u32 {
    let mut hash = payload.len() as u64;
    for chunk in payload.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    (hash >> 32) as u32 | 1
}
