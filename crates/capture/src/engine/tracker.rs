//! Maintain the flow table: find the connection of every segment, and remove finished connections.
//!
//! The memory is bounded by the open connections: a closed one stays for its late packets (at most [`LINGER`] of them,
//! for two minutes of capture time) and is then summarised as a [`ConnectionSummary`] and delivered. When the table's
//! memory reaches its limit, the connection that was idle longest (second chance) is evicted and marked. A connection
//! of few packets is kept as these packets ([`Young`]), and counted when there are more or when it ends. The hash has a
//! random key, so that nobody can create a capture whose flows all collide.

use crate::connection::conn::Conn;
use crate::connection::pages;
use crate::connection::young::Young;
use crate::evidence::numbering::Numbering;
use crate::evidence::twins::{Twin, Twins};
use crate::results::longest_waits::LongestWaits;
use crate::results::summary::ConnectionSummary;
use crate::results::watch::Watch;
use crate::wire::packet::{flag, FlowKey, Segment};
use ahash::RandomState;
use hashbrown::HashTable;
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;

/// Number of closed connections that are kept for late packets.
pub const LINGER: usize = 16_384;
const LINGER_NANOS: i64 = 120_000_000_000;
/// Memory of one connection without its own heap: its place, and its slots in the table and the queue.
const CONN_COST: usize = size_of::<Conn>() + 32;
/// The same for a young connection.
const YOUNG_COST: usize = size_of::<Young>() + 32;
/// Bit in a place's number that marks a young connection.
const YOUNG: u32 = 1 << 31;
/// Connections in one chunk of memory, which is 16 MB: enough for huge pages, and unused parts are not resident.
const CHUNK: usize = 32_768;
/// With fewer flows the table fits into the cache, and looking ahead costs more than it saves.
const LOOK_AHEAD_FROM: usize = 2048;

/// Receives finished connections.
pub trait ConnSink {
    /// Whether percentiles are needed for a connection that waited this many nanoseconds.
    fn wants_percentiles(&self, _waited: u64) -> bool {
        true
    }

    /// Handle a finished connection; `client` is the end of the key that is the client.
    fn finished(&mut self, conn: &Conn, client: usize, summary: ConnectionSummary);
}

#[derive(Clone, Copy)]
struct Slot {
    hash: u32,
    place: u32,
}

impl Slot {
    #[inline]
    fn spread_hash(hash: u32) -> u64 {
        u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

#[inline]
fn summarise(
    conn: &Conn,
    names: &[Arc<str>],
    evicted: bool,
    sink: &impl ConnSink,
) -> (ConnectionSummary, usize) {
    ConnectionSummary::new(conn, names, evicted, |waited| {
        sink.wants_percentiles(waited)
    })
}

/// Count the packets of a young connection; `None` if there is none.
fn count_young(
    young: &Young,
    watch: &mut Option<Box<Watch>>,
    guilty: &mut Option<Box<LongestWaits>>,
) -> Option<Conn> {
    let mut conn = None;
    young.each(|segment| {
        let conn = conn.get_or_insert_with(|| Conn::new(segment, young.hash, young.index()));
        count(conn, segment, watch, guilty);
    });
    conn
}

/// Count `segment` in `conn`, and record its point and the wait that it ended, if requested.
#[inline]
fn count(
    conn: &mut Conn,
    segment: &Segment,
    watch: &mut Option<Box<Watch>>,
    guilty: &mut Option<Box<LongestWaits>>,
) {
    if watch.is_none() && guilty.is_none() {
        conn.update(segment);
        return;
    }
    let unique = conn.sent[usize::from(segment.from & 1)].unique;
    let spent = conn.account.spent;
    conn.update(segment);
    let was_new = conn.sent[usize::from(segment.from & 1)].unique > unique;
    if let Some(watch) = watch {
        watch.record(conn, segment, was_new, spent);
    }
    if let Some(guilty) = guilty {
        guilty.record(
            segment.frame,
            conn.client_end(),
            &spent,
            &conn.account.spent,
        );
    }
}

/// Return the places of all open connections, in order of appearance.
fn list_in_order(chunks: &[Vec<Option<Conn>>], young: &[Vec<Young>], open: usize) -> Vec<u32> {
    let mut order: Vec<u32> = Vec::with_capacity(open);
    let at = |number: usize, place: usize| (number * CHUNK + place) as u32;
    for (number, chunk) in chunks.iter().enumerate() {
        let open = chunk.iter().enumerate().filter(|(_, conn)| conn.is_some());
        order.extend(open.map(|(place, _)| at(number, place)));
    }
    for (number, chunk) in young.iter().enumerate() {
        let open = chunk
            .iter()
            .enumerate()
            .filter(|(_, young)| young.is_here());
        order.extend(open.map(|(place, _)| at(number, place) | YOUNG));
    }
    // The places are nearly sorted already; storing the keys beside them would double the memory.
    order.sort_by_key(|place| {
        let (number, within) = ((place & !YOUNG) as usize / CHUNK, *place as usize % CHUNK);
        if place & YOUNG == 0 {
            chunks[number][within].as_ref().map_or(0, |conn| conn.index)
        } else {
            young[number][within].index()
        }
    });
    order
}

/// The flow table.
pub struct Tracker {
    table: HashTable<Slot>,
    chunks: Vec<Vec<Option<Conn>>>,
    free: Vec<u32>,
    young: Vec<Vec<Young>>,
    free_young: Vec<u32>,
    lingering: VecDeque<(u32, u64)>,
    hasher: RandomState,
    last: Option<(FlowKey, u32)>,
    hand: usize,
    heap: usize,
    open: usize,
    limit: usize,
    next_index: u64,
    twins: Twins,
    numbering: Numbering,
    /// The twin of the current packet, if it was looked up already.
    seen: Option<Twin>,
    /// Names of a packet list's hosts; key words are positions in it.
    pub names: Vec<Arc<str>>,
    /// Points for time-sequence views, if requested.
    pub watch: Option<Box<Watch>>,
    /// The packets that ended the longest waits, if requested.
    pub guilty: Option<Box<LongestWaits>>,
    /// Connections evicted to keep within the limit.
    pub evicted: u64,
}

impl Tracker {
    /// Create a table that uses at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            table: HashTable::new(),
            chunks: Vec::new(),
            free: Vec::new(),
            young: Vec::new(),
            free_young: Vec::new(),
            lingering: VecDeque::new(),
            hasher: RandomState::new(),
            last: None,
            hand: 0,
            heap: 0,
            open: 0,
            limit: limit.max(64 * CONN_COST),
            next_index: 0,
            names: Vec::new(),
            twins: Twins::default(),
            numbering: Numbering::default(),
            seen: None,
            watch: None,
            guilty: None,
            evicted: 0,
        }
    }

    /// Return the number of connections in the table.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open
    }

    /// Call `f` for every connection in the table.
    pub fn each(&self, mut f: impl FnMut(&Conn)) {
        self.chunks.iter().flatten().flatten().for_each(&mut f);
        let young = self.young.iter().flatten();
        young
            .filter_map(|young| count_young(young, &mut None, &mut None))
            .for_each(|conn| f(&conn));
    }

    /// Count a batch of segments, in order of capture.
    pub fn take(&mut self, batch: &[Segment], sink: &mut impl ConnSink) {
        if self.open < LOOK_AHEAD_FROM {
            for segment in batch {
                self.segment(segment, None, sink);
            }
            return;
        }
        // Lookups of one batch are independent: done together, their cache misses overlap.
        let mut hashes = [0; BATCH];
        let mut places = [u32::MAX; BATCH];
        for group in batch.chunks(BATCH) {
            for (hash, segment) in hashes.iter_mut().zip(group) {
                *hash = self.hash(&segment.key);
            }
            for (place, &hash) in places.iter_mut().zip(&hashes[..group.len()]) {
                *place = self
                    .table
                    .find(Slot::spread_hash(hash), |slot| slot.hash == hash)
                    .map_or(u32::MAX, |s| s.place);
            }
            let mut touched = 0;
            for (&place, segment) in places.iter().zip(group) {
                if place & YOUNG != 0 {
                    if let Some(young) = self.young_at(place) {
                        touched ^= u64::from(young.hash);
                    }
                } else if let Some(conn) = self
                    .chunks
                    .get(place as usize / CHUNK)
                    .and_then(|c| c.get(place as usize % CHUNK)?.as_ref())
                {
                    touched ^= conn.touch_lines(usize::from(segment.from & 1));
                }
            }
            black_box(touched);
            for (segment, (&hash, &place)) in group.iter().zip(hashes.iter().zip(&places)) {
                self.segment(segment, Some((hash, place)), sink);
            }
        }
    }

    /// Finish all connections that are still open, in order of appearance, at the end of the input.
    pub fn finish(&mut self, sink: &mut impl ConnSink) {
        self.table = HashTable::new();
        let chunks = std::mem::take(&mut self.chunks);
        let young = std::mem::take(&mut self.young);
        let order = list_in_order(&chunks, &young, self.open);
        for place in order {
            let (number, within) = ((place & !YOUNG) as usize / CHUNK, place as usize % CHUNK);
            let made = (place & YOUNG != 0)
                .then(|| count_young(&young[number][within], &mut self.watch, &mut self.guilty));
            let kept = || chunks[number][within].as_ref();
            let Some(conn) = made.as_ref().map_or_else(kept, Option::as_ref) else {
                continue;
            };
            let (summary, client) = summarise(conn, &self.names, false, sink);
            sink.finished(conn, client, summary);
        }
        self.free.clear();
        self.free_young.clear();
        self.lingering.clear();
        self.last = None;
        (self.heap, self.open, self.hand) = (0, 0, 0);
    }

    fn hash(&self, key: &FlowKey) -> u32 {
        let ports =
            u64::from(key.port[0]) << 32 | u64::from(key.port[1]) << 16 | u64::from(key.protocol);
        let [[a, b], [c, d]] = key.addr;
        // Only the first words of short addresses are used.
        if b | d == 0 && (a | c) >> 32 == 0 {
            self.hasher.hash_one((a << 32 | c, ports)) as u32
        } else {
            self.hasher.hash_one((a, b, c, d, ports)) as u32
        }
    }

    #[inline]
    fn conn(&mut self, place: u32) -> &mut Option<Conn> {
        &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }

    #[inline]
    fn segment(
        &mut self,
        segment: &Segment,
        looked_up: Option<(u32, u32)>,
        sink: &mut impl ConnSink,
    ) {
        let place = match self.last {
            Some((key, place)) if key == segment.key => place,
            _ => {
                let (hash, maybe) =
                    looked_up.unwrap_or_else(|| (self.hash(&segment.key), u32::MAX));
                // A connection that was looked up before the batch may have been removed, or be another one with the
                // same hash.
                let place = if self.is_at(maybe, &segment.key) {
                    maybe
                } else {
                    match self.find(segment, hash) {
                        Some(place) => place,
                        None if self.begin_young(segment, hash, sink) => return,
                        None => self.insert(segment, hash),
                    }
                };
                self.last = Some((segment.key, place));
                place
            }
        };
        let place = if place & YOUNG == 0 {
            place
        } else if self.note(place, segment, sink) {
            return;
        } else {
            self.mature(place)
        };
        if self
            .conn(place)
            .as_ref()
            .is_some_and(|conn| conn.is_another(segment))
        {
            self.replace(place, segment, sink);
        }
        let chunk = &mut self.chunks[place as usize / CHUNK];
        let Some(conn) = &mut chunk[place as usize % CHUNK] else {
            return;
        };
        conn.touched = true;
        let heap = conn.heap;
        let twin = match self.seen.take() {
            Some(twin) => twin,
            None => self.twins.find_twin(segment, conn.last_from),
        };
        if twin != Twin::None && conn.leaves_out_copy(segment, twin) {
            self.heap += (conn.heap - heap) as usize;
            return;
        }
        let from = usize::from(segment.from & 1);
        let (segments, numbers) = (conn.last_segments(from), &mut conn.paths[from].numbers);
        let follows = || {
            let compared = numbers.compared;
            compared.then(|| numbers.follows(segment.id, segments))
        };
        numbers.own = self.numbering.record(segment, conn.hash, follows);
        numbers.compared = true;
        count(conn, segment, &mut self.watch, &mut self.guilty);
        let over = conn.is_over() && !conn.closed;
        conn.closed |= over;
        let index = conn.index;
        self.heap += (conn.heap - heap) as usize;
        if over {
            self.linger(place, index, segment.ts, sink);
        }
        self.keep_within_limit(place, sink);
    }

    /// Store the packet with the others of a young connection; return false if the connection must be counted from now
    /// on.
    #[inline]
    fn note(&mut self, place: u32, segment: &Segment, sink: &mut impl ConnSink) -> bool {
        let plain = flag::SYN | flag::ACK;
        // Packets that end a connection or begin another one require a counted connection.
        if segment.flags & (flag::FIN | flag::RST) != 0 || segment.flags & plain == flag::SYN {
            return false;
        }
        let chunk = &mut self.young[(place & !YOUNG) as usize / CHUNK];
        let young = &mut chunk[place as usize % CHUNK];
        let twin = self.twins.find_twin(segment, young.last_from);
        let heap = young.heap();
        if twin != Twin::None || !young.note(segment) {
            self.seen = Some(twin);
            return false;
        }
        self.heap += young.heap() - heap;
        self.keep_within_limit(place, sink);
        true
    }

    /// Convert the young connection at `place` to a counted one; return its new place.
    fn mature(&mut self, place: u32) -> u32 {
        let number = (place & !YOUNG) as usize;
        let young = std::mem::take(&mut self.young[number / CHUNK][number % CHUNK]);
        self.free_young.push(place);
        let new = self.find_room();
        let conn = count_young(&young, &mut self.watch, &mut self.guilty);
        if let Ok(mut entry) = self
            .table
            .find_entry(Slot::spread_hash(young.hash), |slot| {
                slot.hash == young.hash && slot.place == place
            })
        {
            entry.get_mut().place = new;
        }
        let heap = conn.as_ref().map_or(0, |conn| conn.heap as usize);
        self.heap = self.heap + CONN_COST + heap - YOUNG_COST - young.heap();
        *self.conn(new) = conn;
        if let Some((_, last)) = self.last.as_mut().filter(|(_, last)| *last == place) {
            *last = new;
        }
        new
    }

    #[inline]
    fn young_at(&self, place: u32) -> Option<&Young> {
        let number = (place & !YOUNG) as usize;
        self.young.get(number / CHUNK)?.get(number % CHUNK)
    }

    #[inline]
    fn is_at(&self, place: u32, key: &FlowKey) -> bool {
        if place & YOUNG != 0 {
            return self.young_at(place).is_some_and(|young| young.is_of(key));
        }
        self.chunks
            .get(place as usize / CHUNK)
            .and_then(|chunk| chunk.get(place as usize % CHUNK)?.as_ref())
            .is_some_and(|conn| conn.key == *key)
    }

    fn find(&self, segment: &Segment, hash: u32) -> Option<u32> {
        self.table
            .find(Slot::spread_hash(hash), |slot| {
                slot.hash == hash && self.is_at(slot.place, &segment.key)
            })
            .map(|slot| slot.place)
    }

    /// Begin a connection by storing its first packet; return false if it must be counted immediately.
    fn begin_young(&mut self, segment: &Segment, hash: u32, sink: &mut impl ConnSink) -> bool {
        if segment.flags & (flag::FIN | flag::RST) != 0 {
            return false;
        }
        let twin = self.twins.find_twin(segment, segment.from);
        let young = Young::new(segment, hash, self.next_index).filter(|_| twin == Twin::None);
        let Some(young) = young else {
            self.seen = Some(twin);
            return false;
        };
        let heap = young.heap();
        let place = self.free_young.pop().unwrap_or_else(|| {
            if self.young.last().is_none_or(|chunk| chunk.len() == CHUNK) {
                self.young.push(Vec::with_capacity(CHUNK));
            }
            let number = self.young.len() - 1;
            let chunk = &mut self.young[number];
            chunk.push(Young::default());
            YOUNG | (number * CHUNK + chunk.len() - 1) as u32
        });
        let number = (place & !YOUNG) as usize;
        self.young[number / CHUNK][number % CHUNK] = young;
        self.add_entry(hash, place, YOUNG_COST + heap);
        self.last = Some((segment.key, place));
        self.keep_within_limit(place, sink);
        true
    }

    fn insert(&mut self, segment: &Segment, hash: u32) -> u32 {
        let place = self.find_room();
        let conn = Conn::new(segment, hash, self.next_index);
        *self.conn(place) = Some(conn);
        self.add_entry(hash, place, CONN_COST);
        place
    }

    /// Add a connection at `place`.
    fn add_entry(&mut self, hash: u32, place: u32, cost: usize) {
        self.next_index += 1;
        self.table
            .insert_unique(Slot::spread_hash(hash), Slot { hash, place }, |slot| {
                Slot::spread_hash(slot.hash)
            });
        self.heap += cost;
        self.open += 1;
    }

    /// Return a free place for a connection.
    fn find_room(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
                self.chunks.push(pages::allocate_on_huge_pages(CHUNK));
            }
            let number = self.chunks.len() - 1;
            let chunk = &mut self.chunks[number];
            chunk.push(None);
            (number * CHUNK + chunk.len() - 1) as u32
        })
    }

    #[inline]
    fn keep_within_limit(&mut self, keep: u32, sink: &mut impl ConnSink) {
        while self.heap > self.limit && self.open > 1 {
            self.evict(keep, sink);
        }
    }

    /// Finish the connection at `place`, because another one with the same key begins.
    #[cold]
    fn replace(&mut self, place: u32, segment: &Segment, sink: &mut impl ConnSink) {
        let index = self.next_index;
        self.next_index += 1;
        let Some(old) = self.conn(place) else { return };
        let mut new = Conn::new(segment, old.hash, index);
        new.reused = true;
        let old = std::mem::replace(old, new);
        self.heap -= old.heap as usize;
        let (summary, client) = summarise(&old, &self.names, false, sink);
        sink.finished(&old, client, summary);
    }

    fn linger(&mut self, place: u32, index: u64, now: i64, sink: &mut impl ConnSink) {
        self.lingering.push_back((place, index));
        while let Some(&(first, its_index)) = self.lingering.front() {
            let crowded = self.lingering.len() > LINGER;
            let conn = self
                .conn(first)
                .as_ref()
                .filter(|conn| conn.index == its_index);
            let idle_since = conn.map(|conn| conn.last_ts);
            match idle_since {
                Some(since) if !crowded && now.saturating_sub(since) < LINGER_NANOS => return,
                Some(_) => self.remove(first, false, sink),
                None => {}
            }
            self.lingering.pop_front();
        }
    }

    fn remove(&mut self, place: u32, evicted: bool, sink: &mut impl ConnSink) {
        let Some(conn) = self.conn(place).take() else {
            return;
        };
        if let Ok(entry) = self.table.find_entry(Slot::spread_hash(conn.hash), |slot| {
            slot.hash == conn.hash && slot.place == place
        }) {
            entry.remove();
        }
        self.free.push(place);
        self.open -= 1;
        self.heap -= CONN_COST + conn.heap as usize;
        if self.last.is_some_and(|(_, last)| last == place) {
            self.last = None;
        }
        let (summary, client) = summarise(&conn, &self.names, evicted, sink);
        sink.finished(&conn, client, summary);
    }

    /// Evict one connection that was not used since the eviction hand last passed it; never the one at `keep`.
    #[cold]
    fn evict(&mut self, keep: u32, sink: &mut impl ConnSink) {
        let counted: usize = self.chunks.iter().map(Vec::len).sum();
        let places = counted + self.young.iter().map(Vec::len).sum::<usize>();
        for _ in 0..=2 * places {
            let number = self.hand;
            self.hand = (self.hand + 1) % places;
            if let Some(number) = number.checked_sub(counted) {
                let place = number as u32 | YOUNG;
                let young = &mut self.young[number / CHUNK][number % CHUNK];
                if !young.is_here() || place == keep || std::mem::take(&mut young.touched) {
                    continue;
                }
                self.evicted += 1;
                let place = self.mature(place);
                self.remove(place, true, sink);
                return;
            }
            let place = number as u32;
            let Some(Some(conn)) = self.chunks[number / CHUNK]
                .get_mut(number % CHUNK)
                .filter(|_| place != keep)
            else {
                continue;
            };
            if conn.touched {
                conn.touched = false;
                continue;
            }
            self.evicted += u64::from(!conn.closed);
            let open = !conn.closed;
            self.remove(place, open, sink);
            return;
        }
    }
}

/// Segments that are looked up together.
pub const BATCH: usize = 64;
