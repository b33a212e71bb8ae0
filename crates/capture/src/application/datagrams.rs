//! Follow protocols over UDP message by message: requests and answers.
//!
//! DHCP messages go to and from all-zero and broadcast addresses, and a TFTP server answers from a new port; such
//! messages are joined to one flow here, so that waits within it are recognised. DNS queries are in
//! [`crate::application::dns`]; of QUIC, the handshake is timed.

use crate::application::dns::{self, Asked, End, QuestionKey, Questions, DNS};
use crate::application::exchange::Exchange;
use crate::application::served::Served;
use crate::connection::latency::seconds;
use crate::connection::latency::Latency;
use crate::connection::latency::RoundTrips;
use crate::wire::host::Host;
use crate::wire::packet::{AddrWords, Direction, Family, FlowKey, Segment, NO_TIME, UDP};
use std::collections::HashMap;

const TFTP: u16 = 69;
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;
const DHCP_COOKIE: [u8; 4] = [0x63, 0x82, 0x53, 0x63];
/// Maximum number of exchanges that are kept; later ones are still counted in the flows.
const MOST: usize = 1024;
/// Maximum number of transfers that wait for their server.
const MOST_PENDING: usize = 65_536;

/// The exchanges of all supported protocols over UDP.
#[derive(Debug, Default)]
pub struct Datagrams {
    /// The exchanges in order of appearance.
    pub exchanges: Vec<Exchange>,
    /// Transfers by client and server address: the exchange, the port from which the server answers, and the port that
    /// was asked.
    transfers: HashMap<(End, AddrWords), (usize, u16, u16)>,
    leases: HashMap<u32, usize>,
    servers: HashMap<AddrWords, usize>,
    questions: Questions,
    handshakes: HashMap<(End, End), usize>,
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Datagrams {
    /// Process one datagram; its flow may be changed to the one it belongs to. Of a `copy`, which the capture contains
    /// already, nothing else is noted. `number` returns the number of a name.
    pub fn process(
        &mut self,
        segment: &mut Segment,
        payload: &[u8],
        copy: bool,
        number: impl FnMut(&str) -> Option<u64>,
    ) {
        let (from, to) = (
            usize::from(segment.from & 1),
            usize::from(1 - (segment.from & 1)),
        );
        let key = &segment.key;
        let (source, target) = (
            (key.addr[from], key.port[from]),
            (key.addr[to], key.port[to]),
        );
        match (source.1, target.1) {
            (DHCP_CLIENT | DHCP_SERVER, DHCP_SERVER) | (DHCP_SERVER, DHCP_CLIENT) => {
                self.follow_dhcp(segment, payload, source, copy, number);
            }
            (DNS, _) | (_, DNS | TFTP) if copy => {}
            (_, TFTP) => self.begin_transfer(segment, payload, source, target),
            _ if is_tftp_request(payload) => {
                if !copy {
                    self.begin_transfer(segment, payload, source, target);
                }
            }
            // Servers may ask each other from the port at which they answer.
            (DNS, DNS) if dns::parse_number(payload).is_some_and(|(_, answers)| answers) => {
                self.note_answer(segment, payload, target, source.0);
            }
            (_, DNS) => self.note_question(segment, payload, source, target.0),
            (DNS, _) => self.note_answer(segment, payload, target, source.0),
            _ if self.follow_tftp(segment, payload, source, target, copy) => {}
            _ if copy => {}
            _ => self.follow_quic(segment, payload, source, target),
        }
    }

    /// Return the finished exchanges, and the questions to each name server.
    #[must_use]
    pub fn finish(mut self) -> (Vec<Exchange>, Vec<Served>) {
        for exchange in &mut self.exchanges {
            exchange.answers = RoundTrips::new(&exchange.latency, true);
        }
        let (names, silent) = self.questions.finish();
        for server in silent {
            if let Some(&at) = self.servers.get(&server) {
                self.exchanges[at].unanswered += 1;
            }
        }
        (self.exchanges, names)
    }

    fn open(
        &mut self,
        protocol: &'static str,
        client: String,
        server: Option<String>,
        ts: i64,
    ) -> Option<usize> {
        if self.exchanges.len() >= MOST {
            return None;
        }
        self.exchanges.push(Exchange {
            protocol,
            client,
            server,
            name: None,
            start_ns: ts,
            duration_s: 0.0,
            client_s: 0.0,
            server_s: 0.0,
            recovery_s: 0.0,
            repeated: 0,
            count: 0,
            unanswered: 0,
            bytes: 0,
            answers: RoundTrips::default(),
            messages: Vec::new(),
            granted_s: None,
            last: (NO_TIME, false),
            said: [None; 2],
            block: None,
            latency: Latency::default(),
            done: false,
        });
        Some(self.exchanges.len() - 1)
    }

    fn follow_dhcp(
        &mut self,
        segment: &mut Segment,
        payload: &[u8],
        source: End,
        copy: bool,
        mut number: impl FnMut(&str) -> Option<u64>,
    ) {
        let (Some(&operation), Some(exchange), Some(hardware)) =
            (payload.first(), read_u32(payload, 4), payload.get(28..34))
        else {
            return;
        };
        if payload.get(236..240) != Some(&DHCP_COOKIE) {
            return;
        }
        let kind = find_dhcp_kind(&payload[240..]);
        let name = hardware
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<Vec<_>>()
            .join("-");
        let is_client = operation == 1;
        let host = Host::new(segment.key.family, source.0, &[]).to_string();
        let known = self.leases.get(&exchange).copied();
        let at = match known {
            Some(at) if self.exchanges[at].client == name => Some(at),
            _ if copy => None,
            _ => self.open("dhcp", name.clone(), None, segment.ts),
        };
        let Some(at) = at else { return };
        if !copy {
            self.leases.insert(exchange, at);
            let lease = &mut self.exchanges[at];
            if !is_client {
                lease.server.get_or_insert(host);
            }
            let what = u64::from(number_kind(kind));
            if matches!(kind, "discover" | "offer") {
                // Some clients, such as iPXE, ask once more although they have an offer, to hear of others.
                let again = lease.repeats_unanswered(is_client, what);
                lease.note_message_as(segment.ts, is_client, kind, what, again);
                segment.said_again = again;
            } else {
                segment.said_again = lease.note_message(segment.ts, is_client, kind, what);
            }
            // An answer to a client that has an address already offers none.
            if !is_client && kind == "ack" && payload.get(16..20) != Some(&[0; 4]) {
                lease.granted_s.get_or_insert(lease.duration_s);
            }
        }
        if let (Some(client), Some(server)) = (number(&name), number("dhcp")) {
            let ends = (
                ([client, 0], DHCP_CLIENT),
                ([server, u64::from(exchange)], DHCP_SERVER),
            );
            let (source, target) = if is_client { ends } else { (ends.1, ends.0) };
            (segment.key, segment.from) = FlowKey::new(Family::Name, UDP, source, target);
            segment.direction = Direction::Unknown;
        }
    }

    fn begin_transfer(&mut self, segment: &mut Segment, payload: &[u8], source: End, target: End) {
        let (Some(operation @ 1..=2), Some(name)) = (read_u16(payload, 0), payload.get(2..)) else {
            // The transfer continues at the well-known port.
            self.note_block(segment, payload, (source, target.0), true);
            return;
        };
        let name = name.split(|&byte| byte == 0).next().unwrap_or(&[]);
        let name = String::from_utf8_lossy(&name[..name.len().min(255)]).into_owned();
        let known = self.transfers.get(&(source, target.0)).copied();
        if let Some((at, 0, _)) = known {
            if self.exchanges[at].name.as_ref() == Some(&name) {
                segment.said_again =
                    self.exchanges[at].note_message(segment.ts, true, name_request(operation), 0);
                return;
            }
        }
        let host = |words| Host::new(segment.key.family, words, &[]).to_string();
        let at = self.open("tftp", host(source.0), Some(host(target.0)), segment.ts);
        if let Some(at) = at {
            self.exchanges[at].name = Some(name);
            self.exchanges[at].note_message(segment.ts, true, name_request(operation), 0);
            if self.transfers.len() < MOST_PENDING {
                self.transfers.insert((source, target.0), (at, 0, target.1));
            }
        }
    }

    fn follow_tftp(
        &mut self,
        segment: &mut Segment,
        payload: &[u8],
        source: End,
        target: End,
        copy: bool,
    ) -> bool {
        if self.transfers.is_empty() {
            return false;
        }
        for (client, server, is_client) in [(source, target, true), (target, source, false)] {
            let Some((_, port, asked)) = self.transfers.get_mut(&(client, server.0)) else {
                continue;
            };
            if *port == 0 && !is_client {
                *port = server.1;
            }
            if *port != server.1 {
                continue;
            }
            // The server answers from a new port, but its messages belong to the request that was sent to another one.
            let known = (server.0, *asked);
            let (from, to) = if is_client {
                (client, known)
            } else {
                (known, client)
            };
            (segment.key, segment.from) = FlowKey::new(segment.key.family, UDP, from, to);
            if !copy {
                self.note_block(segment, payload, (client, server.0), is_client);
            }
            return true;
        }
        false
    }

    fn note_block(
        &mut self,
        segment: &mut Segment,
        payload: &[u8],
        transfer: (End, AddrWords),
        is_client: bool,
    ) {
        let Some(&(at, ..)) = self.transfers.get(&transfer) else {
            return;
        };
        let Some(operation) = read_u16(payload, 0) else {
            return;
        };
        let block = read_u16(payload, 2).unwrap_or(0);
        let kind = match operation {
            3 => "data",
            4 => "ack",
            5 => "error",
            6 => "oack",
            _ => "?",
        };
        let exchange = &mut self.exchanges[at];
        let what = u64::from(operation) << 16 | u64::from(block);
        if operation != 3 {
            segment.said_again = exchange.note_message(segment.ts, is_client, kind, what);
            return;
        }
        // A server that sends several blocks at once (RFC 7440) sends all of them again. Numbers start again after
        // 65,535 blocks.
        let again = exchange
            .block
            .is_some_and(|last| block.wrapping_sub(last) as i16 <= 0);
        exchange.note_message_as(segment.ts, is_client, kind, what, again);
        segment.said_again = again;
        if !again {
            exchange.block = Some(block);
            exchange.count += 1;
            exchange.bytes += u64::from(segment.payload.saturating_sub(4));
        }
    }

    fn note_question(&mut self, segment: &Segment, payload: &[u8], client: End, server: AddrWords) {
        let Some((id, false)) = dns::parse_number(payload) else {
            return;
        };
        let family = segment.key.family;
        let at = if let Some(&at) = self.servers.get(&server) {
            at
        } else {
            let host = Host::new(family, server, &[]).to_string();
            let Some(at) = self.open("dns", String::new(), Some(host), segment.ts) else {
                return;
            };
            self.servers.insert(server, at);
            at
        };
        let exchange = &mut self.exchanges[at];
        exchange.duration_s = seconds(segment.ts.abs_diff(exchange.start_ns));
        let way = QuestionKey {
            family,
            client,
            server,
            id,
        };
        let asked = self.questions.ask(way, payload, segment);
        exchange.repeated += u64::from(asked == Asked::Again);
        exchange.count += u64::from(matches!(asked, Asked::New | Asked::Instead));
        exchange.unanswered += u64::from(asked == Asked::Instead);
    }

    fn note_answer(&mut self, segment: &Segment, payload: &[u8], client: End, server: AddrWords) {
        let Some((id, true)) = dns::parse_number(payload) else {
            return;
        };
        let family = segment.key.family;
        let way = QuestionKey {
            family,
            client,
            server,
            id,
        };
        let Some(took) = self.questions.answer(way, payload, segment) else {
            return;
        };
        if let Some(&at) = self.servers.get(&server) {
            let exchange = &mut self.exchanges[at];
            exchange.server_s += seconds(took);
            exchange.latency.record(took);
            exchange.duration_s = seconds(segment.ts.abs_diff(exchange.start_ns));
        }
    }

    /// Follow the part of QUIC that is not encrypted: the types of long headers, until both ends use short ones.
    fn follow_quic(&mut self, segment: &Segment, payload: &[u8], source: End, target: End) {
        let (Some(&first), Some(version)) = (payload.first(), read_u32(payload, 1)) else {
            return;
        };
        let long = first & 0x80 != 0;
        if long && !matches!(version, 1 | 0x6b33_43cf | 0xff00_001d..=0xff00_00ff) {
            return;
        }
        let (at, is_client) = match (
            self.handshakes.get(&(source, target)),
            self.handshakes.get(&(target, source)),
        ) {
            (Some(&at), _) => (at, true),
            (_, Some(&at)) => (at, false),
            // Only a client's first packet is padded to this size; the second bit of later ones may have any value (RFC
            // 9287).
            _ if first & 0xc0 == 0xc0 && payload.len() >= 1200 => {
                let host = |words| Host::new(segment.key.family, words, &[]).to_string();
                let server = Some(format!("{}:{}", host(target.0), target.1));
                let Some(at) = self.open("quic", host(source.0), server, segment.ts) else {
                    return;
                };
                self.handshakes.insert((source, target), at);
                (at, true)
            }
            _ => return,
        };
        let exchange = &mut self.exchanges[at];
        if exchange.done {
            return;
        }
        let number = if version == 0x6b33_43cf {
            (first >> 4 & 3).wrapping_sub(1) & 3
        } else {
            first >> 4 & 3
        };
        let kind = match (long, number) {
            (false, _) => "1-rtt",
            (true, 0) => "initial",
            (true, 1) => "0-rtt",
            (true, 2) => "handshake",
            (true, _) => "retry",
        };
        // Unknown contents are not taken for repeated ones.
        let contents = match segment.seq {
            0 => segment.ts as u64,
            known => u64::from(known),
        };
        exchange.note_message(segment.ts, is_client, kind, contents);
        exchange.done = kind == "1-rtt" && is_client;
    }
}

/// Whether this is a complete TFTP request (operation, name and mode, RFC 1350), although it was not sent to TFTP's
/// port.
fn is_tftp_request(payload: &[u8]) -> bool {
    if !matches!(payload, [0, 1 | 2, ..]) {
        return false;
    }
    let mut words = payload[2..].split(|&byte| byte == 0);
    let named = words
        .next()
        .is_some_and(|name| !name.is_empty() && name.iter().all(u8::is_ascii_graphic));
    named
        && words.next().is_some_and(|mode| {
            mode.eq_ignore_ascii_case(b"octet") || mode.eq_ignore_ascii_case(b"netascii")
        })
        && words.next().is_some()
}

fn name_request(operation: u16) -> &'static str {
    if operation == 1 {
        "read request"
    } else {
        "write request"
    }
}

const DHCP_KINDS: [&str; 8] = [
    "discover", "offer", "request", "decline", "ack", "nak", "release", "inform",
];

fn find_dhcp_kind(mut options: &[u8]) -> &'static str {
    loop {
        match options {
            [0, rest @ ..] => options = rest,
            [53, 1, kind, ..] => {
                return DHCP_KINDS
                    .get(usize::from(*kind).wrapping_sub(1))
                    .copied()
                    .unwrap_or("?")
            }
            [kind, length, rest @ ..] if *kind != 255 => {
                options = rest.get(usize::from(*length)..).unwrap_or(&[]);
            }
            _ => return "bootp",
        }
    }
}

fn number_kind(kind: &str) -> u8 {
    DHCP_KINDS
        .iter()
        .position(|known| *known == kind)
        .map_or(0, |at| at as u8 + 1)
}
