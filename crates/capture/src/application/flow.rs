//! Keep the requests of one TCP connection that wait for an answer, and the answer that is being read.

use crate::application::served::{Request, Served};
use crate::application::stream::{DirectionStream, Piece, State};
use crate::connection::latency::seconds;
use std::collections::VecDeque;

/// Maximum length of a name, in characters.
pub(crate) const MOST_NAME: usize = 120;
/// Maximum number of requests of one connection that wait for an answer.
pub(crate) const MOST_PENDING: usize = 1024;

/// A request that waits for its answer.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) name: String,
    pub(crate) begun: i64,
    pub(crate) asked: i64,
    pub(crate) frame: u64,
}

impl Pending {
    pub(crate) fn is_connect(&self) -> bool {
        self.name.starts_with("CONNECT ")
    }

    pub(crate) fn is_head(&self) -> bool {
        self.name.starts_with("HEAD ")
    }
}

/// The answer that is being read.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: Option<u16>,
    pub(crate) first: (i64, u64),
    pub(crate) last: (i64, u64),
    pub(crate) bytes: u64,
}

impl Answer {
    /// Note a piece of the answer. A piece that passed before its predecessors counts from when they had passed.
    pub(crate) fn continue_with(&mut self, piece: &Piece<'_>) {
        self.last = self.last.max((piece.ts, piece.frame));
    }
}

#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) tls: bool,
    pub(crate) client: u8,
    pub(crate) served: usize,
    pub(crate) host: String,
    pub(crate) halves: [DirectionStream; 2],
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) answer: Option<Answer>,
    pub(crate) finished: u8,
    pub(crate) ciphers: u8,
    /// Whether a TLS server has asked for another first message, and whether it has not yet answered that one.
    pub(crate) retried: bool,
    pub(crate) retrying: bool,
}

impl Flow {
    /// Return the state of a direction before its first byte.
    pub(crate) fn first(&self) -> State {
        if self.tls {
            State::Record(0)
        } else {
            State::Head
        }
    }

    /// Count bytes of an answer.
    pub(crate) fn count_bytes(&mut self, piece: &mut Piece<'_>, count: u64) {
        if let Some(answer) = &mut self.answer {
            answer.continue_with(piece);
            answer.bytes += count;
        }
        piece.skip(count);
    }

    pub(crate) fn continue_answer(&mut self, asks: bool, piece: &mut Piece<'_>, count: u64) {
        if asks {
            piece.skip(count);
        } else {
            self.count_bytes(piece, count);
        }
    }

    /// End the message whose last byte was just read.
    pub(crate) fn end_message(&mut self, asks: bool, piece: &Piece<'_>, served: &mut [Served]) {
        if asks {
            if let Some(pending) = self.pending.back_mut() {
                (pending.asked, pending.frame) = (piece.ts, piece.frame);
            }
        } else {
            self.finish_answer(&mut served[self.served], true);
        }
    }

    /// Finish the first waiting request: its answer is complete, or no more of it will come.
    pub(crate) fn finish_answer(&mut self, served: &mut Served, whole: bool) {
        let answer = self.answer.take();
        let begun = self.pending.front().map(|asked| asked.begun);
        if answer
            .as_ref()
            .is_some_and(|answer| begun > Some(answer.first.0))
        {
            // This answers a request that was not captured.
            return;
        }
        let Some(asked) = self.pending.pop_front() else {
            return;
        };
        let since = |ts: i64| ts.saturating_sub(asked.asked).max(0) as u64;
        let first = answer.as_ref().map(|answer| since(answer.first.0));
        let last = answer
            .as_ref()
            .filter(|_| whole)
            .map(|answer| since(answer.last.0));
        let request = Request {
            name: asked.name,
            status: answer.as_ref().and_then(|answer| answer.status),
            client: self.host.clone(),
            start_ns: asked.begun,
            sent_s: seconds(asked.asked.saturating_sub(asked.begun).max(0) as u64),
            first_byte_s: first.map(seconds),
            last_byte_s: last.map(seconds),
            frame: asked.frame,
            answer_frames: answer
                .as_ref()
                .map(|answer| (answer.first.1, answer.last.1)),
            bytes: answer.map_or(0, |answer| answer.bytes),
            repeated: 0,
        };
        served.add(request, first, last);
    }
}
