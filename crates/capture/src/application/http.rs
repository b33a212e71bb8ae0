//! Parse the heads of HTTP/1 messages and the length of their bodies (RFC 9112, 6.3), and follow the messages of a
//! connection, which may be persistent and have pipelined requests.

use crate::application::flow::{Answer, Flow, Pending, MOST_NAME, MOST_PENDING};
use crate::application::served::Served;
use crate::application::stream::{Piece, State};
use crate::wire::heads::{find_body_length, find_end, is_answer, is_request, may_begin, Length};

/// Maximum size of a head, in bytes.
const MOST_HEAD: usize = 16_384;

/// The relevant contents of a head.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// Method and target of a request; empty for an answer.
    pub name: String,
    /// The status of an answer.
    pub status: Option<u16>,
    /// The length of the body, unless the status or the request exclude a body.
    pub length: Length,
}

/// Parse a head, as far as it was captured; `None` if this is not a head.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<Head> {
    let text = String::from_utf8_lossy(bytes);
    let first = text.lines().next()?;
    let asks = is_request(bytes);
    if !asks && !is_answer(bytes) {
        return None;
    }
    let mut words = first.split_ascii_whitespace();
    let (word, next) = (words.next()?, words.next().unwrap_or(""));
    Some(Head {
        name: if asks {
            let target: String = next.chars().take(MOST_NAME).collect();
            format!("{word} {target}")
        } else {
            String::new()
        },
        status: if asks { None } else { next.parse().ok() },
        length: find_body_length(bytes),
    })
}

impl Flow {
    /// Process a head, or a part of one.
    pub(crate) fn follow_head(
        &mut self,
        from: usize,
        piece: &mut Piece<'_>,
        served: &mut [Served],
    ) {
        let asks = from == usize::from(self.client);
        let half = &mut self.halves[from];
        if half.head.is_empty() {
            // Servers skip empty lines before a request (RFC 9112, 2.2).
            if matches!(piece.seen, [b'\r' | b'\n', ..]) {
                piece.skip(1);
                return;
            }
            if !may_begin(piece.seen, asks) {
                half.state = State::Lost;
                return;
            }
            if asks {
                self.begin_request(piece, served);
            } else {
                let first = (piece.ts, piece.frame);
                self.answer = Some(Answer {
                    first,
                    last: first,
                    ..Answer::default()
                });
            }
        }
        let half = &mut self.halves[from];
        let before = half.head.len();
        half.head.extend_from_slice(piece.seen);
        let end = find_end(&half.head);
        let cut = (piece.seen.len() as u64) < u64::from(piece.length);
        if end.is_none() && !cut && half.head.len() < MOST_HEAD {
            self.continue_answer(asks, piece, u64::from(piece.length));
            return;
        }
        half.head.truncate(end.unwrap_or(half.head.len()));
        let head = read(&half.head);
        half.head.clear();
        let used = end.map_or(u64::from(piece.length), |end| (end - before) as u64);
        self.continue_answer(asks, piece, used);
        let Some(head) = head else {
            self.halves[from].state = State::Lost;
            return;
        };
        let mut length = if end.is_some() {
            head.length
        } else {
            Length::Open
        };
        if asks {
            if let Some(pending) = self.pending.back_mut() {
                (pending.name, pending.asked, pending.frame) = (head.name, piece.ts, piece.frame);
            }
            if end.is_none() {
                // The rest of the segment was not captured; the next request begins in another one.
                length = Length::Known(0);
            }
        } else {
            let bodiless = self.pending.front().is_some_and(Pending::is_head);
            match head.status {
                Some(101) => {
                    // What follows is another protocol, so no other answer will come.
                    if let Some(answer) = &mut self.answer {
                        answer.status = head.status;
                    }
                    self.end_message(asks, piece, served);
                    self.halves[from].state = State::Lost;
                    return;
                }
                Some(100..=199) => {
                    // The final answer follows.
                    self.answer = None;
                    self.halves[from].state = State::Head;
                    return;
                }
                Some(204 | 304) => length = Length::Known(0),
                Some(200..=299) if self.pending.front().is_some_and(Pending::is_connect) => {
                    // What follows is another protocol.
                    self.end_message(asks, piece, served);
                    self.halves[from].state = State::Lost;
                    return;
                }
                _ if bodiless => length = Length::Known(0),
                _ => {}
            }
            if let Some(answer) = &mut self.answer {
                answer.status = head.status;
            }
        }
        self.halves[from].state = match length {
            Length::Known(0) => {
                self.end_message(asks, piece, served);
                State::Head
            }
            Length::Known(bytes) => State::Body(bytes),
            Length::Chunked => State::ChunkLine,
            Length::Open => State::Open,
        };
    }

    /// Begin a request.
    fn begin_request(&mut self, piece: &Piece<'_>, served: &mut [Served]) {
        let answer = usize::from(1 - self.client);
        if self.halves[answer].state == State::Open && self.pending.len() == 1 {
            // A client that asks again has received the whole answer.
            self.finish_answer(&mut served[self.served], true);
            self.halves[answer].state = State::Head;
        }
        if self.pending.len() < MOST_PENDING {
            self.pending.push_back(Pending {
                begun: piece.ts,
                asked: piece.ts,
                frame: piece.frame,
                ..Pending::default()
            });
        }
    }

    /// Process a line between chunks, or a part of one.
    pub(crate) fn follow_line(
        &mut self,
        from: usize,
        piece: &mut Piece<'_>,
        served: &mut [Served],
    ) {
        let asks = from == usize::from(self.client);
        let half = &mut self.halves[from];
        let end = piece.seen.iter().position(|&byte| byte == b'\n');
        let taken = end.map_or(piece.seen.len(), |end| end + 1);
        half.head.extend_from_slice(&piece.seen[..taken]);
        if taken == 0 || end.is_none() && half.head.len() > MOST_HEAD {
            half.state = if asks { State::Lost } else { State::Open };
            half.head.clear();
            return;
        }
        let line = end.map(|_| {
            let line = String::from_utf8_lossy(&std::mem::take(&mut half.head)).into_owned();
            line.trim().to_owned()
        });
        self.continue_answer(asks, piece, taken as u64);
        let Some(line) = line else { return };
        let half = &mut self.halves[from];
        if half.state == State::Trailer {
            if line.is_empty() {
                half.state = State::Head;
                self.end_message(asks, piece, served);
            }
            return;
        }
        let size = line.split(';').next().unwrap_or("");
        half.state = match u64::from_str_radix(size.trim(), 16) {
            Ok(0) => State::Trailer,
            Ok(size) => State::Chunk(size.saturating_add(2)),
            Err(_) if asks => State::Lost,
            Err(_) => State::Open,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_say_how_their_bodies_end() {
        let head = |text: &str| read(text.as_bytes()).unwrap();
        let asked = head("POST /a?b HTTP/1.1\r\nContent-Length: 12\r\n\r\n");
        assert_eq!(
            (asked.name.as_str(), asked.length),
            ("POST /a?b", Length::Known(12))
        );
        assert_eq!(head("GET / HTTP/1.1\r\n\r\n").length, Length::Known(0));
        let both = head("HTTP/1.1 200 OK\ncontent-length: 5\nTransfer-Encoding: gzip, chunked\n\n");
        assert_eq!((both.status, both.length), (Some(200), Length::Chunked));
        assert_eq!(head("HTTP/1.0 404 none\r\n\r\n").length, Length::Open);
        assert_eq!(read(b"SSH-2.0\r\n\r\n"), None);
    }
}
