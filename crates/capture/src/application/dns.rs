//! Follow DNS queries over UDP (RFC 1035): each question, how often it was asked, and its answer.

use crate::application::flow::MOST_NAME;
use crate::application::served::{Request, Served};
use crate::connection::latency::seconds;
use crate::wire::host::Host;
use crate::wire::packet::{AddrWords, Family, Segment};
use std::collections::hash_map::{Entry, HashMap};
use std::fmt::Write;

/// Maximum number of questions that wait for an answer, and of servers whose questions are listed one by one.
const MOST_PENDING: usize = 65_536;
const MOST_SERVERS: usize = 1024;
pub(crate) const DNS: u16 = 53;
/// Length of the header, which precedes the first question.
const HEADER: usize = 12;
/// Types of records by number (RFC 1035, 3596, 2782, 4034, 6698, 9460).
const KINDS: [(u16, &str); 16] = [
    (1, "A"),
    (2, "NS"),
    (5, "CNAME"),
    (6, "SOA"),
    (12, "PTR"),
    (15, "MX"),
    (16, "TXT"),
    (28, "AAAA"),
    (33, "SRV"),
    (35, "NAPTR"),
    (43, "DS"),
    (48, "DNSKEY"),
    (52, "TLSA"),
    (64, "SVCB"),
    (65, "HTTPS"),
    (255, "ANY"),
];

/// An address and a port.
pub(crate) type End = (AddrWords, u16);

/// What identifies a question: client, server and the id in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QuestionKey {
    pub family: Family,
    pub client: End,
    pub server: AddrWords,
    pub id: u16,
}

/// A question that waits for its answer; time and frame are those of the first attempt.
#[derive(Debug)]
struct Pending {
    name: String,
    at: i64,
    frame: u64,
    repeated: u32,
}

/// How a question relates to earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It is new.
    New,
    /// It is new and has the id of an earlier one, which therefore is not answered any more.
    Instead,
    /// It was asked before and is not answered yet.
    Again,
    /// It is not followed, because too many questions are waiting.
    Unfollowed,
}

/// The questions of all clients.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    pending: HashMap<QuestionKey, Pending>,
    servers: HashMap<(Family, AddrWords), usize>,
    served: Vec<Served>,
}

impl Questions {
    /// Note a question; `message` is its captured part.
    pub(crate) fn ask(&mut self, way: QuestionKey, message: &[u8], segment: &Segment) -> Asked {
        let name = parse_question(message).unwrap_or_default();
        let waiting = self.pending.len();
        let first = Pending {
            name,
            at: segment.ts,
            frame: segment.frame,
            repeated: 0,
        };
        match self.pending.entry(way) {
            Entry::Vacant(_) if waiting >= MOST_PENDING => Asked::Unfollowed,
            Entry::Vacant(entry) => {
                entry.insert(first);
                Asked::New
            }
            Entry::Occupied(mut entry) if entry.get().name == first.name => {
                entry.get_mut().repeated += 1;
                Asked::Again
            }
            Entry::Occupied(mut entry) => {
                let before = entry.insert(first);
                self.finish_question(way, before, None);
                Asked::Instead
            }
        }
    }

    /// Note an answer; return the nanoseconds since its question was first asked.
    pub(crate) fn answer(
        &mut self,
        way: QuestionKey,
        message: &[u8],
        segment: &Segment,
    ) -> Option<u64> {
        let Entry::Occupied(entry) = self.pending.entry(way) else {
            return None;
        };
        // Servers repeat the question in their answers. Ids are reused, so an answer may belong to an earlier question.
        if parse_question(message).is_some_and(|name| name != entry.get().name) {
            return None;
        }
        let asked = entry.remove();
        let took = segment.ts.saturating_sub(asked.at).max(0) as u64;
        let code = message.get(3).map(|flags| u16::from(flags & 15));
        self.finish_question(way, asked, Some((took, code, segment)));
        Some(took)
    }

    /// Return the questions to each server, and the servers that did not answer, once for each question.
    pub(crate) fn finish(mut self) -> (Vec<Served>, Vec<AddrWords>) {
        let left: Vec<_> = self.pending.drain().collect();
        let silent = left.iter().map(|(way, _)| way.server).collect();
        for (way, asked) in left {
            self.finish_question(way, asked, None);
        }
        self.served.iter_mut().for_each(Served::finish);
        (self.served, silent)
    }

    fn finish_question(
        &mut self,
        way: QuestionKey,
        asked: Pending,
        answer: Option<(u64, Option<u16>, &Segment)>,
    ) {
        let next = self.served.len();
        let host = |words| Host::new(way.family, words, &[]).to_string();
        let at = match self.servers.entry((way.family, way.server)) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(_) if next >= MOST_SERVERS => return,
            Entry::Vacant(entry) => {
                let server = host(way.server);
                self.served.push(Served::new("dns", &server, DNS));
                *entry.insert(next)
            }
        };
        let took = answer.map(|(took, ..)| took);
        let request = Request {
            name: asked.name,
            status: answer.and_then(|(_, code, _)| code),
            client: host(way.client.0),
            start_ns: asked.at,
            sent_s: 0.0,
            first_byte_s: took.map(seconds),
            last_byte_s: took.map(seconds),
            frame: asked.frame,
            answer_frames: answer.map(|(.., segment)| (segment.frame, segment.frame)),
            bytes: answer.map_or(0, |(.., segment)| u64::from(segment.payload)),
            repeated: asked.repeated,
        };
        self.served[at].add(request, took, took);
    }
}

/// Return the id of a DNS query or answer, and whether it is an answer.
#[inline]
pub(crate) fn parse_number(message: &[u8]) -> Option<(u16, bool)> {
    let &[high, low, flags, ..] = message.first_chunk::<HEADER>()?;
    // Notifications and updates are not followed.
    (flags & 0x78 == 0).then_some((u16::from_be_bytes([high, low]), flags & 0x80 != 0))
}

/// Return type and name of the first question as in zone files: `AAAA www.example.org`; `None` if it was cut off.
fn parse_question(message: &[u8]) -> Option<String> {
    let (mut at, mut name) = (HEADER, String::new());
    loop {
        let length = usize::from(*message.get(at)?);
        if length == 0 {
            break;
        }
        // Larger values are pointers to earlier names, which cannot occur in the first question.
        let label = (length < 64).then(|| message.get(at + 1..=at + length))??;
        if !name.is_empty() {
            name.push('.');
        }
        for &byte in label {
            match byte {
                b'.' | b'\\' => name.extend(['\\', char::from(byte)]),
                b'!'..=b'~' => name.push(char::from(byte)),
                _ => write!(name, "\\{byte:03}").ok()?,
            }
        }
        at += 1 + length;
        if at > HEADER + 255 {
            return None;
        }
    }
    let kind = u16::from_be_bytes([*message.get(at + 1)?, *message.get(at + 2)?]);
    let known = KINDS.iter().find(|(number, _)| *number == kind);
    let kind = known.map_or_else(|| format!("TYPE{kind}"), |(_, word)| (*word).to_owned());
    let name: String = name.chars().take(MOST_NAME).collect();
    Some(format!(
        "{kind} {}",
        if name.is_empty() { "." } else { &name }
    ))
}

#[cfg(test)]
mod tests {
    use super::parse_question;

    #[test]
    fn names_are_written_as_in_zone_files() {
        let asked = |labels: &[&[u8]], kind: u8| {
            let mut message = vec![0; 12];
            for label in labels {
                message.push(label.len() as u8);
                message.extend_from_slice(label);
            }
            message.extend([0, 0, kind, 0, 1]);
            message
        };
        let whole = asked(&[b"www", b"example", b"org"], 28);
        assert_eq!(
            parse_question(&whole).as_deref(),
            Some("AAAA www.example.org")
        );
        assert_eq!(parse_question(&asked(&[], 2)).as_deref(), Some("NS ."));
        assert_eq!(
            parse_question(&asked(&[b"a.b\\", b"\xff x"], 99)).as_deref(),
            Some("TYPE99 a\\.b\\\\.\\255\\032x")
        );
        for end in 0..whole.len() - 2 {
            assert_eq!(parse_question(&whole[..end]), None, "{end}");
        }
    }
}
