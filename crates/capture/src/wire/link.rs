//! Parse the link layer: its types, and the VLAN tags, PPP headers and MPLS labels that may follow.

/// BSD loopback, family in the host's byte order.
pub const NULL: u16 = 0;
/// Ethernet.
pub const ETHERNET: u16 = 1;
/// Raw IP; some systems wrote 12 or 14 instead.
pub const RAW: u16 = 101;
/// PPP.
pub const PPP: u16 = 9;
/// PPP in HDLC-like framing.
pub const PPP_HDLC: u16 = 50;
/// PPP over Ethernet, from its own header on.
pub const PPP_ETHER: u16 = 51;
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

/// The reason why a packet is not part of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// Not IP.
    NotIp,
    /// IP, but neither TCP nor UDP.
    OtherProtocol,
    /// A tunnel that cannot be decoded: encrypted, or of an unknown kind.
    Opaque,
    /// A later fragment: only the first one has ports.
    Fragment,
    /// Cut off by the snapshot length before the ports and flags.
    Cut,
    /// Its length fields contradict each other.
    Malformed,
    /// A link type that cannot be read.
    UnknownLink,
}

#[inline]
pub(crate) fn read_u16(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(data.get(at..at + 2)?.try_into().ok()?))
}

#[inline]
pub(crate) fn read_u32(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

/// Return offset of the network header and IP version behind an `EtherType` at `at`; skip VLAN tags, PPP and MPLS.
pub(crate) fn skip_tags(data: &[u8], mut at: usize) -> Result<(usize, Option<u8>), SkipReason> {
    // QinQ has two tags, and provider networks may have more. Eight is the limit for malicious frames.
    for _ in 0..8 {
        match read_u16(data, at).ok_or(SkipReason::Cut)? {
            0x0800 => return Ok((at + 2, Some(4))),
            0x86dd => return Ok((at + 2, Some(6))),
            0x8100 | 0x88a8 | 0x9100 | 0x9200 => at += 4,
            0x8847 | 0x8848 => return skip_labels(data, at + 2),
            0x8864 => return skip_ppp(data, at + 8),
            _ => return Err(SkipReason::NotIp),
        }
    }
    Err(SkipReason::NotIp)
}

/// Skip MPLS labels; only the first four bits behind them show what follows.
pub(crate) fn skip_labels(data: &[u8], mut at: usize) -> Result<(usize, Option<u8>), SkipReason> {
    for _ in 0..8 {
        let label = read_u32(data, at).ok_or(SkipReason::Cut)?;
        at += 4;
        if label & 0x100 != 0 {
            return match data.get(at).ok_or(SkipReason::Cut)? >> 4 {
                4 | 6 => Ok((at, None)),
                // A control word, then an Ethernet frame.
                0 => skip_tags(data, at + 4 + 12),
                _ => Err(SkipReason::NotIp),
            };
        }
    }
    Err(SkipReason::NotIp)
}

/// Skip a PPP header, whose address and control bytes are optional.
pub(crate) fn skip_ppp(data: &[u8], mut at: usize) -> Result<(usize, Option<u8>), SkipReason> {
    if read_u16(data, at).ok_or(SkipReason::Cut)? == 0xff03 {
        at += 2;
    }
    match read_u16(data, at).ok_or(SkipReason::Cut)? {
        0x0021 => Ok((at + 2, Some(4))),
        0x0057 => Ok((at + 2, Some(6))),
        0x0281 | 0x0283 => skip_labels(data, at + 2),
        _ => Err(SkipReason::NotIp),
    }
}
