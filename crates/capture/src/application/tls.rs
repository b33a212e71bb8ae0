//! Follow TLS handshakes, from the client's first message until both ends can encrypt.

use crate::application::flow::{Answer, Flow, Pending, MOST_NAME};
use crate::application::served::Served;
use crate::application::stream::{DirectionStream, Piece, State};
use crate::wire::message::{is_retry_request, is_server_hello};

/// Kinds of TLS records (RFC 8446, 5.1).
const CHANGE_CIPHER_SPEC: u8 = 20;
const APPLICATION_DATA: u8 = 23;

impl Flow {
    /// Process a TLS record or its header, until both ends can encrypt.
    pub(crate) fn follow_record(
        &mut self,
        from: usize,
        record: u64,
        piece: &mut Piece<'_>,
        served: &mut [Served],
    ) {
        let asks = from == usize::from(self.client);
        if record > 0 {
            let taken = record.min(u64::from(piece.length));
            self.continue_answer(asks, piece, taken);
            self.halves[from].state = State::Record(record - taken);
            return;
        }
        let half = &mut self.halves[from];
        if half.head.is_empty() && asks && self.pending.is_empty() {
            self.pending.push_back(Pending {
                name: parse_server_name(piece.seen).unwrap_or_default(),
                begun: piece.ts,
                asked: piece.ts,
                frame: piece.frame,
            });
        }
        if half.head.is_empty() && !asks && is_server_hello(piece.seen) {
            // The client's second first message, and the server's answer to that, are part of the same handshake.
            let asked_again = is_retry_request(piece.seen);
            self.retried |= asked_again;
            self.retrying = asked_again;
        }
        let half = &mut self.halves[from];
        let taken = piece.seen.len().min(5 - half.head.len());
        half.head.extend_from_slice(&piece.seen[..taken]);
        if taken == 0 {
            half.state = State::Lost;
            return;
        }
        if let &[kind, 3, _, high, low] = &half.head[..] {
            half.head.clear();
            half.state = State::Record(u64::from(u16::from_be_bytes([high, low])));
            // After a request for another first message, this record has no meaning (RFC 8446, D.4).
            if kind == CHANGE_CIPHER_SPEC && !self.retried {
                self.ciphers |= 1 << u8::from(asks);
            }
            if !asks && self.answer.is_none() {
                let first = (piece.ts, piece.frame);
                self.answer = Some(Answer {
                    first,
                    last: first,
                    ..Answer::default()
                });
            }
            let answered = self.answer.is_some() && !self.retrying;
            let encrypts = kind == APPLICATION_DATA && asks && answered;
            self.continue_answer(asks, piece, taken as u64);
            if encrypts || self.ciphers == 3 {
                if let Some(answer) = &mut self.answer {
                    answer.continue_with(piece);
                }
                self.finish_answer(&mut served[self.served], true);
                self.halves = [
                    DirectionStream::new(State::Lost),
                    DirectionStream::new(State::Lost),
                ];
            }
            return;
        }
        if half.head.len() >= 5 {
            half.state = State::Lost;
        }
        self.continue_answer(asks, piece, taken as u64);
    }
}

/// Whether a TLS handshake begins here.
#[inline]
pub(crate) fn is_client_hello(bytes: &[u8]) -> bool {
    matches!(bytes, [22, 3, _, _, _, 1, ..])
}

/// Return the server name in a TLS client's first message, if the first segment contains it (RFC 6066, 3).
fn parse_server_name(record: &[u8]) -> Option<String> {
    let two = |at: usize| {
        Some(usize::from(u16::from_be_bytes([
            *record.get(at)?,
            *record.get(at + 1)?,
        ])))
    };
    // Headers of record and message, version and random bytes precede fields with lengths.
    let session = 5 + 4 + 2 + 32;
    let ciphers = session + 1 + usize::from(*record.get(session)?);
    let compressions = ciphers + 2 + two(ciphers)?;
    let mut at = compressions + 1 + usize::from(*record.get(compressions)?) + 2;
    loop {
        let (kind, length) = (two(at)?, two(at + 2)?);
        if kind == 0 {
            let name = record.get(at + 9..at + 9 + two(at + 7)?)?;
            let name = String::from_utf8_lossy(name);
            return Some(name.chars().take(MOST_NAME).collect());
        }
        at += 4 + length;
    }
}
