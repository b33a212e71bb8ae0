//! Store what is known about a connection's losses: the hole that the receiver reports, holes in the capture, and
//! retransmissions.

use crate::connection::spent::Spent;

/// A hole in the captured data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hole {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Time before the hole was noticed, by cause.
    pub(crate) spent: Spent,
    pub(crate) at: i64,
    pub(crate) end: u8,
    /// The silence that had just ended, if the hole turns out to be older than that.
    pub(crate) after: Option<Silence>,
}

/// A long silence, and its time by cause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    /// The end that broke the silence, when, and the sequence number up to which it had sent by then.
    pub(crate) end: u8,
    pub(crate) at: i64,
    pub(crate) next: u32,
    pub(crate) cause: u8,
    pub(crate) nanos: u64,
}

/// A retransmitted packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retransmission {
    pub(crate) at: i64,
    pub(crate) seq: u32,
    pub(crate) gap: u64,
    pub(crate) end: u8,
    /// Which end had sent something new before, and when.
    pub(crate) before: (i64, u8),
}

/// What is known about a connection's losses.
#[derive(Debug, Default)]
pub struct Losses {
    /// When the receiver began to report a hole, and how time was spent until then.
    pub(crate) since: Option<(i64, Spent)>,
    /// Everything up to here had been sent when the last hole was reported.
    pub(crate) until: u32,
    /// The end that sent these data.
    pub(crate) end: u8,
    /// Whether something has been retransmitted since.
    pub(crate) repaired: bool,
    /// Where the last retransmitted packet ends.
    pub(crate) resent: u32,
    pub(crate) holes: Vec<Hole>,
    /// The last long silence.
    pub(crate) silence: Option<Silence>,
    /// The last retransmitted packet: when it was sent, after how long, and the causes to which the time since would
    /// belong.
    pub(crate) again: Option<Retransmission>,
    /// Recovery time that is inferred only from jumps of IPv4's identification.
    pub inferred: u64,
    /// The last such time: when it ended, how long it was, and which end lost the packets.
    pub(crate) jumped: Option<(i64, u64, u8)>,
    /// Number of packets that were overtaken.
    pub overtaken: u32,
    /// The longest time by which a packet was overtaken, in nanoseconds: the path's delay varies by at least this much.
    pub varies: u64,
    /// When the last packet that had been overtaken passed, and which end had sent it.
    pub(crate) late: (i64, u8),
    /// When the last recovery ended; 0 if there was none.
    pub(crate) ended: i64,
    /// Number of recoveries.
    pub episodes: u32,
}

impl Losses {
    /// Whether a loss filled the window until the acknowledgement at `at`.
    pub(crate) fn filled_window(&self, at: i64) -> bool {
        self.ended != 0 && self.ended == at
    }

    /// Whether something is missing at the receiver.
    pub(crate) fn missing(&self) -> bool {
        self.since.is_some()
    }

    /// Whether a loss is being repaired.
    pub(crate) fn repairing(&self) -> bool {
        self.since.is_some() && self.repaired
    }
}
