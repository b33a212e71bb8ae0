//! Record one exchange over UDP, message by message.

use crate::connection::latency::seconds;
use crate::connection::latency::Latency;
use crate::connection::latency::RoundTrips;
use crate::wire::packet::NO_TIME;
use serde::Serialize;

/// Maximum number of messages that are listed.
const MOST_MESSAGES: usize = 16;

/// One message of an exchange.
#[derive(Clone, Debug, Serialize)]
pub struct Message {
    /// Seconds since the first one.
    pub at_s: f64,
    /// Whether the client sent it.
    pub client: bool,
    /// Its type, in the protocol's words.
    pub kind: String,
}

/// One exchange: a DHCP lease, a TFTP transfer, a QUIC handshake, or all questions to one DNS server.
#[derive(Debug, Serialize)]
pub struct Exchange {
    /// `dhcp`, `tftp`, `dns` or `quic`.
    pub protocol: &'static str,
    /// The client: an address, or in DHCP the hardware address.
    pub client: String,
    /// The server.
    pub server: Option<String>,
    /// Name of the transferred file.
    pub name: Option<String>,
    /// Time of the first message, nanoseconds since 1970.
    pub start_ns: i64,
    /// Time from the first message to the last.
    pub duration_s: f64,
    /// Time that the client took to continue.
    pub client_s: f64,
    /// Time that the server took to answer.
    pub server_s: f64,
    /// Time spent before repetitions.
    pub recovery_s: f64,
    /// Number of repeated messages.
    pub repeated: u64,
    /// Number of questions, or of blocks of a file.
    pub count: u64,
    /// Number of questions without an answer.
    pub unanswered: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// The server's answers one by one: to each block, to each question.
    pub answers: RoundTrips,
    /// The first messages.
    pub messages: Vec<Message>,
    #[serde(skip)]
    pub(crate) last: (i64, bool, u64),
    #[serde(skip)]
    pub(crate) latency: Latency,
    #[serde(skip)]
    pub(crate) done: bool,
}

impl Exchange {
    /// Note one message; `what` identifies its contents. Return false if it repeats its sender's last message.
    pub(crate) fn note_message(&mut self, ts: i64, is_client: bool, kind: &str, what: u64) -> bool {
        let (last, by_client, before) = self.last;
        self.last = (ts, is_client, what);
        self.duration_s = self
            .duration_s
            .max(seconds(ts.saturating_sub(self.start_ns).max(0) as u64));
        if self.messages.len() < MOST_MESSAGES {
            self.messages.push(Message {
                at_s: ts.saturating_sub(self.start_ns) as f64 / 1e9,
                client: is_client,
                kind: kind.to_owned(),
            });
        }
        if last == NO_TIME {
            return true;
        }
        let gap = ts.saturating_sub(last).max(0) as u64;
        if by_client == is_client && before == what {
            self.repeated += 1;
            self.recovery_s += seconds(gap);
            return false;
        }
        if is_client {
            self.client_s += seconds(gap);
        } else {
            self.server_s += seconds(gap);
            if by_client {
                self.latency.record(gap);
            }
        }
        true
    }
}
