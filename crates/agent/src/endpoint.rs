//! Where stream sockets connect to and listen: an IP address or a vsock context identifier, and a port.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::vsock;

/// What stands before the context identifier in an address of vsock.
const VSOCK: &str = "vsock:";
/// The limit of a connection by vsock that has none of its own.
const LONGEST: Duration = Duration::from_secs(20);

/// The address of one end, without a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// Of IP.
    Ip(IpAddr),
    /// The context identifier of a guest or of its host. Listeners take connections to any.
    Vsock(u32),
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = match text.strip_prefix(VSOCK) {
            Some(cid) => cid.parse().ok().map(Self::Vsock),
            None => text.parse().ok().map(Self::Ip),
        };
        parsed.ok_or_else(|| format!("{text:?} is not an IP address or {VSOCK}CID"))
    }
}

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The machine's.
    pub address: Address,
    /// Below 65,536 by vsock, too.
    pub port: u16,
}

impl Endpoint {
    /// Connects. Without a limit the kernel's own applies to TCP, and no system call is made for it.
    ///
    /// A vsock's connection is a `TcpStream` too, because reads, writes, shutting down and limits on waits are those of
    /// any stream socket; only what concerns TCP fails.
    pub fn connect(self, limit: Option<Duration>) -> io::Result<TcpStream> {
        match (self.address, limit) {
            (Address::Ip(address), Some(limit)) => {
                TcpStream::connect_timeout(&SocketAddr::new(address, self.port), limit)
            }
            (Address::Ip(address), None) => TcpStream::connect((address, self.port)),
            (Address::Vsock(cid), limit) => {
                let limit = limit.unwrap_or(LONGEST);
                vsock::connect(cid, u32::from(self.port), limit).map(TcpStream::from)
            }
        }
    }
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once(':');
        let (address, port) = parts.ok_or_else(|| format!("{text:?} has no port"))?;
        let bare = address.trim_start_matches('[').trim_end_matches(']');
        let port = port
            .parse()
            .map_err(|_| format!("{port:?} is not a port"))?;
        Ok(Self {
            address: bare.parse()?,
            port,
        })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.address {
            Address::Ip(address) => SocketAddr::new(address, self.port).fmt(to),
            Address::Vsock(cid) => write!(to, "{VSOCK}{cid}:{}", self.port),
        }
    }
}

/// A socket that accepts connections.
pub enum Listener {
    /// By TCP.
    Ip(TcpListener),
    /// By vsock, with its port.
    Vsock(OwnedFd, u16),
}

impl Listener {
    /// Listens at an endpoint; port 0 stands for a free one.
    pub fn bind(at: Endpoint) -> io::Result<Self> {
        match at.address {
            Address::Ip(address) => TcpListener::bind((address, at.port)).map(Self::Ip),
            Address::Vsock(_) => {
                let (socket, port) = vsock::listen(at.port)?;
                Ok(Self::Vsock(socket, port))
            }
        }
    }

    /// Returns the port.
    pub fn port(&self) -> io::Result<u16> {
        match self {
            Self::Ip(listener) => Ok(listener.local_addr()?.port()),
            Self::Vsock(_, port) => Ok(*port),
        }
    }

    /// Waits for a connection.
    pub fn accept(&self) -> io::Result<TcpStream> {
        match self {
            Self::Ip(listener) => listener.accept().map(|(stream, _)| stream),
            Self::Vsock(listener, _) => vsock::accept(listener).map(TcpStream::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_printed_as_they_are_read() {
        for text in ["127.0.0.1:80", "[::1]:80", "vsock:2:80"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "80",
            "vsock:80",
            "vsock:x:80",
            "127.0.0.1:65536",
            "host:1",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
