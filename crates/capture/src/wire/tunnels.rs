//! Unpack tunnels: IP in IP, GRE, VXLAN and Geneve. Only the packets inside are counted.

use crate::wire::link::{read_u16, skip_ppp, skip_tags, SkipReason};
use crate::wire::packet::UDP;

const IPV4_IN_IP: u8 = 4;
const IPV6_IN_IP: u8 = 41;
const GRE: u8 = 47;
/// Encrypted packets, and tunnels of other kinds: ESP, Ethernet in IP, compressed IP, L2TP.
const OPAQUE: [u8; 4] = [50, 97, 108, 115];
/// The registered port, and the one that Linux used before.
const VXLAN: [u16; 2] = [4789, 8472];
const GENEVE: u16 = 6081;
const ETHERNET: u16 = 0x6558;

/// Return why a packet of this protocol is not part of a flow.
#[must_use]
pub fn choose_skip_reason(protocol: u8) -> SkipReason {
    if OPAQUE.contains(&protocol) || protocol == GRE {
        SkipReason::Opaque
    } else {
        SkipReason::OtherProtocol
    }
}

/// The offset of a network header and its IP version, where that is known; `None` if there is no such header.
type Inner = Result<Option<(usize, Option<u8>)>, SkipReason>;

/// Return offset and IP version of the network header inside the tunnel whose header is at `at`; `None` if there is no
/// tunnel.
///
/// # Errors
///
/// [`SkipReason::Cut`] if the packet ends before that header, so that it may or may not be a tunnel.
pub fn find_inner_header(data: &[u8], protocol: u8, at: usize) -> Inner {
    match protocol {
        IPV4_IN_IP => Ok(Some((at, Some(4)))),
        IPV6_IN_IP => Ok(Some((at, Some(6)))),
        GRE => parse_gre(data, at),
        UDP => parse_tunnel(data, at + 8, read_u16(data, at + 2).ok_or(SkipReason::Cut)?),
        _ => Ok(None),
    }
}

fn parse_gre(data: &[u8], at: usize) -> Inner {
    let flags = read_u16(data, at).ok_or(SkipReason::Cut)?;
    let version = flags & 7;
    if version > 1 || flags & 0x4000 != 0 {
        return Ok(None);
    }
    // Checksum, key and sequence number; version 1 (PPTP) also an acknowledgement.
    let mut size = 4;
    for (flag, present) in [
        (0x8000, true),
        (0x2000, true),
        (0x1000, true),
        (0x80, version == 1),
    ] {
        size += if present && flags & flag != 0 { 4 } else { 0 };
    }
    let kind = read_u16(data, at + 2).ok_or(SkipReason::Cut)?;
    find_carried(data, kind, at + size)
}

fn parse_tunnel(data: &[u8], at: usize, port: u16) -> Inner {
    if VXLAN.contains(&port) {
        // The flags must be exactly those of a valid network identifier, and reserved bytes zero.
        let header: Option<&[u8; 8]> = data.get(at..).and_then(|rest| rest.first_chunk());
        let header = header.ok_or(SkipReason::Cut)?;
        let plain = header[0] == 8 && header[1..4] == [0; 3] && header[7] == 0;
        return if plain {
            keep_cut(skip_tags(data, at + 8 + 12))
        } else {
            Ok(None)
        };
    }
    if port == GENEVE {
        let first = read_u16(data, at).ok_or(SkipReason::Cut)?;
        let kind = read_u16(data, at + 2).ok_or(SkipReason::Cut)?;
        let options = usize::from(first >> 8 & 0x3f) * 4;
        return if first >> 14 == 0 {
            find_carried(data, kind, at + 8 + options)
        } else {
            Ok(None)
        };
    }
    Ok(None)
}

/// Return what was found; only that the packet was cut is an error, since another reason means that it is no tunnel.
fn keep_cut(found: Result<(usize, Option<u8>), SkipReason>) -> Inner {
    match found {
        Err(SkipReason::Cut) => Err(SkipReason::Cut),
        other => Ok(other.ok()),
    }
}

/// Find the network header at `at`, by the `EtherType`.
fn find_carried(data: &[u8], kind: u16, at: usize) -> Inner {
    match kind {
        0x0800 => Ok(Some((at, Some(4)))),
        0x86dd => Ok(Some((at, Some(6)))),
        0x880b => keep_cut(skip_ppp(data, at)),
        ETHERNET => keep_cut(skip_tags(data, at + 12)),
        _ => Ok(None),
    }
}
