//! Keep the state of one direction of a connection: its position in its messages, and the segments that wait for
//! earlier ones.

use crate::wire::heads;

/// Maximum number of bytes that may wait for an earlier segment.
pub(crate) const MOST_PARKED: usize = 1 << 18;

/// Bytes in order: the captured part of `length` bytes, with the time and the frame from which on they were in order.
pub(crate) struct Piece<'p> {
    pub(crate) seen: &'p [u8],
    pub(crate) length: u32,
    pub(crate) ts: i64,
    pub(crate) frame: u64,
}

/// The position of one direction in its messages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// In a head, or before one.
    Head,
    /// In a body, with this many bytes to come.
    Body(u64),
    /// In the line before a chunk.
    ChunkLine,
    /// In a chunk or the line end behind it, with this many bytes to come.
    Chunk(u64),
    /// Behind the last chunk.
    Trailer,
    /// In a body whose end is not known.
    Open,
    /// In a TLS record with this many bytes to come, or in the header of the next one.
    Record(u64),
    /// Between messages that can be recognised.
    Lost,
}

/// A segment that waits for earlier ones.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) seq: u32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) length: u32,
    pub(crate) at: (i64, u64),
}

impl Parked {
    /// Return the memory that it uses, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + 64
    }
}

/// One direction.
#[derive(Debug)]
pub(crate) struct DirectionStream {
    pub(crate) state: State,
    pub(crate) started: bool,
    pub(crate) next: u32,
    /// The bytes read so far of a head, a line or a record's header.
    pub(crate) head: Vec<u8>,
    pub(crate) parked: Vec<Parked>,
    /// Memory of the parked segments in bytes.
    pub(crate) size: usize,
}

impl DirectionStream {
    pub(crate) fn new(state: State) -> Self {
        Self {
            state,
            started: false,
            next: 0,
            head: Vec::new(),
            parked: Vec::new(),
            size: 0,
        }
    }

    /// Return the sequence number of the first waiting segment.
    pub(crate) fn first_parked(&self) -> Option<u32> {
        let next = self.next;
        let seqs = self.parked.iter().map(|parked| parked.seq);
        seqs.min_by_key(|seq| seq.wrapping_sub(next))
    }

    /// Skip the bytes before `seq`, which were not captured: continue there, or where the next message begins.
    pub(crate) fn skip_to(&mut self, seq: u32) {
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
            |parked: &&Parked| heads::is_request(&parked.bytes) || heads::is_answer(&parked.bytes);
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
        self.size = self.parked.iter().map(Parked::size).sum();
    }
}

impl Piece<'_> {
    pub(crate) fn skip(&mut self, count: u64) {
        let count = count.min(u64::from(self.length)) as u32;
        self.length -= count;
        self.seen = self.seen.get(count as usize..).unwrap_or(&[]);
    }
}
