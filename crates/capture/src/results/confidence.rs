//! How reliable the causes of a connection are.

use crate::connection::conn::{Conn, Steps};
use crate::connection::spent::{on, Spent};
use crate::results::side::Side;
use crate::wire::packet::{flag, TCP};
use serde::Serialize;

/// Share of the time that may belong to another cause: one part in this many.
const FEW: u128 = 20;

/// How far the causes can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// Everything that they rest on was captured, and every sign says the same.
    High,
    /// Something was not: a beginning, some bytes, or up to a third of the time is not explained or rests on one sign.
    Medium,
    /// More than a third of the time is not explained, or more than 2 % of the bytes are missing.
    Low,
}

impl Confidence {
    /// Of a connection with these `sides`, whose time was `spent` like this.
    #[must_use]
    pub fn of(conn: &Conn, sides: &[&Side; 2], spent: &Spent) -> Self {
        if conn.key.protocol != TCP {
            return Self::Medium;
        }
        let (bytes, missing) = sides.iter().fold((0, 0), |(bytes, missing), side| {
            (bytes + side.unique_bytes, missing + side.missing_bytes)
        });
        // In 128 bits: a clock that was set meanwhile makes a connection of fifty years.
        let wide = u128::from;
        let whole: u128 = spent.iter().map(|&part| wide(part)).sum();
        let (unknown, missing, bytes) = (wide(spent[on::UNKNOWN]), wide(missing), wide(bytes));
        let doubtful = [0, 1].map(|end| 1000 * u128::from(conn.rare(end).doubtful));
        // Numbers of packets are one sign, which no other supports.
        let inferred = conn.losses().map_or(0, |losses| losses.inferred);
        let weak = unknown + doubtful.iter().sum::<u128>() + wide(inferred);
        let stepped = conn.backwards;
        let begun = conn.flags[0] & conn.flags[1] & flag::SYN != 0;
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
    /// How much of the time may be of another of the causes between the ends, as this point sees it: on a path where
    /// packets overtake each other, or of systems without time stamps, its length, its rate and the buffers look
    /// alike; and behind losses, length and rate do, as far as these cost time.
    fn unsettled(&self, spent: &Spent) -> u64 {
        let (latency, bandwidth) = (spent[on::LATENCY], spent[on::BANDWIDTH]);
        let buffers: u64 = spent[on::RECEIVE_BUFFER..on::LATENCY].iter().sum();
        let streams = self.paths.iter().any(|path| path.view.is_some());
        if self.find_reordering_time() > 0 || streams && self.queues.is_none() {
            latency.min(bandwidth) + (latency + bandwidth).min(buffers)
        } else {
            // Whether a queue that overflowed lost the packets, or chance, one point does not always see.
            (latency + bandwidth).min(spent[on::RECOVERY])
        }
    }
}
