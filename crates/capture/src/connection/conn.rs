//! Hold the state of an open connection, which is updated packet by packet in constant time and bounded space.

use crate::connection::account::Account;
use crate::connection::copies::{CorrectedCounts, TwinCounts};
use crate::connection::latency::RareDurations;
use crate::connection::losses::Losses;
use crate::connection::path::Path;
use crate::connection::queue::Queue;
use crate::connection::sent::{Rare, Sent};
use crate::connection::seqspace::not_after;
use crate::connection::wait::CompactDuration;
use crate::wire::packet::{flag, Direction, FlowKey, Segment, NO_TIME, TCP};

/// A byte with a single valid value. `Option<Conn>` uses its other values for `None`, in a cache line that every packet
/// reads anyway.
#[derive(Debug)]
#[repr(u8)]
pub enum Occupied {
    /// The connection exists.
    Yes = 0,
}

/// Bits of [`Conn::facts`] for the first end: the capturing machine sent its packets, or received them; its first data
/// was in its SYN. The bit after each is the second end's.
const SENT: u8 = 1;
const RECEIVED: u8 = 4;
const BOTH_RECEIVED: u8 = 12;
const EARLY: u8 = 16;
/// Interfaces of one machine see the same packet within this many microseconds.
const APART: u64 = 500;
/// Minimum number of repeats that count as two merged captures, if everything was repeated.
const MERGED_FROM: u32 = 4;

/// By how much time stamps stepped backwards at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Steps {
    /// Not at all.
    None,
    /// By less than a millisecond, as happens if several processors capture.
    Small,
    /// By a millisecond or more.
    Large,
}

/// Time stamps of the three-way handshake in nanoseconds; [`NO_TIME`] for a packet that was not seen.
#[derive(Clone, Copy, Debug)]
pub struct Handshake {
    /// First SYN.
    pub syn: i64,
    /// Last SYN before the answer.
    pub last_syn: i64,
    /// SYN with ACK.
    pub synack: i64,
    /// The client's first ACK after it.
    pub ack: i64,
}

/// One open connection.
///
/// The layout follows the use: the first cache line contains everything that each packet reads besides its sender's
/// part, and the last one is used by the few packets that begin, end or disturb a connection.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Conn {
    /// The flow.
    pub key: FlowKey,
    /// Time of the last packet.
    pub last_ts: i64,
    /// For each end, the maximum segment size that its peer has announced; 0 if unknown.
    pub limit: [u16; 2],
    /// All flags that each end has sent so far.
    pub flags: [u8; 2],
    /// Which end sent the last packet.
    pub last_from: u8,
    /// Whether it was used since the eviction hand last passed it.
    pub touched: bool,
    /// Whether it is in the queue of closed connections.
    pub closed: bool,
    /// Whether the whole handshake was seen.
    pub shaken: bool,
    /// By how much packets had a time before the previous one's.
    pub backwards: Steps,
    /// Whether an earlier connection used the same addresses and ports.
    pub reused: bool,
    /// Which ends permit selective acknowledgements.
    pub selective: [bool; 2],
    /// Whether the connection exists.
    pub occupied: Occupied,
    /// What each end has sent.
    pub sent: [Sent; 2],
    /// Each end's side of the path.
    pub paths: [Path; 2],
    /// The time by cause.
    pub account: Account,
    /// Round trips between the point of capture and each end.
    pub rtt: [RareDurations; 2],
    /// Both directions.
    pub(crate) rare: Option<Box<[Rare; 2]>>,
    /// The queues of each direction; only in connections of more than a few packets.
    pub(crate) queues: Option<Box<[Queue; 2]>>,
    /// Smallest time stamp.
    pub start_ts: i64,
    /// Largest time stamp before a step backwards.
    pub latest: i64,
    /// Number in order of appearance.
    pub index: u64,
    /// The handshake.
    pub handshake: Handshake,
    /// Hash of the key.
    pub hash: u32,
    /// Bytes on the heap.
    pub heap: u32,
    /// The longest times for each end's program.
    pub(crate) own: [CompactDuration; 2],
    /// Which end is the client, if the packets show it.
    pub client: Option<u8>,
    /// Facts that few packets show: which packets the capturing machine has sent and received, and which ends have sent
    /// their first data in their SYN, and not again since.
    facts: u8,
}

impl Conn {
    /// Create a connection that begins with `segment` (which is not counted yet).
    #[must_use]
    pub fn new(segment: &Segment, hash: u32, index: u64) -> Self {
        Self {
            key: segment.key,
            last_ts: segment.ts,
            limit: [0, 0],
            flags: [0, 0],
            last_from: segment.from,
            touched: true,
            closed: false,
            shaken: false,
            occupied: Occupied::Yes,
            sent: Default::default(),
            paths: Default::default(),
            account: Account::new(segment.ts, segment.from),
            rtt: Default::default(),
            rare: None,
            queues: None,
            start_ts: segment.ts,
            latest: NO_TIME,
            index,
            handshake: Handshake {
                syn: NO_TIME,
                last_syn: NO_TIME,
                synack: NO_TIME,
                ack: NO_TIME,
            },
            hash,
            heap: 0,
            own: Default::default(),
            backwards: Steps::None,
            reused: false,
            selective: [false; 2],
            client: None,
            facts: 0,
        }
    }

    /// Read a word of every cache line that an update of direction `which` uses, so that the processor fetches them
    /// early.
    #[inline]
    pub(crate) fn touch_lines(&self, which: usize) -> u64 {
        let (own, peer) = (&self.sent[which], &self.sent[1 - which]);
        let (path, other) = (&self.paths[which], &self.paths[1 - which]);
        self.last_ts as u64
            ^ own.packets
            ^ own.latency.count
            ^ own.latency.hist.touch_lines()
            ^ u64::from(own.largest)
            ^ u64::from(own.space.next())
            ^ u64::from(peer.acked)
            ^ path.nearest
            ^ path.unacked.touch_lines()
            ^ other.nearest
            ^ other.unacked.touch_lines()
            ^ self.attributed_until() as u64
            ^ self.rtt[which].touch_lines()
    }

    /// Return the nanoseconds from the smallest time to the largest.
    #[must_use]
    pub fn duration(&self) -> u64 {
        let end = self.latest.max(self.last_ts);
        end.saturating_sub(self.start_ts).max(0) as u64
    }

    /// Whether `segment` begins another connection between the same addresses and ports.
    ///
    /// The rule is Wireshark's: a SYN with another sequence number, or after a FIN or RST. A SYN that crosses the
    /// peer's belongs to the same connection.
    #[must_use]
    pub fn is_another(&self, segment: &Segment) -> bool {
        if segment.key.protocol != TCP || segment.flags & flag::SYN == 0 || !segment.seq_known {
            return false;
        }
        let own = &self.sent[usize::from(segment.from)];
        let peer = &self.sent[usize::from(1 - segment.from)];
        if own.packets + peer.packets == 0 {
            return false;
        }
        let flags = [
            self.flags[usize::from(segment.from)],
            self.flags[usize::from(1 - segment.from)],
        ];
        let ended = (flags[0] | flags[1]) & (flag::FIN | flag::RST) != 0;
        let fresh =
            own.packets > 0 && self.paths[usize::from(segment.from)].first_seq != segment.seq;
        if segment.flags & flag::ACK != 0 {
            return ended && fresh;
        }
        if own.packets > 0 {
            fresh || ended
        } else {
            flags[1] & flag::SYN == 0 || ended
        }
    }

    /// Return the largest segment that `end` may send.
    #[inline]
    #[must_use]
    pub(crate) fn largest_segment(&self, end: usize) -> u32 {
        u32::from(self.limit[end].max(536))
    }

    /// Return the number of segments on the wire that the last packet of `end` with data consisted of.
    #[inline]
    #[must_use]
    pub(crate) fn last_segments(&self, end: usize) -> u32 {
        self.paths[end].last_len.div_ceil(self.largest_segment(end))
    }

    /// Return the counters of `end` that only few packets change.
    #[must_use]
    pub fn rare(&self, end: usize) -> Rare {
        self.rare
            .as_ref()
            .map_or_else(Rare::default, |rare| rare[end])
    }

    pub(crate) fn rare_mut(&mut self, end: usize) -> &mut Rare {
        if self.rare.is_none() {
            self.note_heap_growth(size_of::<[Rare; 2]>());
        }
        &mut self.rare.get_or_insert_with(Box::default)[end]
    }

    #[inline]
    pub(crate) fn note_heap_growth(&mut self, by: usize) {
        if by > 0 {
            self.heap = self.heap.saturating_add(by as u32);
        }
    }

    #[inline]
    pub(crate) fn move_on(&mut self, from: usize, ts: i64) {
        self.account.mark = ts;
        self.account.from = from as u8;
        self.account.covered = NO_TIME;
    }

    /// Return the time up to which the whole connection is attributed.
    pub(crate) fn attributed_until(&self) -> i64 {
        self.account.mark
    }

    /// Return the end that is assumed to be the client.
    #[inline]
    #[must_use]
    pub fn client_end(&self) -> usize {
        self.client.map_or_else(
            || usize::from(self.key.port[0] < self.key.port[1]),
            usize::from,
        )
    }

    /// Whether `end` announces a window too small for the other end to continue (receivers avoid the silly window
    /// syndrome).
    #[inline]
    pub(crate) fn is_shut(&self, end: usize) -> bool {
        let path = &self.paths[end];
        if path.window_min == u32::MAX || self.flags[end] & (flag::FIN | flag::RST) != 0 {
            return false;
        }
        if path.scale == crate::connection::path::NO_SCALE {
            return path.window == 0;
        }
        let segment = self.largest_segment(1 - end);
        path.window < segment.min(path.window_max / 2)
    }

    /// Note that the capturing machine sent `segment`, or received it.
    #[inline]
    pub(crate) fn note_way(&mut self, segment: &Segment) {
        let end = segment.from & 1;
        self.facts |= match segment.direction {
            Direction::Out => SENT << end,
            Direction::In => RECEIVED << end,
            Direction::Unknown => 0,
        };
    }

    /// Whether `end` is the capturing machine, as its packets show. With a loopback both ends are, and where the
    /// machine only forwards packets neither is.
    #[must_use]
    pub fn is_local(&self, end: usize) -> bool {
        let is = |way: u8| self.facts & way != 0;
        let forwards = self.facts & BOTH_RECEIVED == BOTH_RECEIVED;
        if is(SENT) && is(SENT << 1) {
            return true;
        }
        !forwards && (is(SENT << end) || is(RECEIVED << (1 - end)) && !is(SENT << (1 - end)))
    }

    /// Whether the last time that `end` sent its first data was in its SYN.
    pub(crate) fn is_early(&self, end: usize) -> bool {
        self.facts & EARLY << end != 0
    }

    /// Note whether `end` sent its first data in its SYN (`early`) or after it.
    pub(crate) fn note_first_data(&mut self, end: usize, early: bool) {
        let bit = EARLY << end;
        self.facts = self.facts & !bit | if early { bit } else { 0 };
    }

    /// Whether everything that `from` has sent has been acknowledged, as seen at the point of capture.
    #[inline]
    pub(crate) fn all_acknowledged(&self, from: usize, next: u32) -> bool {
        not_after(next, self.sent[1 - from].acked)
    }

    /// Note a doubt: `nanos` that are attributed to `end` may be due to the repeat of a packet that was lost before the
    /// point of capture; `likely` if there is a second sign of it.
    #[cold]
    pub(crate) fn note_doubt(&mut self, end: usize, nanos: u64, likely: bool) {
        let micros = u32::try_from(nanos / 1000).unwrap_or(u32::MAX);
        let rare = self.rare_mut(end);
        rare.unsure = rare.unsure.saturating_add(micros);
        if likely {
            rare.doubtful = rare.doubtful.saturating_add(micros);
        }
    }

    /// Return the shortest round trip between the ends, in nanoseconds.
    #[inline]
    pub(crate) fn both_trips(&self) -> u64 {
        self.paths[0].round_trip() + self.paths[1].round_trip()
    }

    pub(crate) fn losses(&self) -> Option<&Losses> {
        self.account.losses.as_deref()
    }

    /// Whether something is missing at the receiver, or its retransmission is not acknowledged yet.
    pub(crate) fn is_repairing(&self) -> bool {
        self.losses()
            .is_some_and(|losses| losses.since.is_some() || losses.again.is_some())
    }

    pub(crate) fn losses_mut(&mut self) -> &mut Losses {
        self.account.losses.get_or_insert_with(Box::default)
    }

    /// Return how many bytes of end `which` the other end has acknowledged although they were not captured.
    pub(crate) fn count_missing_from(&self, which: usize) -> u64 {
        let (sent, peer) = (&self.sent[which], &self.sent[1 - which]);
        if self.flags[1 - which] & flag::ACK == 0 || !sent.space.started() {
            return 0;
        }
        let unseen = sent.space.unseen_below(peer.acked);
        // An acknowledgement of a FIN or SYN is one more than the bytes. A FIN that overtook the last bytes was
        // captured but has no place among them.
        if unseen == 1 {
            0
        } else {
            unseen
        }
    }

    /// Return how many bytes were acknowledged although they were not captured.
    pub(crate) fn missing(&self) -> u64 {
        self.count_missing_from(0) + self.count_missing_from(1)
    }

    /// Return the counters of direction `which` of a finished connection, with each packet counted once.
    #[must_use]
    pub fn counted(&self, which: usize) -> CorrectedCounts {
        let (sent, rare) = (&self.sent[which], self.rare(which));
        let TwinCounts {
            certain,
            left_out,
            counted,
            ..
        } = rare.twice;
        let mut out = CorrectedCounts {
            packets: sent.packets,
            wire: sent.wire,
            unique: sent.unique,
            repeated: rare.repeated,
            retransmissions: rare.retransmissions,
            copies: certain,
        };
        let is_stream = self.key.protocol == TCP;
        if rare.twice.is_captured_twice(sent.packets, 0) {
            out.packets -= u64::from(counted.packets);
            out.wire -= counted.wire;
            out.copies += left_out.packets + counted.packets;
            if is_stream {
                out.repeated = out.repeated.saturating_sub(counted.payload);
                out.retransmissions = out.retransmissions.saturating_sub(counted.repeating);
            } else {
                out.unique -= counted.payload;
            }
        } else {
            out.packets += u64::from(left_out.packets);
            out.wire += left_out.wire;
            if is_stream {
                out.repeated += left_out.payload;
                out.retransmissions += left_out.repeating;
            } else {
                out.unique += left_out.payload;
            }
        }
        out
    }

    /// Whether nearly everything was captured twice, too far apart for interfaces of one machine. Then captures of two
    /// points of the path were merged.
    ///
    /// A sender may have to repeat everything, but then it sends new packets in order. A second capture shows old ones.
    #[must_use]
    pub fn is_merged(&self) -> bool {
        if self.key.protocol != TCP || self.sent.iter().any(|sent| sent.packets == 0) {
            return false;
        }
        let sides = [self.counted(0), self.counted(1)];
        let rare = [self.rare(0), self.rare(1)];
        let copies: u32 = sides.iter().map(|side| side.copies).sum();
        let apart: u64 = rare.iter().map(|rare| rare.twice.apart).sum();
        let both = |side: &CorrectedCounts| u64::from(side.copies) * 5 >= side.packets * 4;
        if copies >= MERGED_FROM && apart >= u64::from(copies) * APART && sides.iter().all(both) {
            return true;
        }
        let twice =
            |side: &CorrectedCounts| side.unique == 0 || side.repeated * 5 >= side.unique * 4;
        let repeats: u32 = sides.iter().map(|side| side.retransmissions).sum();
        let stale: u32 = rare.iter().map(|rare| rare.stale).sum();
        repeats >= MERGED_FROM && stale * 5 >= repeats * 4 && sides.iter().all(twice)
    }

    /// Whether all apparent repeats are copies, so that no loss was seen.
    #[must_use]
    pub(crate) fn has_only_copies(&self) -> bool {
        let ends = [0, 1];
        let is_copied = |end: usize| {
            let twice = self.rare(end).twice;
            twice.counted.repeating > 0 && twice.is_captured_twice(self.sent[end].packets, 0)
        };
        ends.into_iter().any(is_copied)
            && ends
                .iter()
                .all(|&end| self.counted(end).retransmissions == 0)
    }

    /// Whether both sides have finished, or one has reset.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        let [a, b] = self.flags;
        (a | b) & flag::RST != 0 || a & b & flag::FIN != 0
    }
}

#[cfg(test)]
mod tests {
    use super::Conn;
    use std::mem::offset_of;

    /// With half a million open connections, the cache lines that each packet touches limit the speed.
    #[test]
    fn a_connection_is_fourteen_cache_lines() {
        assert_eq!(
            (size_of::<Option<Conn>>(), offset_of!(Conn, sent)),
            (896, 64)
        );
        assert_eq!(
            (
                size_of::<crate::connection::sent::Sent>(),
                size_of::<crate::connection::path::Path>()
            ),
            (128, 144)
        );
        assert_eq!(offset_of!(Conn, paths) % 64, 0);
    }
}
