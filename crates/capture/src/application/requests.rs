//! Follow requests over TCP, one by one: HTTP/1 with persistent connections and pipelining, and TLS handshakes.
//!
//! Both directions are read in order. A segment that arrives early waits for the ones before it, so an answer is
//! complete when its last hole is filled, as in Wireshark. Bodies are counted but not examined.

use crate::application::flow::Flow;
use crate::application::served::Served;
use crate::application::stream::{DirectionStream, Parked, Piece, State, MOST_PARKED};
use crate::application::tls::is_client_hello;
use crate::connection::seqspace::not_after;
use crate::wire::heads;
use crate::wire::host::Host;
use crate::wire::packet::{flag, AddrWords, Family, FlowKey, Segment};
use ahash::RandomState;
use std::collections::{HashMap, VecDeque};

/// Maximum number of connections that are followed at a time, and of servers.
const MOST_FLOWS: usize = 65_536;
const MOST_SERVERS: usize = 1024;

/// The requests of all connections.
#[derive(Debug, Default)]
pub struct Requests {
    flows: HashMap<FlowKey, Flow, RandomState>,
    servers: HashMap<(bool, Family, AddrWords, u16), usize, RandomState>,
    served: Vec<Served>,
}

impl Requests {
    /// Process one TCP segment; `data` is its frame.
    pub fn process(&mut self, segment: &Segment, data: &[u8]) {
        if segment.flags & flag::SYN != 0 {
            self.end(&segment.key);
            return;
        }
        let ends = segment.flags & (flag::FIN | flag::RST);
        if segment.payload == 0 && ends == 0 || !segment.seq_known {
            return;
        }
        let payload = segment.payload_in(data);
        if !self.flows.contains_key(&segment.key) && !self.begin(segment, payload) {
            return;
        }
        let Some(flow) = self.flows.get_mut(&segment.key) else {
            return;
        };
        let over = flow.take(segment, payload, &mut self.served);
        flow.finished |= u8::from(ends & flag::FIN != 0) << segment.from;
        if over || flow.finished == 3 || ends & flag::RST != 0 {
            self.end(&segment.key);
        }
    }

    /// End the input; return the requests to each server.
    #[must_use]
    pub fn finish(mut self) -> Vec<Served> {
        for key in self.flows.keys().copied().collect::<Vec<_>>() {
            self.end(&key);
        }
        self.served.iter_mut().for_each(Served::finish);
        self.served.retain(|served| served.count > 0);
        self.served
    }

    /// Begin to follow a connection if a request begins here and there is room; return whether it is followed.
    fn begin(&mut self, segment: &Segment, payload: &[u8]) -> bool {
        let tls = is_client_hello(payload);
        if !tls && !heads::is_request(payload) || self.flows.len() >= MOST_FLOWS {
            return false;
        }
        let (key, client) = (segment.key, segment.from & 1);
        let asked = usize::from(1 - client);
        let end = (tls, key.family, key.addr[asked], key.port[asked]);
        let served = self.servers.get(&end).copied().unwrap_or(self.served.len());
        if served >= MOST_SERVERS {
            return false;
        }
        let host = |end: usize| Host::new(key.family, key.addr[end], &[]).to_string();
        if served == self.served.len() {
            self.servers.insert(end, served);
            self.served.push(Served::new(
                if tls { "tls" } else { "http" },
                &host(asked),
                key.port[asked],
            ));
        }
        let mut flow = Flow {
            tls,
            client,
            served,
            host: host(usize::from(client)),
            halves: [
                DirectionStream::new(State::Lost),
                DirectionStream::new(State::Lost),
            ],
            pending: VecDeque::new(),
            answer: None,
            finished: 0,
            ciphers: 0,
            retried: false,
            retrying: false,
        };
        flow.halves = [
            DirectionStream::new(flow.first()),
            DirectionStream::new(flow.first()),
        ];
        self.flows.insert(key, flow);
        true
    }

    /// End a connection.
    fn end(&mut self, key: &FlowKey) {
        let Some(mut flow) = self.flows.remove(key) else {
            return;
        };
        let served = &mut self.served[flow.served];
        let whole = flow.halves[usize::from(1 - flow.client)].state == State::Open;
        flow.finish_answer(served, whole);
        while !flow.pending.is_empty() {
            flow.answer = None;
            flow.finish_answer(served, false);
        }
    }
}

impl Flow {
    /// Process one segment; return true if the rest of the connection is of no interest.
    fn take(&mut self, segment: &Segment, payload: &[u8], served: &mut [Served]) -> bool {
        let from = usize::from(segment.from & 1);
        if segment.payload == 0 {
            return false;
        }
        let begins = !self.tls && (heads::is_request(payload) || heads::is_answer(payload));
        let fresh = DirectionStream::new(self.first());
        let half = &mut self.halves[from];
        if half.state == State::Lost && !begins {
            return self.tls;
        }
        if !half.started || half.state == State::Lost {
            // A message begins, so what came before is of no interest.
            let again = half.started;
            *half = fresh;
            (half.started, half.next) = (true, segment.seq);
            if again && from != usize::from(self.client) {
                self.forget_before(segment.ts, served);
            }
        }
        let other = &mut self.halves[1 - from];
        if !other.started && segment.flags & flag::ACK != 0 {
            (other.started, other.next) = (true, segment.ack);
        }
        let half = &mut self.halves[from];
        let ahead = segment.seq.wrapping_sub(half.next);
        let at = (segment.ts, segment.frame);
        if ahead != 0 && ahead < 1 << 31 {
            let parked = Parked {
                seq: segment.seq,
                bytes: payload.to_vec(),
                length: segment.payload,
                at,
            };
            half.size += parked.size();
            half.parked.push(parked);
            if half.size > MOST_PARKED {
                let first = half.first_parked().unwrap_or(segment.seq);
                self.skip(from, first, served);
            }
        } else {
            self.read_in_order(from, segment.seq, payload, segment.payload, at, served);
            self.unpark(from, Some(at), served);
        }
        if segment.flags & flag::ACK != 0 {
            self.catch_up(1 - from, segment.ack, served);
        }
        self.tls && (self.pending.is_empty() || self.halves.iter().any(|h| h.state == State::Lost))
    }

    /// Skip what is missing up to `ack`: the other end has received it, so it was not captured.
    fn catch_up(&mut self, from: usize, ack: u32, served: &mut [Served]) {
        loop {
            let half = &self.halves[from];
            if !half.started || half.state == State::Lost || not_after(ack, half.next) {
                return;
            }
            let waits = half.first_parked().filter(|&seq| not_after(seq, ack));
            self.skip(from, waits.unwrap_or(ack), served);
        }
    }

    /// Skip the bytes before `seq`, which were not captured.
    fn skip(&mut self, from: usize, seq: u32, served: &mut [Served]) {
        self.halves[from].skip_to(seq);
        let answers = from != usize::from(self.client);
        let half = &mut self.halves[from];
        let cut = match half.state {
            State::Body(0) => {
                half.state = State::Head;
                true
            }
            State::Lost | State::Head => true,
            _ => false,
        };
        if cut && answers && self.answer.is_some() {
            self.finish_answer(&mut served[self.served], false);
        }
        self.unpark(from, None, served);
    }

    /// Drop all requests but the last: an answer begins after others that were not followed, and is assumed to belong
    /// to it.
    fn forget_before(&mut self, ts: i64, served: &mut [Served]) {
        self.answer = None;
        let asked = self
            .pending
            .iter()
            .filter(|asked| asked.begun <= ts)
            .count();
        for _ in 1..asked {
            self.finish_answer(&mut served[self.served], false);
        }
    }

    /// Read the segments that have waited: they have been in order since `at`, or, if no hole was filled, since they
    /// passed.
    fn unpark(&mut self, from: usize, at: Option<(i64, u64)>, served: &mut [Served]) {
        loop {
            let half = &mut self.halves[from];
            let next = half.next;
            let fits = |parked: &Parked| not_after(parked.seq, next);
            let Some(place) = half.parked.iter().position(fits) else {
                return;
            };
            let parked = half.parked.swap_remove(place);
            half.size -= parked.size();
            let (at, bytes) = (at.unwrap_or(parked.at), &parked.bytes);
            self.read_in_order(from, parked.seq, bytes, parked.length, at, served);
        }
    }

    /// Read bytes that begin where the last ones ended, or before; those already read are skipped.
    fn read_in_order(
        &mut self,
        from: usize,
        seq: u32,
        seen: &[u8],
        length: u32,
        (ts, frame): (i64, u64),
        served: &mut [Served],
    ) {
        let half = &mut self.halves[from];
        let known = half.next.wrapping_sub(seq);
        if known >= length {
            return;
        }
        half.next = seq.wrapping_add(length);
        let mut piece = Piece {
            seen: seen.get(known as usize..).unwrap_or(&[]),
            length: length - known,
            ts,
            frame,
        };
        while piece.length > 0 {
            self.read(from, &mut piece, served);
        }
    }

    /// Read the first part of these bytes, as the state of the direction requires.
    fn read(&mut self, from: usize, piece: &mut Piece<'_>, served: &mut [Served]) {
        let asks = from == usize::from(self.client);
        let left = u64::from(piece.length);
        match self.halves[from].state {
            State::Lost => piece.skip(left),
            State::Open => {
                if heads::is_answer(piece.seen) {
                    self.finish_answer(&mut served[self.served], true);
                    self.halves[from].state = State::Head;
                } else {
                    self.count_bytes(piece, left);
                }
            }
            State::Body(body) | State::Chunk(body) => {
                let taken = body.min(left);
                self.continue_answer(asks, piece, taken);
                let chunk = matches!(self.halves[from].state, State::Chunk(_));
                self.halves[from].state = match (body - taken, chunk) {
                    (0, true) => State::ChunkLine,
                    (0, false) => State::Head,
                    (rest, true) => State::Chunk(rest),
                    (rest, false) => State::Body(rest),
                };
                if body == taken && !chunk {
                    self.end_message(asks, piece, served);
                }
            }
            State::ChunkLine | State::Trailer => self.follow_line(from, piece, served),
            State::Head => self.follow_head(from, piece, served),
            State::Record(record) => self.follow_record(from, record, piece, served),
        }
    }
}
