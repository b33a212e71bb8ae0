//! Sends requests about interfaces, addresses, routes and neighbours to the kernel by `rtnetlink(7)`.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::sys::check;

const HEADER: usize = 16;
/// `struct ifinfomsg`.
const LINK_HEADER: usize = 16;
/// `struct ifaddrmsg`.
const ADDRESS_HEADER: usize = 8;
/// The size of the largest message that the kernel sends.
const LARGEST: usize = 64 << 10;

/// Attribute numbers from `linux/if_link.h` and related headers.
pub mod attribute {
    pub const IFLA_ADDRESS: u16 = 1;
    pub const IFLA_IFNAME: u16 = 3;
    pub const IFLA_MTU: u16 = 4;
    pub const IFLA_LINK: u16 = 5;
    pub const IFLA_MASTER: u16 = 10;
    pub const IFLA_LINKINFO: u16 = 18;
    pub const IFLA_STATS64: u16 = 23;
    pub const IFLA_NET_NS_FD: u16 = 28;
    pub const IFLA_NUM_TX_QUEUES: u16 = 31;
    pub const IFLA_NUM_RX_QUEUES: u16 = 32;
    pub const IFLA_CARRIER: u16 = 33;
    pub const IFLA_INFO_KIND: u16 = 1;
    pub const IFLA_INFO_DATA: u16 = 2;
    pub const VETH_INFO_PEER: u16 = 1;
    pub const IFA_ADDRESS: u16 = 1;
    pub const IFA_LOCAL: u16 = 2;
    pub const RTA_OIF: u16 = 4;
    pub const RTA_GATEWAY: u16 = 5;
    pub const NDA_DST: u16 = 1;
    pub const NDA_LLADDR: u16 = 2;
}

/// A request to which attributes are added.
pub struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// Creates a request of a kind, with the fixed part that follows the header.
    pub fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        let flags = flags | libc::NLM_F_REQUEST as u16;
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(fixed);
        Self { bytes }
    }

    /// Creates a request about the interface with this index; 0 stands for one that is being created, or for all.
    pub fn of_link(kind: u16, flags: u16, index: u32, up: bool) -> Self {
        Self::new(kind, flags, &link_header(index, up))
    }

    /// Adds an attribute.
    pub fn put(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let length = (4 + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// Adds a name, which ends with a zero byte.
    pub fn put_name(&mut self, kind: u16, name: &str) -> &mut Self {
        self.put(kind, &[name.as_bytes(), &[0]].concat())
    }

    /// Adds a 32-bit number.
    pub fn put_number(&mut self, kind: u16, number: u32) -> &mut Self {
        self.put(kind, &number.to_ne_bytes())
    }

    /// Adds an attribute that holds what `fill` adds.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.put(kind, &[]);
        fill(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// Adds bytes that are not an attribute, such as the header of a nested message.
    pub fn put_plain(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }
}

/// Makes a `struct ifinfomsg`.
pub fn link_header(index: u32, up: bool) -> [u8; LINK_HEADER] {
    let mut fixed = [0; LINK_HEADER];
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    let flags = if up { libc::IFF_UP as u32 } else { 0 };
    fixed[8..12].copy_from_slice(&flags.to_ne_bytes());
    let changed = if up { libc::IFF_UP as u32 } else { 0 };
    fixed[12..16].copy_from_slice(&changed.to_ne_bytes());
    fixed
}

/// Makes a `struct ifaddrmsg` for IPv4.
pub fn address_header(index: u32, prefix: u8) -> [u8; ADDRESS_HEADER] {
    let mut fixed = [0; ADDRESS_HEADER];
    fixed[0] = libc::AF_INET as u8;
    fixed[1] = prefix;
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    fixed
}

/// The body of one message of an answer.
pub struct Message(Vec<u8>);

impl Message {
    /// Splits the body into the fixed part and the attributes.
    pub fn split(&self, fixed: usize) -> (&[u8], Attributes<'_>) {
        let at = fixed.min(self.0.len());
        (&self.0[..at], Attributes(&self.0[at..]))
    }
}

/// The attributes of a message, encoded one after the other.
#[derive(Clone, Copy)]
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Attributes<'a> {
    /// Returns the value of the first attribute of a kind.
    pub fn find(self, wanted: u16) -> Option<&'a [u8]> {
        let mut rest = self.0;
        while let Some((kind, value, length)) = first_attribute(rest) {
            if kind == wanted {
                return Some(value);
            }
            rest = rest.get(length..).unwrap_or_default();
        }
        None
    }

    /// Returns the value of the first attribute of a kind as a 32-bit number.
    pub fn find_number(self, wanted: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(
            self.find(wanted)?.first_chunk().copied()?,
        ))
    }

    /// Returns the value of the first attribute of a kind as text, up to its zero byte.
    pub fn find_text(self, wanted: u16) -> Option<String> {
        let value = self.find(wanted)?;
        let end = value.iter().position(|&byte| byte == 0);
        Some(String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]).into_owned())
    }
}

/// Returns kind, value and padded length of the first attribute.
fn first_attribute(bytes: &[u8]) -> Option<(u16, &[u8], usize)> {
    let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
    let value = bytes.get(4..length)?;
    // The two upper bits say how to interpret the value.
    Some((kind & 0x3fff, value, length.next_multiple_of(4)))
}

/// A connection to the kernel, for the network namespace in which this process opened it.
pub struct Netlink {
    socket: OwnedFd,
}

impl Netlink {
    /// Opens the connection.
    pub fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: a plain system call; the descriptor is new.
        let socket = unsafe {
            OwnedFd::from_raw_fd(check(libc::socket(
                libc::AF_NETLINK,
                kind,
                libc::NETLINK_ROUTE,
            ))?)
        };
        Ok(Self { socket })
    }

    /// Sends a request and waits until the kernel has executed it.
    pub fn execute(&self, request: Request) -> io::Result<()> {
        self.exchange_messages(request, libc::NLM_F_ACK as u16, |_| ())
    }

    /// Sends a request for all objects of a kind, and passes each message of the answer to `each`.
    pub fn list(&self, request: Request, each: impl FnMut(Message)) -> io::Result<()> {
        self.exchange_messages(request, libc::NLM_F_DUMP as u16, each)
    }

    fn exchange_messages(
        &self,
        request: Request,
        flags: u16,
        mut each: impl FnMut(Message),
    ) -> io::Result<()> {
        let mut bytes = request.bytes;
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        let flags = flags | u16::from_ne_bytes([bytes[6], bytes[7]]);
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        crate::sys::write(self.socket.as_raw_fd(), &bytes)?;
        let mut buffer = vec![0; LARGEST];
        loop {
            let count = crate::sys::read(self.socket.as_raw_fd(), &mut buffer)?.unwrap_or(0);
            let mut rest = &buffer[..count];
            while let Some((kind, body, length)) = first_message(rest) {
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => {
                        let code = body
                            .first_chunk()
                            .map_or(0, |code| i32::from_ne_bytes(*code));
                        return match code {
                            0 => Ok(()),
                            _ => Err(io::Error::from_raw_os_error(-code)),
                        };
                    }
                    _ => each(Message(body.to_vec())),
                }
                rest = rest.get(length..).unwrap_or_default();
            }
        }
    }
}

/// Returns kind, body and padded length of the first message.
fn first_message(bytes: &[u8]) -> Option<(u16, &[u8], usize)> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(HEADER..length)?;
    Some((kind, body, length.next_multiple_of(4)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{first_message, Attributes, Request};

    #[test]
    fn nested_attributes_are_found_again() {
        let mut request = Request::new(16, 0, &[]);
        request.put_name(3, "veth");
        request.nest(18, |inner| {
            inner.put_number(4, 1500).put(7, b"12345");
        });
        let attributes = Attributes(&request.bytes[super::HEADER..]);
        assert_eq!(attributes.find_text(3).unwrap(), "veth");
        let inner = Attributes(attributes.find(18).unwrap());
        assert_eq!(inner.find_number(4), Some(1500));
        assert_eq!(inner.find(7), Some(&b"12345"[..]));
        assert_eq!(inner.find(8), None);
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = first_message(&bytes);
            prop_assert_eq!(Attributes(&bytes).find(u16::MAX), None);
        }
    }
}
