//! Record one exchange over UDP, message by message.

use crate::connection::latency::seconds;
use crate::connection::latency::Latency;
use crate::connection::latency::RoundTrips;
use crate::wire::packet::NO_TIME;
use serde::Serialize;

/// Maximum number of messages that are listed.
const MOST_MESSAGES: usize = 16;
/// An end that got no answer sends again at the latest after this time (RFC 2131, 4.1); the same message later asks
/// again, as for the renewal of a lease.
const LONGEST_RETRY: u64 = 65_000_000_000;

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
    /// Time from the first message to the one that granted an address.
    pub granted_s: Option<f64>,
    /// When the last message was sent, and whether by the client.
    #[serde(skip)]
    pub(crate) last: (i64, bool),
    /// The last message of the server, and of the client, with its time.
    #[serde(skip)]
    pub(crate) said: [Option<(i64, u64)>; 2],
    /// The number of the last block of a file.
    #[serde(skip)]
    pub(crate) block: Option<u16>,
    #[serde(skip)]
    pub(crate) latency: Latency,
    #[serde(skip)]
    pub(crate) done: bool,
}

impl Exchange {
    /// Note one message; `what` identifies its contents. Return whether it repeats its sender's last message. It can do
    /// so even after an answer, as the answer may have been lost.
    pub(crate) fn note_message(&mut self, ts: i64, is_client: bool, kind: &str, what: u64) -> bool {
        let answered = self.last.1 != is_client;
        let again = self.said[usize::from(is_client)].is_some_and(|(at, before)| {
            let since = ts.saturating_sub(at).max(0) as u64;
            before == what && (!answered || since <= LONGEST_RETRY)
        });
        self.note_message_as(ts, is_client, kind, what, again);
        again
    }

    /// Whether a message repeats its sender's last one, which the other end has not answered.
    pub(crate) fn repeats_unanswered(&self, is_client: bool, what: u64) -> bool {
        let before = self.said[usize::from(is_client)];
        self.last.1 == is_client && before.is_some_and(|(_, before)| before == what)
    }

    /// Note one message that is sent `again`, or for the first time.
    pub(crate) fn note_message_as(
        &mut self,
        ts: i64,
        is_client: bool,
        kind: &str,
        what: u64,
        again: bool,
    ) {
        let (last, by_client) = self.last;
        self.last = (ts, is_client);
        self.said[usize::from(is_client)] = Some((ts, what));
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
            return;
        }
        let gap = ts.saturating_sub(last).max(0) as u64;
        if again {
            self.repeated += 1;
            self.recovery_s += seconds(gap);
        } else if is_client {
            self.client_s += seconds(gap);
        } else {
            self.server_s += seconds(gap);
            if by_client {
                self.latency.record(gap);
            }
        }
    }
}
