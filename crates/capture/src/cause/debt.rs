//! Determine which end owes the next packet while neither sends; time in which neither owes one is idle.
//!
//! A server owes the answer to a request, an end in the middle of a message owes the rest, an end in a TLS handshake
//! owes its next message, and the end that accepted a connection may owe the first message. How messages continue is
//! read from the messages themselves ([`crate::wire::message`]); for others only the order of packets is known.

use crate::connection::conn::Conn;
use crate::connection::spent::{on, IDLE_FROM};
use crate::wire::message::{MessageClue, MessageState};
use crate::wire::packet::{flag, Segment};

/// An end is near if its part of the round trip is at most one part in this many.
const NEAR: u64 = 8;
const DNS: u16 = 53;
/// Shorter round trips do not show which end is near.
const FAR: u64 = 1_000_000;

/// Bits of [`crate::connection::account::Account::talk`]: which messages have passed.
mod talk {
    /// A TLS handshake has begun.
    pub const HELLO: u8 = 1;
    /// The first end of the key encrypts; the next bit means that the second one does.
    pub const CIPHERS: u8 = 2;
    pub const BOTH: u8 = 6;
    /// The handshake is over.
    pub const SHAKEN: u8 = 8;
    /// The answer to the last request has no body.
    pub const BODILESS: u8 = 16;
    /// Data has been sent.
    pub const BEGUN: u8 = 32;
    /// A TLS server has asked for another first message.
    pub const RETRY: u8 = 64;
}

/// Which end owed the next packet during a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Debtor {
    /// This end.
    End(usize),
    /// This end, unless it never intended to send anything.
    Perhaps(usize),
    /// An end whose packets may have been lost.
    Hidden,
    /// Nobody.
    Nobody,
}

impl Conn {
    /// Attribute `nanos` before `segment` to `end`'s program, or, if they are a long silence, to the end that owed the
    /// next packet.
    #[inline]
    pub(crate) fn charge_own_time(&mut self, end: usize, nanos: u64, segment: &Segment) {
        let cause = if nanos < IDLE_FROM {
            on::APPLICATION + end
        } else {
            self.charge_silence(end, nanos, segment)
        };
        self.account.spent[cause] += nanos;
    }

    #[cold]
    fn charge_silence(&mut self, end: usize, nanos: u64, segment: &Segment) -> usize {
        match self.find_debtor(end, segment.payload > 0) {
            Debtor::End(debtor) => on::APPLICATION + debtor,
            Debtor::Perhaps(debtor) => {
                self.note_doubt(debtor, nanos, true);
                on::APPLICATION + debtor
            }
            Debtor::Hidden => on::UNKNOWN,
            Debtor::Nobody => {
                let goes_on = usize::from(self.account.from) == end;
                if goes_on && self.paths[end].debt != MessageState::Whole {
                    // It may have been in the middle of a message that cannot be parsed.
                    let micros = u32::try_from(nanos / 1000).unwrap_or(u32::MAX);
                    let rare = self.rare_mut(end);
                    rare.doubtful = rare.doubtful.saturating_add(micros);
                }
                on::IDLE
            }
        }
    }

    /// Return the cause of a long silence at the end of a connection.
    pub(crate) fn explain_last_silence(&self) -> usize {
        let last = usize::from(self.account.from & 1);
        match [last, 1 - last]
            .into_iter()
            .find(|&end| self.is_in_message(end))
        {
            Some(end) if self.is_near(end) => on::APPLICATION + end,
            Some(_) => on::UNKNOWN,
            None if self.is_unanswered() => on::APPLICATION + 1 - last,
            None => on::IDLE,
        }
    }

    /// Determine which end owed a packet when `end` broke a silence; `speaks` is true if its packet has payload.
    fn find_debtor(&self, end: usize, speaks: bool) -> Debtor {
        let other = 1 - end;
        if self.is_asked(end) || self.is_in_message(end) {
            Debtor::End(end)
        } else if self.is_in_message(other) {
            // The other end stopped in the middle of a message, and this end has given up waiting.
            if self.is_near(other) {
                Debtor::End(other)
            } else {
                Debtor::Hidden
            }
        } else if self.is_unanswered() {
            Debtor::End(other)
        } else if self.awaits_name(end) {
            Debtor::Hidden
        } else if self.is_shaking() && usize::from(self.account.from) != end {
            Debtor::End(end)
        } else if speaks && self.account.talk & talk::BEGUN == 0 && self.is_new() {
            Debtor::Perhaps(end)
        } else {
            Debtor::Nobody
        }
    }

    /// Whether `end` is a server that has received a request.
    #[inline]
    pub(crate) fn is_asked(&self, end: usize) -> bool {
        usize::from(self.account.from) != end && end != self.client_end()
    }

    /// Whether `end` is in the middle of a message.
    #[inline]
    pub(crate) fn is_in_message(&self, end: usize) -> bool {
        let path = &self.paths[end];
        matches!(
            path.debt,
            MessageState::Body | MessageState::Open | MessageState::Record
        ) || path.debt == MessageState::Unknown
            && path.last_len > 0
            && !path.pushed
            && self.last_packet_was_full_size(end)
    }

    /// Whether the client has sent a request that is known to be complete, and neither end has sent data since.
    fn is_unanswered(&self) -> bool {
        let client = self.client_end();
        usize::from(self.account.from) == client && self.paths[client].debt == MessageState::Whole
    }

    /// Whether `end` has sent a DNS query without an answer since. Either of the two may have been lost.
    fn awaits_name(&self, end: usize) -> bool {
        let asked = usize::from(self.account.from) == end && end == self.client_end();
        asked && self.key.port.contains(&DNS)
    }

    /// Whether the connection began in the capture.
    fn is_new(&self) -> bool {
        (self.flags[0] | self.flags[1]) & flag::SYN != 0
    }

    /// Whether a TLS handshake is in progress.
    fn is_shaking(&self) -> bool {
        let talk = self.account.talk;
        talk & talk::HELLO != 0 && talk & talk::SHAKEN == 0
    }

    /// Whether this was captured on `end`'s machine or near it, so that everything it sends is seen.
    #[inline]
    #[must_use]
    pub(crate) fn is_near(&self, end: usize) -> bool {
        let (own, whole) = (self.paths[end].round_trip(), self.both_trips());
        self.is_local(end) || whole >= FAR && own <= whole / NEAR
    }

    /// Track the message of `from` that `segment` begins or continues.
    #[inline]
    pub(crate) fn follow_message(&mut self, segment: &Segment, from: usize) {
        let next = self.sent[from].space.next();
        self.account.talk |= talk::BEGUN;
        let says = segment.message.says();
        if says == MessageClue::Nothing && self.paths[from].debt == MessageState::Unknown {
            return;
        }
        let (answers, talk) = (from != self.client_end(), self.account.talk);
        let bodiless = answers && talk & talk::BODILESS != 0;
        let path = &mut self.paths[from];
        let in_record = path.debt == MessageState::Record && path.due != segment.seq;
        match says {
            MessageClue::Ends(_) | MessageClue::Open if bodiless => {
                self.account.talk &= !talk::BODILESS;
                path.debt = MessageState::Unknown;
            }
            MessageClue::Ends(length) => {
                (path.due, path.debt) = (segment.seq.wrapping_add(length), MessageState::Body);
            }
            MessageClue::Asks(length) => {
                self.account.talk |= talk::BODILESS;
                (path.due, path.debt) = (segment.seq.wrapping_add(length), MessageState::Body);
            }
            MessageClue::Open => path.debt = MessageState::Open,
            MessageClue::Last if path.debt == MessageState::Open => path.debt = MessageState::Whole,
            MessageClue::Records(records) if !in_record => {
                (path.due, path.debt) = (
                    segment.seq.wrapping_add(records.length),
                    MessageState::Record,
                );
                let mut talk = talk | if records.hello { talk::HELLO } else { 0 };
                if records.retry {
                    talk = talk & !(talk::SHAKEN | talk::BOTH) | talk::RETRY;
                }
                // After such a request, the record that announces encryption has no meaning (RFC 8446, D.4).
                if records.ciphers && talk & talk::RETRY == 0 {
                    talk |= talk::CIPHERS << from;
                }
                if talk & talk::BOTH == talk::BOTH || records.data && !answers {
                    talk |= talk::SHAKEN;
                }
                self.account.talk = talk;
            }
            _ => {}
        }
        path.debt = match (path.debt, path.due.wrapping_sub(next) as i32) {
            (MessageState::Body, 0) => MessageState::Whole,
            (MessageState::Record | MessageState::BetweenRecords, 0) => {
                MessageState::BetweenRecords
            }
            (MessageState::Body | MessageState::Record, ..0) => MessageState::Unknown,
            (MessageState::BetweenRecords | MessageState::Whole, _)
                if says == MessageClue::Nothing =>
            {
                MessageState::Unknown
            }
            (debt, _) => debt,
        };
        if segment.flags & flag::FIN != 0 {
            path.debt = MessageState::Unknown;
        }
    }
}
