//! Requests over TCP, one by one: HTTP/1 with kept connections and pipelining, and TLS handshakes.
//!
//! Both directions are read in order. A segment that comes too early waits for the ones before it, so an answer is whole
//! when its last hole is filled, as in Wireshark. Bodies are counted and not looked at.

use crate::figures::RoundTrips;
use crate::host::Host;
use crate::http::{self, Length};
use crate::latency::Latency;
use crate::packet::{flag, AddrWords, Family, FlowKey, Segment};
use crate::path::not_after;
use crate::side::seconds;
use ahash::RandomState;
use serde::Serialize;
use std::collections::{HashMap, VecDeque};

/// Connections that are followed at the same time, and servers.
const MOST_FLOWS: usize = 65_536;
const MOST_SERVERS: usize = 1024;
/// The longest requests of a server that are named.
const MOST_NAMED: usize = 16;
/// Requests of one connection that wait for an answer.
const MOST_PENDING: usize = 1024;
/// Bytes of a head, and of what waits for a segment before it.
const MOST_HEAD: usize = 16_384;
const MOST_PARKED: usize = 1 << 18;
/// Kinds of TLS records (RFC 8446, 5.1).
const CHANGE_CIPHER_SPEC: u8 = 20;
const APPLICATION_DATA: u8 = 23;

/// One request and its answer.
#[derive(Clone, Debug, Serialize)]
pub struct Request {
    /// `GET /index.html`; in TLS the name that the client asked for.
    pub name: String,
    /// HTTP's status.
    pub status: Option<u16>,
    /// Who asked.
    pub client: String,
    /// When its first byte passed, nanoseconds since 1970.
    pub start_ns: i64,
    /// From its first byte to its last.
    pub sent_s: f64,
    /// From its last byte to the answer's first; absent without an answer.
    pub first_byte_s: Option<f64>,
    /// From its last byte to the answer's last; absent where that is not in the capture.
    pub last_byte_s: Option<f64>,
    /// The frame with its last byte.
    pub frame: u64,
    /// The frame with the answer's first byte, and the one with its last.
    pub answer_frames: Option<(u64, u64)>,
    /// Bytes of the answer, with its head.
    pub bytes: u64,
}

/// All requests in one protocol to one server.
#[derive(Debug, Serialize)]
pub struct Served {
    /// `http` or `tls`.
    pub protocol: &'static str,
    /// Address and port.
    pub server: String,
    /// Requests.
    pub count: u64,
    /// Those without an answer.
    pub unanswered: u64,
    /// From the end of a request to the first byte of its answer.
    pub first_byte: RoundTrips,
    /// From the end of a request to the last byte of its answer.
    pub last_byte: RoundTrips,
    /// Those that took longest, the longest first.
    pub longest: Vec<Request>,
    #[serde(skip)]
    first: Latency,
    #[serde(skip)]
    last: Latency,
}

impl Served {
    fn new(tls: bool, host: &str, port: u16) -> Self {
        let (protocol, v6) = (if tls { "tls" } else { "http" }, host.contains(':'));
        let server = if v6 {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        Self {
            protocol,
            server,
            count: 0,
            unanswered: 0,
            first_byte: RoundTrips::default(),
            last_byte: RoundTrips::default(),
            longest: Vec::new(),
            first: Latency::default(),
            last: Latency::default(),
        }
    }

    fn add(&mut self, request: Request, first: Option<u64>, last: Option<u64>) {
        self.count += 1;
        self.unanswered += u64::from(first.is_none());
        if let Some(nanos) = first {
            self.first.record(nanos);
        }
        if let Some(nanos) = last {
            self.last.record(nanos);
        }
        self.longest.push(request);
        if self.longest.len() > 4 * MOST_NAMED {
            self.keep_longest();
        }
    }

    fn keep_longest(&mut self) {
        let took = |request: &Request| request.last_byte_s.or(request.first_byte_s).unwrap_or(-1.0);
        self.longest.sort_by(|a, b| took(b).total_cmp(&took(a)));
        self.longest.truncate(MOST_NAMED);
    }
}

/// Bytes in order: those that were captured of `length`, and when they were known to have passed.
struct Piece<'p> {
    seen: &'p [u8],
    length: u32,
    ts: i64,
    frame: u64,
}

/// Where one direction stands.
#[derive(Debug, PartialEq, Eq)]
enum State {
    /// In a head, or before one.
    Head,
    /// In a body, with so many bytes to come.
    Body(u64),
    /// In the line before a chunk, in a chunk and the line's end behind it, or in what follows the last chunk.
    ChunkLine,
    Chunk(u64),
    Trailer,
    /// In a body whose end is not known.
    Open,
    /// In a record of TLS, or before its header.
    Record(u64),
    /// Until something begins that is known.
    Lost,
}

/// A segment that waits for those before it.
#[derive(Debug)]
struct Parked {
    seq: u32,
    bytes: Vec<u8>,
    length: u32,
    at: (i64, u64),
}

/// One direction.
#[derive(Debug)]
struct Half {
    state: State,
    started: bool,
    next: u32,
    /// What was read of a head, line or record's header.
    head: Vec<u8>,
    parked: Vec<Parked>,
    size: usize,
}

impl Half {
    fn new(state: State) -> Self {
        Self {
            state,
            started: false,
            next: 0,
            head: Vec::new(),
            parked: Vec::new(),
            size: 0,
        }
    }

    /// Where the first segment is that waits.
    fn first_parked(&self) -> Option<u32> {
        let next = self.next;
        let seqs = self.parked.iter().map(|parked| parked.seq);
        seqs.min_by_key(|seq| seq.wrapping_sub(next))
    }

    /// What comes before `seq` was not captured: go on there, or where a message begins.
    fn skip_to(&mut self, seq: u32) {
        let missing = u64::from(seq.wrapping_sub(self.next));
        self.next = seq;
        self.head.clear();
        self.state = match self.state {
            State::Body(left) if left >= missing => State::Body(left - missing),
            State::Chunk(left) if left > missing => State::Chunk(left - missing),
            State::Record(left) if left >= missing => State::Record(left - missing),
            State::Open => State::Open,
            _ => State::Lost,
        };
        if self.state != State::Lost {
            return;
        }
        let begins =
            |parked: &&Parked| http::is_request(&parked.bytes) || http::is_answer(&parked.bytes);
        let next = self.next;
        let place = self.parked.iter().filter(begins).map(|parked| parked.seq);
        let place = place.min_by_key(|seq| seq.wrapping_sub(next));
        if let Some(seq) = place {
            (self.next, self.state) = (seq, State::Head);
            self.parked
                .retain(|parked| parked.seq.wrapping_sub(seq) < 1 << 31);
        } else {
            self.parked.clear();
        }
        self.size = self
            .parked
            .iter()
            .map(|parked| parked.bytes.len() + 64)
            .sum();
    }
}

/// A request that waits for its answer.
#[derive(Debug, Default)]
struct Pending {
    name: String,
    begun: i64,
    asked: i64,
    frame: u64,
}

impl Pending {
    fn connects(&self) -> bool {
        self.name.starts_with("CONNECT ")
    }

    fn bodiless(&self) -> bool {
        self.name.starts_with("HEAD ")
    }
}

/// The answer that is being read.
#[derive(Debug, Default)]
struct Answer {
    status: Option<u16>,
    first: (i64, u64),
    last: (i64, u64),
    bytes: u64,
}

#[derive(Debug)]
struct Flow {
    tls: bool,
    client: u8,
    served: usize,
    host: String,
    halves: [Half; 2],
    pending: VecDeque<Pending>,
    answer: Option<Answer>,
    finished: u8,
    ciphers: u8,
}

/// Requests of all connections.
#[derive(Debug, Default)]
pub struct Requests {
    flows: HashMap<FlowKey, Flow, RandomState>,
    servers: HashMap<(bool, Family, AddrWords, u16), usize, RandomState>,
    served: Vec<Served>,
}

impl Requests {
    /// One TCP segment; `data` is the frame that it is in.
    pub fn see(&mut self, segment: &Segment, data: &[u8]) {
        if segment.flags & flag::SYN != 0 {
            self.end(&segment.key);
            return;
        }
        let ends = segment.flags & (flag::FIN | flag::RST);
        if segment.payload == 0 && ends == 0 || !segment.seq_known {
            return;
        }
        let at = segment.payload_at as usize;
        let end = (at + segment.payload as usize).min(data.len());
        let payload = data.get(at..end).unwrap_or(&[]);
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

    /// Everything was read.
    #[must_use]
    pub fn finish(mut self) -> Vec<Served> {
        for key in self.flows.keys().copied().collect::<Vec<_>>() {
            self.end(&key);
        }
        for served in &mut self.served {
            served.first_byte = RoundTrips::new(&served.first, true);
            served.last_byte = RoundTrips::new(&served.last, true);
            served.keep_longest();
        }
        self.served.retain(|served| served.count > 0);
        self.served
    }

    /// Does a request begin here that nobody follows yet?
    fn begin(&mut self, segment: &Segment, payload: &[u8]) -> bool {
        let tls = is_client_hello(payload);
        if !tls && !http::is_request(payload) || self.flows.len() >= MOST_FLOWS {
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
            self.served
                .push(Served::new(tls, &host(asked), key.port[asked]));
        }
        let mut flow = Flow {
            tls,
            client,
            served,
            host: host(usize::from(client)),
            halves: [Half::new(State::Lost), Half::new(State::Lost)],
            pending: VecDeque::new(),
            answer: None,
            finished: 0,
            ciphers: 0,
        };
        flow.halves = [Half::new(flow.first()), Half::new(flow.first())];
        self.flows.insert(key, flow);
        true
    }

    /// The connection is over.
    fn end(&mut self, key: &FlowKey) {
        let Some(mut flow) = self.flows.remove(key) else {
            return;
        };
        let served = &mut self.served[flow.served];
        let whole = flow.halves[usize::from(1 - flow.client)].state == State::Open;
        flow.answered(served, whole);
        while !flow.pending.is_empty() {
            flow.answer = None;
            flow.answered(served, false);
        }
    }
}

impl Flow {
    /// One segment of it; true when nothing more is of interest.
    fn take(&mut self, segment: &Segment, payload: &[u8], served: &mut [Served]) -> bool {
        let from = usize::from(segment.from & 1);
        if segment.payload == 0 {
            return false;
        }
        let begins = !self.tls && (http::is_request(payload) || http::is_answer(payload));
        let fresh = Half::new(self.first());
        let half = &mut self.halves[from];
        if half.state == State::Lost && !begins {
            return self.tls;
        }
        if !half.started || half.state == State::Lost {
            // A message begins, and what came before is of no interest.
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
            half.parked.push(Parked {
                seq: segment.seq,
                bytes: payload.to_vec(),
                length: segment.payload,
                at,
            });
            half.size += payload.len() + 64;
            if half.size > MOST_PARKED {
                let first = half.first_parked().unwrap_or(segment.seq);
                self.skip(from, first, served);
            }
        } else {
            self.in_order(from, segment.seq, payload, segment.payload, at, served);
            self.unpark(from, Some(at), served);
        }
        if segment.flags & flag::ACK != 0 {
            self.catch_up(1 - from, segment.ack, served);
        }
        self.tls && (self.pending.is_empty() || self.halves.iter().any(|h| h.state == State::Lost))
    }

    /// The other end has everything up to `ack`: what of it is still missing was not captured.
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

    /// Bytes before `seq` were not captured.
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
            self.answered(&mut served[self.served], false);
        }
        self.unpark(from, None, served);
    }

    /// Where a direction stands before its first byte.
    fn first(&self) -> State {
        if self.tls {
            State::Record(0)
        } else {
            State::Head
        }
    }

    /// An answer begins after some that were not followed: it is taken for the one to the last request.
    fn forget_before(&mut self, ts: i64, served: &mut [Served]) {
        self.answer = None;
        let asked = self
            .pending
            .iter()
            .filter(|asked| asked.begun <= ts)
            .count();
        for _ in 1..asked {
            self.answered(&mut served[self.served], false);
        }
    }

    /// Go on with what has waited: it is known since `at`, or where nothing was filled, since it passed.
    fn unpark(&mut self, from: usize, at: Option<(i64, u64)>, served: &mut [Served]) {
        loop {
            let half = &mut self.halves[from];
            let next = half.next;
            let fits = |parked: &Parked| not_after(parked.seq, next);
            let Some(place) = half.parked.iter().position(fits) else {
                return;
            };
            let parked = half.parked.swap_remove(place);
            half.size -= parked.bytes.len() + 64;
            let (at, bytes) = (at.unwrap_or(parked.at), &parked.bytes);
            self.in_order(from, parked.seq, bytes, parked.length, at, served);
        }
    }

    /// Bytes that begin where the last ones ended, or before.
    fn in_order(
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

    /// Read the first of these bytes.
    fn read(&mut self, from: usize, piece: &mut Piece<'_>, served: &mut [Served]) {
        let asks = from == usize::from(self.client);
        let left = u64::from(piece.length);
        match self.halves[from].state {
            State::Lost => piece.skip(left),
            State::Open => {
                if http::is_answer(piece.seen) {
                    self.answered(&mut served[self.served], true);
                    self.halves[from].state = State::Head;
                } else {
                    self.passes(piece, left);
                }
            }
            State::Body(body) | State::Chunk(body) => {
                let taken = body.min(left);
                self.answer_goes_on(asks, piece, taken);
                let chunk = matches!(self.halves[from].state, State::Chunk(_));
                self.halves[from].state = match (body - taken, chunk) {
                    (0, true) => State::ChunkLine,
                    (0, false) => State::Head,
                    (rest, true) => State::Chunk(rest),
                    (rest, false) => State::Body(rest),
                };
                if body == taken && !chunk {
                    self.ends(asks, piece, served);
                }
            }
            State::ChunkLine | State::Trailer => self.line(from, piece, served),
            State::Head => self.head(from, piece, served),
            State::Record(record) => self.record(from, record, piece, served),
        }
    }

    /// So many bytes of an answer pass.
    fn passes(&mut self, piece: &mut Piece<'_>, count: u64) {
        if let Some(answer) = &mut self.answer {
            answer.last = (piece.ts, piece.frame);
            answer.bytes += count;
        }
        piece.skip(count);
    }

    fn answer_goes_on(&mut self, asks: bool, piece: &mut Piece<'_>, count: u64) {
        if asks {
            piece.skip(count);
        } else {
            self.passes(piece, count);
        }
    }

    /// A head, or a part of it.
    fn head(&mut self, from: usize, piece: &mut Piece<'_>, served: &mut [Served]) {
        let asks = from == usize::from(self.client);
        let half = &mut self.halves[from];
        if half.head.is_empty() {
            // Servers skip empty lines before a request (RFC 9112, 2.2).
            if matches!(piece.seen, [b'\r' | b'\n', ..]) {
                piece.skip(1);
                return;
            }
            if !http::may_begin(piece.seen, asks) {
                half.state = State::Lost;
                return;
            }
            if asks {
                self.asks(piece, served);
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
        let end = http::end_of(&half.head);
        let cut = (piece.seen.len() as u64) < u64::from(piece.length);
        if end.is_none() && !cut && half.head.len() < MOST_HEAD {
            self.answer_goes_on(asks, piece, u64::from(piece.length));
            return;
        }
        half.head.truncate(end.unwrap_or(half.head.len()));
        let head = http::read(&half.head);
        half.head.clear();
        let used = end.map_or(u64::from(piece.length), |end| (end - before) as u64);
        self.answer_goes_on(asks, piece, used);
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
                // The rest of the segment was not captured: the next request begins with another one.
                length = Length::Known(0);
            }
        } else {
            let bodiless = self.pending.front().is_some_and(Pending::bodiless);
            match head.status {
                Some(100..=199) => {
                    // The answer is still to come, unless the connection now speaks another protocol.
                    self.answer = None;
                    let other = head.status == Some(101);
                    self.halves[from].state = if other { State::Lost } else { State::Head };
                    return;
                }
                Some(204 | 304) => length = Length::Known(0),
                Some(200..=299) if self.pending.front().is_some_and(Pending::connects) => {
                    // What follows is another protocol.
                    self.ends(asks, piece, served);
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
                self.ends(asks, piece, served);
                State::Head
            }
            Length::Known(bytes) => State::Body(bytes),
            Length::Chunked => State::ChunkLine,
            Length::Open => State::Open,
        };
    }

    /// A request begins.
    fn asks(&mut self, piece: &Piece<'_>, served: &mut [Served]) {
        let answer = usize::from(1 - self.client);
        if self.halves[answer].state == State::Open && self.pending.len() == 1 {
            // Whoever asks again has the whole answer.
            self.answered(&mut served[self.served], true);
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

    /// A line between chunks, or a part of it.
    fn line(&mut self, from: usize, piece: &mut Piece<'_>, served: &mut [Served]) {
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
        self.answer_goes_on(asks, piece, taken as u64);
        let Some(line) = line else { return };
        let half = &mut self.halves[from];
        if half.state == State::Trailer {
            if line.is_empty() {
                half.state = State::Head;
                self.ends(asks, piece, served);
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

    /// A record of TLS or its header: of interest until both ends can encrypt.
    fn record(&mut self, from: usize, record: u64, piece: &mut Piece<'_>, served: &mut [Served]) {
        let asks = from == usize::from(self.client);
        if record > 0 {
            let taken = record.min(u64::from(piece.length));
            self.answer_goes_on(asks, piece, taken);
            self.halves[from].state = State::Record(record - taken);
            return;
        }
        let half = &mut self.halves[from];
        if half.head.is_empty() && asks && self.pending.is_empty() {
            self.pending.push_back(Pending {
                name: http::server_name(piece.seen).unwrap_or_default(),
                begun: piece.ts,
                asked: piece.ts,
                frame: piece.frame,
            });
        }
        let taken = piece.seen.len().min(5 - half.head.len());
        half.head.extend_from_slice(&piece.seen[..taken]);
        if taken == 0 {
            half.state = State::Lost;
            return;
        }
        if let &[kind, 3, _, high, low] = &half.head[..] {
            half.head.clear();
            half.state = State::Record(u64::from(u16::from_be_bytes([high, low])));
            if kind == CHANGE_CIPHER_SPEC {
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
            let encrypts = kind == APPLICATION_DATA && asks && self.answer.is_some();
            self.answer_goes_on(asks, piece, taken as u64);
            if encrypts || self.ciphers == 3 {
                if let Some(answer) = &mut self.answer {
                    answer.last = (piece.ts, piece.frame);
                }
                self.answered(&mut served[self.served], true);
                self.halves = [Half::new(State::Lost), Half::new(State::Lost)];
            }
            return;
        }
        if half.head.len() >= 5 {
            half.state = State::Lost;
        }
        self.answer_goes_on(asks, piece, taken as u64);
    }

    /// A message has ended with the bytes before these.
    fn ends(&mut self, asks: bool, piece: &Piece<'_>, served: &mut [Served]) {
        if asks {
            if let Some(pending) = self.pending.back_mut() {
                (pending.asked, pending.frame) = (piece.ts, piece.frame);
            }
        } else {
            self.answered(&mut served[self.served], true);
        }
    }

    /// The first request that waits has its answer, or as much of it as there will be.
    fn answered(&mut self, served: &mut Served, whole: bool) {
        let answer = self.answer.take();
        let begun = self.pending.front().map(|asked| asked.begun);
        if answer
            .as_ref()
            .is_some_and(|answer| begun > Some(answer.first.0))
        {
            // It answers a request that was not captured.
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
        };
        served.add(request, first, last);
    }
}

impl Piece<'_> {
    fn skip(&mut self, count: u64) {
        let count = count.min(u64::from(self.length)) as u32;
        self.length -= count;
        self.seen = self.seen.get(count as usize..).unwrap_or(&[]);
    }
}

/// Does a TLS handshake begin here?
#[inline]
fn is_client_hello(bytes: &[u8]) -> bool {
    matches!(bytes, [22, 3, _, _, _, 1, ..])
}
