//! Describes and configures interfaces.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};

use guestmark_wire::network::{LinkState, Neighbour};

use super::ethtool::{Ethtool, OFFLOADS};
use super::netlink::{address_header, attribute, Attributes, Netlink, Request};

/// An interface by its name, its hardware address or where it leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// Identified by its name.
    Name(String),
    /// Identified by its hardware address, as text.
    Mac(String),
    /// The one from which this address is reached.
    Towards(Ipv4Addr),
}

impl std::fmt::Display for Device {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => write!(formatter, "the interface {name}"),
            Self::Mac(mac) => write!(formatter, "an interface with the address {mac}"),
            Self::Towards(address) => write!(formatter, "an interface that leads to {address}"),
        }
    }
}

/// An IPv4 address and the prefix length of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    address: Ipv4Addr,
    prefix: u8,
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not an address with a prefix length");
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address = address.parse().map_err(|_| wrong())?;
        let prefix = prefix.parse().map_err(|_| wrong())?;
        (prefix <= 32)
            .then_some(Self { address, prefix })
            .ok_or_else(wrong)
    }
}

/// The configuration of an interface; absent values are left unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setup {
    /// Its address.
    pub address: Option<Address>,
    /// The largest packet, in bytes (MTU).
    pub mtu: Option<u32>,
    /// Whether to turn all changeable offloads on or off.
    pub offloads: Option<bool>,
    /// Queues in use.
    pub queues: Option<u32>,
    /// Descriptors of each ring.
    pub ring: Option<u32>,
}

/// Configures an interface and brings it up, without IPv6.
pub fn set_up(device: &Device, setup: &Setup) -> io::Result<()> {
    let netlink = Netlink::open()?;
    let found = find(&netlink, device)?;
    let (name, index) = (found.name, found.index);
    // Without IPv6 an idle link is quiet. Kernels without IPv6 lack this file.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    let ethtool = Ethtool::open(&name)?;
    if let Some(number) = setup.queues {
        let now = ethtool.channels().map(|queues| queues.now);
        if now.ok() != Some(number) {
            ethtool.set_channels(number).map_err(|error| {
                failed(&format!("cannot set {number} queues on {name}"), &error)
            })?;
        }
    }
    if let Some(number) = setup.ring {
        ethtool.set_rings(number).map_err(|error| {
            let what = format!("cannot set rings of {number} descriptors on {name}");
            failed(&what, &error)
        })?;
    }
    if let Some(on) = setup.offloads {
        ethtool
            .switch(&OFFLOADS, on)
            .map_err(|error| failed(&format!("cannot switch the offloads of {name}"), &error))?;
    }
    if let Some(mtu) = setup.mtu {
        let mut request = Request::of_link(libc::RTM_NEWLINK, 0, index, false);
        request.put_number(attribute::IFLA_MTU, mtu);
        netlink
            .execute(request)
            .map_err(|error| failed(&format!("cannot set an MTU of {mtu} on {name}"), &error))?;
    }
    if let Some(Address { address, prefix }) = setup.address {
        let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
        let fixed = address_header(index, prefix);
        let mut request = Request::new(libc::RTM_NEWADDR, flags, &fixed);
        request
            .put(attribute::IFA_LOCAL, &address.octets())
            .put(attribute::IFA_ADDRESS, &address.octets());
        netlink
            .execute(request)
            .map_err(|error| failed(&format!("cannot add {address} to {name}"), &error))?;
    }
    netlink
        .execute(Request::of_link(libc::RTM_NEWLINK, 0, index, true))
        .map_err(|error| failed(&format!("{name} cannot be brought up"), &error))
}

/// Adds a default route through this interface, without a gateway.
pub fn add_default_route(name: &str) -> io::Result<()> {
    let netlink = Netlink::open()?;
    let index = find(&netlink, &Device::Name(name.to_owned()))?.index;
    // `struct rtmsg`: family, main table, protocol boot, scope link, unicast.
    let mut fixed = [0; 12];
    fixed[0] = libc::AF_INET as u8;
    fixed[4] = libc::RT_TABLE_MAIN;
    fixed[5] = libc::RTPROT_BOOT;
    fixed[6] = libc::RT_SCOPE_LINK;
    fixed[7] = libc::RTN_UNICAST;
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let mut request = Request::new(libc::RTM_NEWROUTE, flags, &fixed);
    request.put_number(attribute::RTA_OIF, index);
    netlink
        .execute(request)
        .map_err(|error| failed(&format!("cannot add a route through {name}"), &error))
}

/// Returns everything the kernel reports about an interface.
pub fn describe(device: &Device) -> io::Result<LinkState> {
    let netlink = Netlink::open()?;
    let mut link = find(&netlink, device)?;
    add_addresses(&netlink, &mut link)?;
    // Not every kernel with netlink supports this: gVisor's has no neighbours.
    let _ = add_neighbours(&netlink, &mut link);
    link.routed = is_routed(&netlink).unwrap_or(false);
    let directory = PathBuf::from(format!("/sys/class/net/{}", link.name));
    if let Ok(ethtool) = Ethtool::open(&link.name) {
        add_driver(&ethtool, &mut link);
    }
    link.virtio = read_line(&directory.join("device/features"));
    link.congestion_control = read_line(Path::new("/proc/sys/net/ipv4/tcp_congestion_control"));
    let switch = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", link.name);
    link.ipv6 = read_line(Path::new(&switch)) == "0";
    link.interrupts = list_interrupts(&directory, &link.name);
    Ok(link)
}

/// Returns the interface with the address that the kernel chooses for connections to `address`.
fn find_towards(netlink: &Netlink, address: Ipv4Addr) -> io::Result<LinkState> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // This sends nothing; any port will do.
    socket.connect((address, 9))?;
    let own = format!("{}/", socket.local_addr()?.ip());
    let mut links = Vec::new();
    netlink.list(
        Request::of_link(libc::RTM_GETLINK, 0, 0, false),
        |message| {
            let (fixed, attributes) = message.split(16);
            links.push(read_link(fixed, attributes));
        },
    )?;
    for mut link in links {
        add_addresses(netlink, &mut link)?;
        if link.addresses.iter().any(|text| text.starts_with(&own)) {
            link.addresses.clear();
            return Ok(link);
        }
    }
    let device = Device::Towards(address);
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!("{device} does not exist"),
    ))
}

fn add_driver(ethtool: &Ethtool, link: &mut LinkState) {
    if let Ok((driver, bus)) = ethtool.driver() {
        (link.driver, link.bus) = (driver, bus);
    }
    let features = ethtool.features().unwrap_or_default();
    for feature in features
        .into_iter()
        .filter(|feature| OFFLOADS.contains(&feature.name.as_str()))
    {
        if feature.fixed {
            link.fixed.push(feature.name.clone());
        }
        if feature.on {
            link.offloads.push(feature.name);
        }
    }
    if let Ok(queues) = ethtool.channels() {
        (link.channels, link.most_channels) = (Some(queues.now), Some(queues.most));
    }
    // User-Mode Linux (6.1 and before) panics when it is asked for the rings of an interface that has none.
    if link.driver == "uml-vector" {
        return;
    }
    if let Ok((receiving, sending)) = ethtool.rings() {
        (link.rx_ring, link.tx_ring) = (Some(receiving.now), Some(sending.now));
    }
}

fn find(netlink: &Netlink, device: &Device) -> io::Result<LinkState> {
    if let Device::Towards(address) = device {
        return find_towards(netlink, *address);
    }
    let mut found = None;
    netlink.list(
        Request::of_link(libc::RTM_GETLINK, 0, 0, false),
        |message| {
            let (fixed, attributes) = message.split(16);
            let link = read_link(fixed, attributes);
            let is_wanted = match device {
                Device::Name(name) => link.name == *name,
                Device::Mac(mac) => link.mac == *mac,
                Device::Towards(_) => false,
            };
            if is_wanted {
                found = Some(link);
            }
        },
    )?;
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{device} does not exist")))
}

fn read_link(fixed: &[u8], attributes: Attributes<'_>) -> LinkState {
    let number = |at: usize| {
        let bytes = fixed.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    };
    let mut link = LinkState {
        name: attributes
            .find_text(attribute::IFLA_IFNAME)
            .unwrap_or_default(),
        index: number(4),
        mac: attributes
            .find(attribute::IFLA_ADDRESS)
            .map(format_mac)
            .unwrap_or_default(),
        mtu: attributes.find_number(attribute::IFLA_MTU).unwrap_or(0),
        up: number(8) & libc::IFF_UP as u32 != 0,
        carrier: attributes
            .find(attribute::IFLA_CARRIER)
            .is_some_and(|value| value.first() == Some(&1)),
        other_end: attributes.find_number(attribute::IFLA_LINK),
        master: attributes.find_number(attribute::IFLA_MASTER),
        tx_queues: attributes
            .find_number(attribute::IFLA_NUM_TX_QUEUES)
            .unwrap_or(0),
        rx_queues: attributes
            .find_number(attribute::IFLA_NUM_RX_QUEUES)
            .unwrap_or(0),
        ..LinkState::default()
    };
    if let Some(information) = attributes.find(attribute::IFLA_LINKINFO) {
        let kind = Attributes(information).find_text(attribute::IFLA_INFO_KIND);
        link.kind = kind.unwrap_or_default();
    }
    if let Some(counts) = attributes.find(attribute::IFLA_STATS64) {
        let count = |at: usize| {
            let bytes = counts.get(at * 8..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        (link.rx_packets, link.tx_packets) = (count(0), count(1));
        (link.rx_bytes, link.tx_bytes) = (count(2), count(3));
    }
    link
}

fn add_addresses(netlink: &Netlink, link: &mut LinkState) -> io::Result<()> {
    let request = Request::new(libc::RTM_GETADDR, 0, &address_header(0, 0));
    netlink.list(request, |message| {
        let (fixed, attributes) = message.split(8);
        let address = attributes.find(attribute::IFA_LOCAL).and_then(read_ipv4);
        if let (Some(address), true) = (address, read_index(fixed, 4) == Some(link.index)) {
            link.addresses.push(format!("{address}/{}", fixed[1]));
        }
    })
}

fn add_neighbours(netlink: &Netlink, link: &mut LinkState) -> io::Result<()> {
    // `struct ndmsg`.
    let mut fixed = [0; 12];
    fixed[0] = libc::AF_INET as u8;
    netlink.list(Request::new(libc::RTM_GETNEIGH, 0, &fixed), |message| {
        let (fixed, attributes) = message.split(12);
        let address = attributes.find(attribute::NDA_DST).and_then(read_ipv4);
        let mac = attributes.find(attribute::NDA_LLADDR).map(format_mac);
        if let (Some(address), Some(mac), true) =
            (address, mac, read_index(fixed, 4) == Some(link.index))
        {
            let address = address.to_string();
            link.neighbours.push(Neighbour { address, mac });
        }
    })
}

/// Whether a route leads through a gateway.
fn is_routed(netlink: &Netlink) -> io::Result<bool> {
    // `struct rtmsg`.
    let fixed = [0; 12];
    let mut routed = false;
    netlink.list(Request::new(libc::RTM_GETROUTE, 0, &fixed), |message| {
        let (_, attributes) = message.split(12);
        routed |= attributes.find(attribute::RTA_GATEWAY).is_some();
    })?;
    Ok(routed)
}

fn read_index(fixed: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*fixed.get(at..)?.first_chunk()?))
}

fn read_ipv4(value: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from)
}

fn format_mac(value: &[u8]) -> String {
    let parts: Vec<_> = value.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}

/// Returns the list of processors of each interrupt of an interface or of its virtio device.
fn list_interrupts(directory: &Path, name: &str) -> Vec<String> {
    let device = fs::canonicalize(directory.join("device")).unwrap_or_default();
    let device = device.file_name().map(|name| name.to_string_lossy());
    let listed = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let mut found = Vec::new();
    for line in listed.lines() {
        let Some((number, rest)) = line.split_once(':') else {
            continue;
        };
        let is_own = rest.split_whitespace().any(|word| {
            let word = word.trim_end_matches(',');
            let begins = |start: &str| {
                word.strip_prefix(start)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            };
            begins(name) || device.as_deref().is_some_and(begins)
        });
        let processors = format!("/proc/irq/{}/smp_affinity_list", number.trim());
        let processors = read_line(Path::new(&processors));
        if is_own && !processors.is_empty() {
            found.push(processors);
        }
    }
    found
}

fn read_line(path: &Path) -> String {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// Prefixes the error with what failed.
pub fn failed(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
