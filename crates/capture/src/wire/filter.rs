//! Parse and apply `--filter`: a host, a network, a port, one end (host and port) or one flow (two ends).

use crate::wire::packet::{AddrWords, Family, Segment};
use crate::wire::services::Services;
use std::net::IpAddr;
use std::sync::Arc;

/// One side of a filter.
#[derive(Clone, Debug, PartialEq)]
enum HostMatcher {
    Any,
    /// Family, address, mask.
    Ip(Family, AddrWords, AddrWords),
    Name(String),
}

#[derive(Clone, Debug, PartialEq)]
struct End {
    host: HostMatcher,
    port: Option<u16>,
}

/// A filter for packets: one end must match it (or, for a flow, both ends).
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    first: End,
    second: Option<End>,
}

fn split_words(ip: IpAddr) -> (Family, AddrWords) {
    match ip {
        IpAddr::V4(ip) => (Family::V4, [u64::from(u32::from(ip)), 0]),
        IpAddr::V6(ip) => {
            let bits = u128::from(ip);
            (Family::V6, [(bits >> 64) as u64, bits as u64])
        }
    }
}

impl HostMatcher {
    fn parse(text: &str) -> Option<Self> {
        let text = text
            .strip_prefix('[')
            .and_then(|t| t.strip_suffix(']'))
            .unwrap_or(text);
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let (family, words) = split_words(address.parse().ok()?);
        let width = if family == Family::V4 { 32 } else { 128 };
        let bits = bits.unwrap_or(width);
        if bits > width {
            return None;
        }
        let mask = u128::MAX.checked_shl(width - bits).unwrap_or(0);
        let mask = if family == Family::V4 {
            [u64::from(mask as u32), 0]
        } else {
            [(mask >> 64) as u64, mask as u64]
        };
        Some(Self::Ip(
            family,
            [words[0] & mask[0], words[1] & mask[1]],
            mask,
        ))
    }

    fn fits(&self, family: Family, words: AddrWords, names: &[Arc<str>]) -> bool {
        match self {
            Self::Any => true,
            Self::Ip(kind, network, mask) => {
                *kind == family && [words[0] & mask[0], words[1] & mask[1]] == *network
            }
            Self::Name(name) => {
                family == Family::Name
                    && names.get(words[0] as usize).is_some_and(|n| **n == **name)
            }
        }
    }
}

impl End {
    fn parse(text: &str, services: &Services) -> Option<Self> {
        if let Some(port) = services.port(text) {
            return Some(Self {
                host: HostMatcher::Any,
                port: Some(port),
            });
        }
        if let Some(host) = HostMatcher::parse(text) {
            return Some(Self { host, port: None });
        }
        if let Some((host, port)) = text.rsplit_once(':') {
            let port = Some(services.port(port)?);
            let host =
                HostMatcher::parse(host).unwrap_or_else(|| HostMatcher::Name(host.to_owned()));
            return Some(Self { host, port });
        }
        let named = !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_alphanumeric() || "._-".contains(c));
        named.then(|| Self {
            host: HostMatcher::Name(text.to_owned()),
            port: None,
        })
    }
}

impl Filter {
    /// Parse `HOST`, `HOST/BITS`, `PORT` (number or service name), `HOST:PORT` or `END-END`; IPv6 in `[]` before a
    /// port.
    #[must_use]
    pub fn parse(text: &str, services: &Services) -> Option<Self> {
        // A name may contain a dash, so at least one end of a flow must be an address, or a name with a port.
        for (at, _) in text.match_indices('-') {
            let (left, right) = (&text[..at], &text[at + 1..]);
            if let (Some(first), Some(second)) =
                (End::parse(left, services), End::parse(right, services))
            {
                let plain = |end: &End| {
                    end.host == HostMatcher::Any
                        || matches!(end.host, HostMatcher::Name(_)) && end.port.is_none()
                };
                if !(plain(&first) && plain(&second)) {
                    return Some(Self {
                        first,
                        second: Some(second),
                    });
                }
            }
        }
        End::parse(text, services).map(|first| Self {
            first,
            second: None,
        })
    }

    /// Whether a segment matches the filter.
    #[must_use]
    pub fn fits(&self, segment: &Segment, names: &[Arc<str>]) -> bool {
        let key = &segment.key;
        let is = |end: &End, which: usize| {
            end.port.is_none_or(|port| port == key.port[which])
                && end.host.fits(key.family, key.addr[which], names)
        };
        match &self.second {
            None => is(&self.first, 0) || is(&self.first, 1),
            Some(second) => {
                is(&self.first, 0) && is(second, 1) || is(&self.first, 1) && is(second, 0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let services = Services::parse("http 80/tcp\n");
        let parse = |text| Filter::parse(text, &services);
        for text in [
            "10.0.0.1",
            "10.0.0.0/8",
            "80",
            "http",
            "irdmi",
            "10.0.0.1:80",
            "[::1]:80",
            "::1",
            "fe80::/10",
            "host.example",
            "my-host",
        ] {
            assert!(parse(text).is_some_and(|f| f.second.is_none()), "{text}");
        }
        for text in [
            "10.0.0.1:80-10.0.0.2:1028",
            "[::1]:80-[::2]:90",
            "10.0.0.1-10.0.0.2",
            "my-host:80-other:http",
        ] {
            assert!(parse(text).is_some_and(|f| f.second.is_some()), "{text}");
        }
        for text in ["", "10.0.0.0/33", "a b", "10.0.0.1:nosuch"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
