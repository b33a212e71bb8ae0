//! Keep a connection's time by cause, and what is needed to attribute the time that follows.

use crate::connection::losses::Losses;
use crate::connection::spent::{on, Spent};
use crate::connection::wait::Wait;
use crate::wire::packet::NO_TIME;

/// The time by cause so far.
#[derive(Debug)]
pub struct Account {
    /// Nanoseconds by cause.
    pub spent: Spent,
    /// Time up to which the connection's time has been attributed.
    pub(crate) mark: i64,
    /// When all data of the end that moved on last was acknowledged.
    pub(crate) covered: i64,
    /// Time that a small segment waited, not yet attributed; its cause is Nagle's algorithm if the other end answers
    /// next.
    pub(crate) held: u64,
    /// What is known about losses.
    pub(crate) losses: Option<Box<Losses>>,
    /// The end that moved on last.
    pub(crate) from: u8,
    /// Whether the end that moved on last had more than two segments in flight, so that the other end acknowledges
    /// without delay.
    pub(crate) streaming: bool,
    /// Whether data that the capture lacks has been acknowledged since.
    pub(crate) unseen: bool,
    /// Which messages have passed, as tracked by [`crate::cause::debt`].
    pub(crate) talk: u8,
    /// The longest single wait.
    pub(crate) longest: Wait,
}

impl Account {
    /// Create an empty account that begins with the first packet, sent by `from`.
    #[must_use]
    pub fn new(ts: i64, from: u8) -> Self {
        Self {
            spent: [0; on::COUNT],
            mark: ts,
            covered: NO_TIME,
            held: 0,
            losses: None,
            from,
            streaming: false,
            unseen: false,
            talk: 0,
            longest: Wait::default(),
        }
    }

    /// Attribute the time for which a small segment was held back: to Nagle's algorithm if the other end waited for the
    /// segment (`answered`), otherwise to the sender's program.
    #[inline]
    pub(crate) fn release_held(&mut self, answered: bool) {
        let held = std::mem::take(&mut self.held);
        let cause = if answered {
            on::NAGLE
        } else {
            on::APPLICATION + usize::from(self.from & 1)
        };
        self.spent[cause] += held;
    }
}
