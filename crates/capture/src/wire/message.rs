//! Find out from the first bytes of a segment where a message ends, and thus what its sender still owes when it pauses.
//!
//! HTTP heads, the headers of TLS records and the frames of HTTP/2 without TLS show how much follows. Only the current
//! segment is read, so nothing is found out about a message whose head spans two segments.

use crate::wire::heads::{self, Length};

/// What a segment shows about its message, packed into a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message(u32);

/// What a segment shows about its message, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageClue {
    /// Nothing.
    Nothing,
    /// It begins a message of this many bytes.
    Ends(u32),
    /// It begins a request of this many bytes whose answer has no body, whatever the answer's head shows.
    Asks(u32),
    /// It begins a message of unknown length.
    Open,
    /// It ends a message of unknown length.
    Last,
    /// It begins with TLS records or HTTP/2 frames.
    Records(Records),
}

/// The TLS records or HTTP/2 frames in a segment.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// Their total length in bytes, including what follows in later segments.
    pub length: u32,
    /// Whether a handshake begins with the client's first message.
    pub hello: bool,
    /// Whether the sender encrypts from now on.
    pub ciphers: bool,
    /// Whether they contain application data, so that the handshake is over for the sender.
    pub data: bool,
    /// Whether the server asks the client for another first message.
    pub retry: bool,
}

/// How an end's current message continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessageState {
    /// Nothing is known.
    #[default]
    Unknown,
    /// It continues to a known position.
    Body,
    /// It continues to an unknown position.
    Open,
    /// It is complete.
    Whole,
    /// A record continues to a known position.
    Record,
    /// A record is complete, and perhaps the message.
    BetweenRecords,
}

const NOTHING: u32 = 0;
const ENDS: u32 = 1;
const ASKS: u32 = 2;
const OPEN: u32 = 3;
const LAST: u32 = 4;
const RECORDS: u32 = 5;
/// Bits of the length; the kind is stored above them.
const LENGTH: u32 = 29;
const HELLO: u32 = 1 << 28;
const CIPHERS: u32 = 1 << 27;
const DATA: u32 = 1 << 26;
const RETRY: u32 = 1 << 25;

/// Header of a record: kind, version, length (RFC 8446, 5.1).
const RECORD: usize = 5;
const CHANGE_CIPHER_SPEC: u8 = 20;
const APPLICATION_DATA: u8 = 23;
/// A server's first message with this random number asks for another one of the client (RFC 8446, 4.1.3); its first
/// bytes suffice.
const RETRY_RANDOM: [u8; 4] = [0xcf, 0x21, 0xad, 0x74];
/// Header of a frame: length, kind, flags, stream (RFC 9113, 4.1).
const FRAME: usize = 9;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

impl Message {
    /// A segment that shows nothing about its message.
    pub const NOTHING: Self = Self(NOTHING);

    /// Find out what the `seen` bytes of a payload of `length` bytes show; if `pushed`, the sender had nothing more to
    /// send.
    #[inline]
    #[must_use]
    pub fn of(seen: &[u8], length: u32, pushed: bool) -> Self {
        let Some(&first) = seen.first() else {
            return Self::NOTHING;
        };
        if (20..=23).contains(&first) || first.is_ascii_uppercase() {
            let found = parse_start(seen);
            if found != Self::NOTHING {
                return found;
            }
        }
        let all = seen.len() == length as usize;
        if pushed && all && seen.ends_with(b"0\r\n\r\n") {
            return Self(LAST << LENGTH);
        }
        Self::NOTHING
    }

    /// Convert back the word that [`Message::word`] returned.
    #[must_use]
    pub fn from_word(word: u32) -> Self {
        Self(word)
    }

    /// Return the word to store.
    #[must_use]
    pub fn word(self) -> u32 {
        self.0
    }

    /// Return what it shows, unpacked.
    #[must_use]
    pub fn says(self) -> MessageClue {
        let length = self.0 & ((1 << LENGTH) - 1);
        match self.0 >> LENGTH {
            ENDS => MessageClue::Ends(length),
            ASKS => MessageClue::Asks(length),
            OPEN => MessageClue::Open,
            LAST => MessageClue::Last,
            RECORDS => MessageClue::Records(Records {
                length: length & (RETRY - 1),
                hello: length & HELLO != 0,
                ciphers: length & CIPHERS != 0,
                data: length & DATA != 0,
                retry: length & RETRY != 0,
            }),
            _ => MessageClue::Nothing,
        }
    }

    fn new(kind: u32, length: u64) -> Self {
        if length < 1 << LENGTH {
            Self(kind << LENGTH | length as u32)
        } else {
            Self(OPEN << LENGTH)
        }
    }
}

/// Return the message, records or frames that begin here.
fn parse_start(seen: &[u8]) -> Message {
    if seen.starts_with(PREFACE) {
        let (length, _) = parse_frames(&seen[PREFACE.len()..]);
        return Message::new(RECORDS, length + PREFACE.len() as u64);
    }
    if seen[0] <= APPLICATION_DATA {
        return parse_records(seen).map_or(Message::NOTHING, |found| {
            let mark = |holds: bool, bit: u32| if holds { bit } else { 0 };
            let marks = mark(found.hello, HELLO)
                | mark(found.ciphers, CIPHERS)
                | mark(found.data, DATA)
                | mark(found.retry, RETRY);
            Message(RECORDS << LENGTH | marks | found.length.min(RETRY - 1))
        });
    }
    let asks = heads::is_request(seen);
    if !asks && !heads::is_answer(seen) {
        return Message::NOTHING;
    }
    let Some(head) = heads::find_end(seen) else {
        return Message::NOTHING;
    };
    let whole = |body: u64| body.saturating_add(head as u64);
    match heads::find_body_length(&seen[..head]) {
        Length::Chunked if seen.ends_with(b"0\r\n\r\n") => Message::new(ENDS, seen.len() as u64),
        Length::Chunked => Message(OPEN << LENGTH),
        Length::Open => Message::NOTHING,
        Length::Known(body) if seen.starts_with(b"HEAD ") => Message::new(ASKS, whole(body)),
        Length::Known(body) => Message::new(ENDS, whole(body)),
    }
}

/// Return the records that begin here, up to one whose header was not captured; `None` if there are none.
fn parse_records(seen: &[u8]) -> Option<Records> {
    let mut found = Records::default();
    let mut at = 0;
    while let Some(&[kind @ CHANGE_CIPHER_SPEC..=APPLICATION_DATA, 3, minor, high, low]) =
        seen.get(at..).and_then(|rest| rest.first_chunk::<RECORD>())
    {
        let length = usize::from(u16::from_be_bytes([high, low]));
        if minor > 4 || length > 18_432 {
            return None;
        }
        found.hello |= at == 0 && kind == 22 && seen.get(RECORD) == Some(&1);
        found.ciphers |= kind == CHANGE_CIPHER_SPEC;
        found.data |= kind == APPLICATION_DATA;
        found.retry |= seen.get(at..).is_some_and(is_retry_request);
        at += RECORD + length;
    }
    found.length = at as u32;
    (at > 0).then_some(found)
}

/// Whether the TLS record that begins here is a server's first message.
#[must_use]
pub fn is_server_hello(record: &[u8]) -> bool {
    matches!(record, [22, 3, _, _, _, 2, ..])
}

/// Whether the TLS record that begins here asks the client for another first message.
#[must_use]
pub fn is_retry_request(record: &[u8]) -> bool {
    is_server_hello(record) && record.get(11..15) == Some(&RETRY_RANDOM)
}

/// Return the total length of the frames that begin here, and their number.
fn parse_frames(seen: &[u8]) -> (u64, usize) {
    let (mut at, mut count) = (0, 0);
    while let Some(head) = seen.get(at..).and_then(|rest| rest.first_chunk::<FRAME>()) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        at += FRAME + length as usize;
        count += 1;
    }
    (at as u64, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn says(bytes: &[u8]) -> MessageClue {
        Message::of(bytes, bytes.len() as u32, true).says()
    }

    #[test]
    fn heads_say_where_their_messages_end() {
        assert_eq!(
            says(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
            MessageClue::Ends(27)
        );
        assert_eq!(says(b"HEAD / HTTP/1.1\r\n\r\n"), MessageClue::Asks(19));
        assert_eq!(
            says(b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 1000\r\n\r\nbody"),
            MessageClue::Ends(1041)
        );
        assert_eq!(
            says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe"),
            MessageClue::Open
        );
        assert_eq!(says(b"llo\r\n0\r\n\r\n"), MessageClue::Last);
        assert_eq!(
            says(b"HTTP/1.0 200 OK\r\n\r\nuntil it closes"),
            MessageClue::Nothing
        );
        assert_eq!(
            says(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"),
            MessageClue::Open
        );
        assert_eq!(
            says(b"HTTP/1.1 304 No\r\nContent-Length: 9\r\n\r\n"),
            MessageClue::Ends(38)
        );
        assert_eq!(says(b"Hello"), MessageClue::Nothing);
    }

    #[test]
    fn records_say_where_they_end() {
        let hello = [&[22, 3, 1, 0, 9, 1][..], &[0; 8]].concat();
        let mut expected = Records {
            length: 14,
            hello: true,
            ..Records::default()
        };
        assert_eq!(says(&hello), MessageClue::Records(expected));
        let more = [&hello[..], &[20, 3, 3, 0, 1, 1], &[23, 3, 3, 64, 0, 7, 7]].concat();
        let retry = [
            &[22, 3, 3, 0, 56, 2, 0, 0, 52, 3, 3][..],
            &RETRY_RANDOM,
            &[0; 46],
        ]
        .concat();
        let asked = Records {
            length: 61,
            retry: true,
            ..Records::default()
        };
        assert_eq!(says(&retry), MessageClue::Records(asked));
        expected.length = 14 + 6 + 5 + 16_384;
        (expected.ciphers, expected.data) = (true, true);
        assert_eq!(says(&more), MessageClue::Records(expected));
        assert_eq!(says(&[23, 3, 3, 99, 0, 7]), MessageClue::Nothing);
    }

    proptest! {
        /// No captured bytes make it panic, and a word is restored unchanged.
        #[test]
        fn any_bytes_say_something(bytes in prop::collection::vec(any::<u8>(), 0..80), more: u32, pushed: bool) {
            let found = Message::of(&bytes, more.max(bytes.len() as u32), pushed);
            prop_assert_eq!(Message::from_word(found.word()), found);
        }

        #[test]
        fn lengths_come_back(length in 0_u64..1 << 40) {
            let expected = if length < 1 << 29 { MessageClue::Ends(length as u32) } else { MessageClue::Open };
            prop_assert_eq!(Message::new(ENDS, length).says(), expected);
        }
    }
}
