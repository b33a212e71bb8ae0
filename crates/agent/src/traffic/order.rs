//! Messages between the client's end and the server's end; both are this program.

use serde::{Deserialize, Serialize};

use guestmark_wire::traffic::SenderTcpInfo;

/// The first frame on a connection to the server, which tells the server what to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Receive a stream; [`Order::Report`] asks for its result.
    Receive(Span),
    /// Send a stream; [`Order::Report`] asks for its result.
    Send(Span),
    /// Answer each request on this connection with a response, and its end with [`Spent`].
    Echo(Exchange),
    /// Answer one request on each connection to the other port until this connection ends; the server replies
    /// [`ServerReady`], and at the end [`Spent`].
    Accept(Exchange),
    /// Count datagrams until no more arrive; the server replies [`ServerReady`], then [`DatagramsReceived`].
    ReceiveDatagrams(DatagramSpan),
    /// Send datagrams to the sender of the first greeting; the server replies [`DatagramsSent`].
    SendDatagrams(DatagramSpan),
    /// Reply the result of the stream with this number as a [`Report`].
    Report(u64),
}

/// The result of a stream at the server's end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Result of a received stream.
    pub received: Option<Received>,
    /// Result of a sent stream.
    pub sent: Option<Sent>,
    /// The error, if the stream failed.
    pub failure: Option<String>,
}

/// The number and the time span of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Number by which its result is requested.
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
pub struct ServerReady {}

/// Processor time that the server used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Processor time of the threads involved.
    pub cpu_ns: u64,
}

/// Result of a received stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// Bytes received in the timed part.
    pub bytes: u64,
    /// Length of the timed part.
    pub elapsed_ns: u64,
    /// Processor time of the thread that read.
    pub cpu_ns: u64,
}

/// Result of a stream at the sending end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// Processor time of the thread that wrote.
    pub cpu_ns: u64,
    /// `TCP_INFO` of the connection.
    pub sender: Option<SenderTcpInfo>,
}

/// Result of received datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DatagramsReceived {
    /// Number of datagrams received.
    pub count: u64,
    /// Time from the first of them to the last.
    pub elapsed_ns: u64,
    /// Number of datagrams that the socket dropped.
    pub overflowed: Option<u64>,
    /// Processor time of the thread.
    pub cpu_ns: u64,
}

/// Result of sent datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DatagramsSent {
    /// Number of datagrams sent.
    pub count: u64,
    /// How long they were sent for.
    pub elapsed_ns: u64,
    /// Processor time of the thread.
    pub cpu_ns: u64,
}
