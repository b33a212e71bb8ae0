//! Represent the sender of a packet: an address, or a name from a packet list.

use crate::wire::packet::{AddrWords, Family};
use serde::{Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// An address, or a name from a packet list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// An address.
    Ip(IpAddr),
    /// A name from a packet list without addresses.
    Name(Arc<str>),
}

impl Host {
    /// Create a host from a key's words; `names` are the names of a packet list.
    #[must_use]
    pub fn new(family: Family, words: AddrWords, names: &[Arc<str>]) -> Self {
        match family {
            Family::V4 => Self::Ip(Ipv4Addr::from(words[0] as u32).into()),
            Family::V6 => {
                Self::Ip(Ipv6Addr::from(u128::from(words[0]) << 64 | u128::from(words[1])).into())
            }
            Family::Name => Self::Name(
                names
                    .get(words[0] as usize)
                    .cloned()
                    .unwrap_or_else(|| "?".into()),
            ),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Serialize for Host {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
