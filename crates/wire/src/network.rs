//! What `guestmark-agent network` prints: interfaces and sockets as their kernel reports them, and processes.

use serde::{Deserialize, Serialize};

/// A network interface, with the settings of its namespace that affect it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools)]
pub struct LinkState {
    /// Its name.
    pub name: String,
    /// Its interface index.
    pub index: u32,
    /// Its hardware address as text; empty if it has none.
    pub mac: String,
    /// The largest packet, in bytes (MTU).
    pub mtu: u32,
    /// Whether it is up.
    pub up: bool,
    /// Whether it has a carrier.
    pub carrier: bool,
    /// Its type in the words of `ip link`: `veth`, `tun`, …; empty for a device.
    pub kind: String,
    /// Index of its other end, if that is an interface too.
    #[serde(default)]
    pub other_end: Option<u32>,
    /// Index of the bridge or bond that it belongs to.
    #[serde(default)]
    pub master: Option<u32>,
    /// Its IPv4 addresses with prefix lengths.
    pub addresses: Vec<String>,
    /// Name of its driver; empty if the kernel does not report it.
    pub driver: String,
    /// Bus address of its device.
    pub bus: String,
    /// Enabled offloads, by the kernel's names.
    pub offloads: Vec<String>,
    /// Offloads that cannot be changed.
    pub fixed: Vec<String>,
    /// Bits of the virtio features that driver and device agreed on, lowest first; empty for other devices.
    pub virtio: String,
    /// Number of transmit queues.
    pub tx_queues: u32,
    /// Number of receive queues.
    pub rx_queues: u32,
    /// Number of queues in use, if the driver lets it be set.
    #[serde(default)]
    pub channels: Option<u32>,
    /// Maximum number of queues.
    #[serde(default)]
    pub most_channels: Option<u32>,
    /// Number of descriptors in a transmit ring.
    #[serde(default)]
    pub tx_ring: Option<u32>,
    /// Number of descriptors in a receive ring.
    #[serde(default)]
    pub rx_ring: Option<u32>,
    /// For each of its interrupts, the list of processors that may handle it.
    pub interrupts: Vec<String>,
    /// Bytes sent so far.
    pub tx_bytes: u64,
    /// Bytes received so far.
    pub rx_bytes: u64,
    /// Packets sent so far.
    pub tx_packets: u64,
    /// Packets received so far.
    pub rx_packets: u64,
    /// TCP's congestion control in its namespace.
    pub congestion_control: String,
    /// Whether it has IPv6.
    pub ipv6: bool,
    /// Whether some route leads beyond the networks that its namespace is directly on.
    pub routed: bool,
    /// Hardware addresses of its neighbours, by IPv4 address.
    pub neighbours: Vec<Neighbour>,
}

/// A guest's device for sockets to its hypervisor's kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VsockState {
    /// Its context identifier, by which the other end reaches it.
    pub cid: u32,
    /// Name of its driver; empty if none has taken it.
    pub driver: String,
    /// Bits of the virtio features that driver and device agreed on, lowest first.
    pub virtio: String,
}

/// A neighbour on a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Its IPv4 address.
    pub address: String,
    /// Its hardware address.
    pub mac: String,
}

/// A process in a network, or one that is meant to carry its traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools)]
pub struct NetworkProcess {
    /// Its process id.
    pub pid: u32,
    /// Path of its executable; empty for a thread of the kernel.
    pub program: String,
    /// Processors that it may use, as a list.
    pub processors: String,
    /// Whether it is in one of the network's namespaces.
    pub in_namespace: bool,
    /// Whether it has an open descriptor of the tap.
    pub holds_tap: bool,
    /// Whether it is one of the ends, or was started by one.
    pub is_end: bool,
    /// Whether it is meant to carry traffic, or was started by such a process.
    pub is_joiner: bool,
    /// Processor time of its threads so far.
    pub worked_ns: u64,
    /// Processor time of the kernel threads that carry traffic for it; absent if there are none.
    #[serde(default)]
    pub vhost_ns: Option<u64>,
}
