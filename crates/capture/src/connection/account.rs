//! Keep a connection's time by cause, and the time that is not attributed yet.

use crate::connection::losses::Losses;
use crate::connection::spent::{on, Spent};
use crate::connection::wait::Wait;
use crate::wire::packet::NO_TIME;

/// The time by cause so far.
#[derive(Debug)]
pub struct Account {
    /// Nanoseconds by cause.
    pub spent: Spent,
    /// Time up to which all of the connection has been attributed.
    pub(crate) mark: i64,
    /// When all data of the end that moved on last was acknowledged.
    pub(crate) covered: i64,
    /// Time that a small segment waited, in addition to other causes' time; it belongs to Nagle's rule if the other end
    /// answers next.
    pub(crate) held: u64,
    /// What is known about losses.
    pub(crate) losses: Option<Box<Losses>>,
    /// The end that moved on last.
    pub(crate) from: u8,
    /// The end that moved on last had more than two segments in flight, so the other end acknowledges without delay.
    pub(crate) streaming: bool,
    /// Data that the capture lacks was acknowledged since.
    pub(crate) unseen: bool,
    /// What both ends have said, as [`crate::cause::debt`] follows it.
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

    /// Attribute the time that a small segment was held back: to Nagle's rule if the other end waited for it
    /// (`answered`), otherwise to the sender's program.
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
