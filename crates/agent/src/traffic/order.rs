//! What the client's end asks the server's end for, and the answers: both are this program.

use serde::{Deserialize, Serialize};

use guestmark_wire::traffic::TrafficSender;

/// The first frame on a connection to the server: what the connection is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Receives a stream; [`Order::Report`] asks what it came to.
    Receive(Span),
    /// Sends one; [`Order::Report`] likewise.
    Send(Span),
    /// Answers each request on this connection with a response, at its end with [`Spent`].
    Echo(Exchange),
    /// Does the same once on each connection to the other port, until this connection ends; answered with [`Begun`] and
    /// at the end with [`Spent`].
    Accept(Exchange),
    /// Counts datagrams until none come any more: [`Begun`], then [`DatagramsReceived`].
    ReceiveDatagrams(DatagramSpan),
    /// Sends datagrams to whom it hears from: [`DatagramsSent`].
    SendDatagrams(DatagramSpan),
    /// What the stream of that number came to: [`Report`].
    Report(u64),
}

/// What a stream came to at the server's end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// If it came in.
    pub received: Option<Received>,
    /// If it went out.
    pub sent: Option<Sent>,
    /// Why it failed.
    pub failure: Option<String>,
}

/// A stream in time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Number by which it is asked for.
    pub id: u64,
    /// Time before the timed part.
    pub warm_ns: u64,
    /// The timed part.
    pub time_ns: u64,
}

impl Report {
    /// Of a stream that failed.
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

/// Datagrams in time.
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

/// Processor time that it took the server.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Of its threads.
    pub cpu_ns: u64,
}

/// What came in by a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// Bytes of the timed part.
    pub bytes: u64,
    /// Its length.
    pub elapsed_ns: u64,
    /// Processor time of the thread that read.
    pub cpu_ns: u64,
}

/// What the end knows that sent a stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// Processor time of the thread that wrote.
    pub cpu_ns: u64,
    /// The connection, by its kernel.
    pub sender: Option<TrafficSender>,
}

/// What came in by datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DatagramsReceived {
    /// How many.
    pub count: u64,
    /// How many the socket dropped.
    pub overflowed: Option<u64>,
    /// Processor time of the thread.
    pub cpu_ns: u64,
}

/// What was sent as datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DatagramsSent {
    /// How many.
    pub count: u64,
    /// How long.
    pub elapsed_ns: u64,
    /// Processor time of the thread.
    pub cpu_ns: u64,
}
