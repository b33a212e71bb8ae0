//! Messages between a controller and `guestmark-agent traffic`, in frames like the agent's own.
//!
//! One program is the server end of all tests; it sends [`TrafficEvent::Listening`]. The client reads a [`TrafficTask`]
//! from its standard input, sends [`TrafficEvent::Ready`] when everything is connected, starts when it has read one
//! more byte, and answers with [`TrafficEvent::Measured`]; then it reads the next task.

use serde::{Deserialize, Serialize};

/// What is measured between the client and its peer, the server; the client opens every connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrafficTest {
    /// Streams to the peer.
    Upload,
    /// Streams from the peer.
    Download,
    /// Requests and responses on one connection, one at a time.
    Request,
    /// A connection for each request: connect, request, response, and the peer closes.
    Transaction,
    /// Connections that the peer closes without a byte.
    Connect,
    /// Datagrams to the peer, as many as the client can send.
    DatagramsUp,
    /// Datagrams from the peer, as many as it can send.
    DatagramsDown,
    /// Requests while streams go to the peer.
    RequestInUpload,
    /// Requests while streams come from the peer.
    RequestInDownload,
    /// Requests while streams go both ways.
    RequestInBoth,
}

/// One test to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrafficTask {
    /// What to measure.
    pub test: TrafficTest,
    /// Length of the timed part; a quarter of this time before it serves as a warm-up.
    pub time_ns: u64,
    /// Streams in each direction.
    #[serde(default)]
    pub flows: u32,
    /// Bytes of a request.
    #[serde(default)]
    pub request: u32,
    /// Bytes of its response.
    #[serde(default)]
    pub response: u32,
    /// Bytes of a datagram, without headers.
    #[serde(default)]
    pub size: u32,
}

/// The content of a frame that the program sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrafficEvent {
    /// The server can be connected to.
    Listening(TrafficPorts),
    /// The client has connected, and waits for a byte.
    Ready(TrafficTask),
    /// The result of the task.
    Measured(Box<TrafficResult>),
}

/// Where the server listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficPorts {
    /// TCP and UDP port of all tests except those of single connections.
    pub main: u16,
    /// TCP port of connections that begin with a request, or carry nothing.
    pub bare: u16,
}

/// The result of one task. Values that do not apply to its test are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficResult {
    /// Time from the controller's byte to the end, on the client's clock.
    pub elapsed_ns: u64,
    /// Processor time of the client's process meanwhile, as its kernel accounts it.
    pub cpu_ns: u64,
    /// Processor time that the server's threads spent on it.
    pub peer_cpu_ns: u64,
    /// Every stream.
    #[serde(default)]
    pub flows: Vec<TrafficFlow>,
    /// Times of requests or connections.
    #[serde(default)]
    pub times: Option<TrafficTimes>,
    /// Datagrams.
    #[serde(default)]
    pub datagrams: Option<TrafficDatagrams>,
}

/// One stream, counted where it arrives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrafficFlow {
    /// Whether it goes to the peer.
    pub upload: bool,
    /// Bytes read in the timed part.
    pub bytes: u64,
    /// Length of the timed part.
    pub elapsed_ns: u64,
    /// The sender's `TCP_INFO` at the end; absent if its kernel does not provide it.
    #[serde(default)]
    pub sender: Option<SenderTcpInfo>,
}

/// `TCP_INFO` of the sender's end of a TCP connection, since the connection's start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SenderTcpInfo {
    /// Name of the congestion control in force.
    pub congestion_control: String,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Smoothed round trip time.
    pub rtt_us: u64,
    /// Congestion window, in segments.
    pub window: u64,
    /// Segment size in bytes.
    pub segment: u64,
    /// Time with data to send; absent before Linux 4.10.
    #[serde(default)]
    pub busy_us: Option<u64>,
    /// The part of that time in which the receiver's window was full.
    #[serde(default)]
    pub receiver_us: Option<u64>,
    /// The part of that time in which the sender's own buffer was too small.
    #[serde(default)]
    pub buffer_us: Option<u64>,
    /// Bytes in the sender's socket that have not been sent yet.
    #[serde(default)]
    pub unsent: Option<u64>,
}

/// Times of a repeated action. Quantiles are at most 0.4 % too high.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficTimes {
    /// How many repetitions the timed part had.
    pub count: u64,
    /// Length of the timed part.
    pub elapsed_ns: u64,
    /// Arithmetic mean, exact.
    pub mean_ns: u64,
    /// The shortest time, exact.
    pub lowest_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90 % took no longer.
    pub p90_ns: u64,
    /// 99 % took no longer.
    pub p99_ns: u64,
    /// 99.9 % took no longer.
    pub p999_ns: u64,
    /// The longest time, exact.
    pub highest_ns: u64,
}

/// Datagrams in one direction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficDatagrams {
    /// How many datagrams the sender's kernel accepted.
    pub sent: u64,
    /// How many arrived at the other program, duplicates not counted.
    pub received: u64,
    /// How long the sender was sending.
    pub elapsed_ns: u64,
    /// How many the receiver's socket dropped, because its program was too slow; absent if unknown.
    #[serde(default)]
    pub overflowed: Option<u64>,
}
