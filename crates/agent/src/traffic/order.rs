//! Messages between the client's end and the server's end; both are this program.

use serde::{Deserialize, Serialize};

use guestmark_wire::traffic::TrafficSender;

/// The first frame on a connection to the server: what the connection is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Receives a stream; [`Order::Report`] asks for its result.
    Receive(Span),
    /// Sends a stream; [`Order::Report`] likewise.
    Send(Span),
    /// Answers each request on this connection with a response, and its end with [`Spent`].
    Echo(Exchange),
    /// Does the same once on each connection to the other port, until this connection ends; answered with [`Begun`],
    /// and at the end with [`Spent`].
    Accept(Exchange),
    /// Counts datagrams until none come any more: [`Begun`], then [`DatagramsReceived`].
    ReceiveDatagrams(DatagramSpan),
    /// Sends datagrams to the sender of the first greeting: [`DatagramsSent`].
    SendDatagrams(DatagramSpan),
    /// Asks for the result of the stream with this number: [`Report`].
    Report(u64),
}

/// The result of a stream at the server's end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Result of a received stream.
    pub received: Option<Received>,
    /// Result of a sent stream.
    pub sent: Option<Sent>,
    /// Reason of a failure.
    pub failure: Option<String>,
}

/// The number and the time span of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Number by which its result is asked for.
    pub id: u64,
    /// Length of the time before the timed part.
    pub warm_ns: u64,
    /// Length of the timed part.
    pub time_ns: u64,
}

impl Report {
    /// Makes the report of a stream that failed.
    pub fn of_failure(error: &std::io::Error) -> Self {
        Self {
            failure: Some(error.to_string()),
            ..Self::default()
        }
    }
}

/// Sizes of a request and its response.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Bytes to the server.
    pub request: u32,
    /// Bytes back.
    pub response: u32,
}

/// The number, size and time span of a test of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DatagramSpan {
    /// Number that each of them carries.
    pub id: u64,
    /// Bytes of each.
    pub size: u32,
    /// How long they are sent for.
    pub time_ns: u64,
}

/// The server is ready.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Begun {}

/// Processor time that the server used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Of its threads.
    pub cpu_ns: u64,
}

/// Result of a received stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// Bytes of the timed part.
    pub bytes: u64,
    /// Its length.
    pub elapsed_ns: u64,
    /// Processor time of the thread that read.
    pub cpu_ns: u64,
}

/// Result of a stream at the sending end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// Processor time of the thread that wrote.
    pub cpu_ns: u64,
    /// The connection, as its kernel describes it.
    pub sender: Option<TrafficSender>,
}

/// Result of received datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DatagramsReceived {
    /// How many.
    pub count: u64,
    /// How many datagrams the socket dropped.
    pub overflowed: Option<u64>,
    /// Processor time of the thread.
    pub cpu_ns: u64,
}

/// Result of sent datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DatagramsSent {
    /// How many.
    pub count: u64,
    /// How long.
    pub elapsed_ns: u64,
    /// Processor time of the thread.
    pub cpu_ns: u64,
}
