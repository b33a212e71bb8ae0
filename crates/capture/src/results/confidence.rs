//! Judge how reliable the causes of a connection are.

use crate::connection::conn::{Conn, Steps};
use crate::connection::path::NO_SCALE;
use crate::connection::spent::{on, Spent};
use crate::results::side::Side;
use crate::wire::packet::{flag, TCP};
use serde::Serialize;

/// Largest share of the time that may belong to another cause with high confidence: one part in this many.
const FEW: u128 = 20;

/// How reliable the causes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// All evidence was captured, and no two signs contradict each other.
    High,
    /// Something was not captured (the beginning, its options, some bytes), or up to a third of the time is unexplained
    /// or was attributed by a single sign.
    Medium,
    /// More than a third of the time is unexplained, or more than 2 % of the bytes are missing.
    Low,
}

impl Confidence {
    /// Judge a connection with these `sides`, whose time was `spent` like this.
    #[must_use]
    pub fn of(conn: &Conn, sides: &[&Side; 2], spent: &Spent) -> Self {
        if conn.key.protocol != TCP {
            return Self::Medium;
        }
        let (bytes, missing) = sides.iter().fold((0, 0), |(bytes, missing), side| {
            (bytes + side.unique_bytes, missing + side.missing_bytes)
        });
        // Use 128 bits: a clock that was set in between makes a connection of fifty years.
        let wide = u128::from;
        let whole: u128 = spent.iter().map(|&part| wide(part)).sum();
        let (unknown, missing, bytes) = (wide(spent[on::UNKNOWN]), wide(missing), wide(bytes));
        let doubtful = [0, 1].map(|end| 1000 * u128::from(conn.rare(end).doubtful));
        // Packet numbers are a single sign, which no other one supports.
        let inferred = conn.losses().map_or(0, |losses| losses.inferred);
        let weak = unknown + doubtful.iter().sum::<u128>() + wide(inferred);
        let stepped = conn.backwards;
        let scaled = conn.paths.iter().all(|path| path.scale != NO_SCALE);
        let begun = conn.flags[0] & conn.flags[1] & flag::SYN != 0 && scaled;
        let unsettled = weak.max(wide(conn.unsettled(spent)));
        if unknown * 3 > whole || missing * 50 > bytes + missing || stepped == Steps::Large {
            Self::Low
        } else if unsettled * FEW > whole || missing > 0 || !begun || stepped > Steps::None {
            Self::Medium
        } else {
            Self::High
        }
    }
}

impl Conn {
    /// Return how much of the time may belong to another of the causes between the ends, as seen at this point. If
    /// packets overtake each other, or systems send no time stamps, the path's length, its rate and the buffers cannot
    /// be distinguished. After losses, length and rate cannot, for as much time as the losses cost.
    fn unsettled(&self, spent: &Spent) -> u64 {
        let (latency, bandwidth) = (spent[on::LATENCY], spent[on::BANDWIDTH]);
        let buffers: u64 = spent[on::RECEIVE_BUFFER..on::LATENCY].iter().sum();
        let streams = self.paths.iter().any(|path| path.view.is_some());
        if self.find_reordering_time() > 0 || streams && self.queues.is_none() {
            latency.min(bandwidth) + (latency + bandwidth).min(buffers)
        } else {
            // One point does not always show whether an overflowing queue or chance caused the losses.
            (latency + bandwidth).min(spent[on::RECOVERY])
        }
    }
}
