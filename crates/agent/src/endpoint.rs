//! Addresses and ports to which stream sockets connect and at which they listen: of IP, of vsock, and of the Unix sockets
//! by which some hypervisors carry their guest's vsock.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::vsock;

/// Prefix of a vsock address; the context identifier follows.
const VSOCK: &str = "vsock:";
/// Prefix of an address of Unix sockets; the path of the hypervisor's socket follows.
const UNIX: &str = "unix:";
/// The limit of a connection by vsock that has none of its own.
const LONGEST: Duration = Duration::from_secs(20);
/// How many ports are tried to find a free one.
const ATTEMPTS: u16 = 64;

/// The address of one end, without a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// Of IP.
    Ip(IpAddr),
    /// The context identifier of a guest or of its host. Listeners take connections to any.
    Vsock(u32),
    /// The path of a hypervisor's socket. If its guest connects to a port of its host, the hypervisor connects to the
    /// socket `PATH_PORT`. Firecracker and Cloud Hypervisor do so.
    Unix(&'static Path),
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = if let Some(cid) = text.strip_prefix(VSOCK) {
            cid.parse().ok().map(Self::Vsock)
        } else if let Some(path) = text.strip_prefix(UNIX) {
            // An address is read once and needed until the process ends.
            path.starts_with('/')
                .then(|| Self::Unix(Path::new(path.to_owned().leak())))
        } else {
            text.parse().ok().map(Self::Ip)
        };
        parsed.ok_or_else(|| format!("{text:?} is not an IP address, {VSOCK}CID or {UNIX}PATH"))
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
            (Address::Unix(path), _) => {
                UnixStream::connect(name_socket(path, self.port)).map(to_stream)
            }
        }
    }
}

/// Returns the path of the socket for a port.
fn name_socket(path: &Path, port: u16) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!("_{port}"));
    name.into()
}

fn to_stream(stream: UnixStream) -> TcpStream {
    OwnedFd::from(stream).into()
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
            Address::Unix(path) => write!(to, "{UNIX}{}:{}", path.display(), self.port),
        }
    }
}

/// A socket that accepts connections.
pub enum Listener {
    /// By TCP.
    Ip(TcpListener),
    /// By vsock, with its port.
    Vsock(OwnedFd, u16),
    /// By a Unix socket, with the port in its name.
    Unix(UnixListener, u16),
}

impl Listener {
    /// Listens at an endpoint; port 0 stands for a free one.
    pub fn bind(at: Endpoint) -> io::Result<Self> {
        match at.address {
            Address::Ip(address) => TcpListener::bind((address, at.port)).map(Self::Ip),
            Address::Vsock(_) => {
                let (socket, port) = try_ports(at.port, vsock::listen)?;
                Ok(Self::Vsock(socket, port))
            }
            Address::Unix(path) => {
                let (socket, port) =
                    try_ports(at.port, |port| UnixListener::bind(name_socket(path, port)))?;
                Ok(Self::Unix(socket, port))
            }
        }
    }

    /// Returns the port.
    pub fn port(&self) -> io::Result<u16> {
        match self {
            Self::Ip(listener) => Ok(listener.local_addr()?.port()),
            Self::Vsock(_, port) | Self::Unix(_, port) => Ok(*port),
        }
    }

    /// Waits for a connection.
    pub fn accept(&self) -> io::Result<TcpStream> {
        match self {
            Self::Ip(listener) => listener.accept().map(|(stream, _)| stream),
            Self::Vsock(listener, _) => vsock::accept(listener).map(TcpStream::from),
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| to_stream(stream)),
        }
    }
}

/// Listens at a port, or at a free one if it is 0, and returns the port as well. For these sockets the kernel chooses no
/// port of 16 bits.
fn try_ports<S>(port: u16, listen: impl Fn(u16) -> io::Result<S>) -> io::Result<(S, u16)> {
    if port != 0 {
        return listen(port).map(|socket| (socket, port));
    }
    let first = 1024 + (crate::sys::monotonic_ns() % 60_000) as u16;
    for port in first..first + ATTEMPTS {
        match listen(port) {
            Ok(socket) => return Ok((socket, port)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn endpoints_are_printed_as_they_are_read() {
        for text in ["127.0.0.1:80", "[::1]:80", "vsock:2:80", "unix:/run/a:80"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "80",
            "vsock:80",
            "vsock:x:80",
            "unix:run/a:80",
            "unix:/run/a",
            "127.0.0.1:65536",
            "host:1",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_port_of_a_hypervisors_guest_has_a_socket_of_its_own() {
        let root = std::env::temp_dir().join(format!("guestmark-unix-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let any = format!("unix:{}/vsock:0", root.display());
        let any = any.parse::<Endpoint>().unwrap();
        let listeners = [Listener::bind(any).unwrap(), Listener::bind(any).unwrap()];
        let ports = listeners.each_ref().map(|each| each.port().unwrap());
        assert_ne!(ports[0], ports[1]);
        for (listener, port) in listeners.iter().zip(ports) {
            assert!(root.join(format!("vsock_{port}")).exists());
            let at = Endpoint {
                address: any.address,
                port,
            };
            assert_eq!(
                Listener::bind(at).map(drop).unwrap_err().kind(),
                io::ErrorKind::AddrInUse
            );
            let mut near = at.connect(None).unwrap();
            let mut far = listener.accept().unwrap();
            near.write_all(b"x").unwrap();
            let mut found = [0];
            far.read_exact(&mut found).unwrap();
            assert_eq!(found, *b"x");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
