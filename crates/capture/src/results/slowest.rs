//! Choose the connections that waited longest, which are worth drawing.

use crate::results::summary::ConnectionSummary;
use crate::results::watch::MAX_WATCHED;
use crate::wire::host::Host;
use std::cmp::Reverse;

/// Maximum number of connections from which a reader can choose.
pub const MOST: usize = 8;

/// One of the slowest connections.
#[derive(Clone, Debug)]
pub struct SlowConnection {
    /// Number of packets in both directions.
    pub packets: u64,
    /// Nanoseconds in which either end owed something.
    pub waited: u64,
    /// Number in order of appearance.
    pub index: u64,
    /// Which end of the key is the client.
    pub end: usize,
    /// The end that opened the connection.
    pub client: (Host, u16),
    /// The server.
    pub server: (Host, u16),
    /// Time from the first packet to the last, in seconds.
    pub duration_s: f64,
}

impl SlowConnection {
    /// Return the key to sort by: the longest wait first, then the order of appearance.
    fn rank(&self) -> (Reverse<u64>, u64) {
        (Reverse(self.waited), self.index)
    }
}

/// The connections that waited longest, among all and among the first ones.
#[derive(Clone, Debug, Default)]
pub struct SlowestConnections {
    /// Of all connections.
    pub of_all: Vec<SlowConnection>,
    /// Among the first connections, which are watched unless others are requested.
    pub of_first: Vec<SlowConnection>,
}

impl SlowestConnections {
    /// Add a finished connection if it waited long enough; `end` of its key is the client.
    pub fn consider(&mut self, summary: &ConnectionSummary, end: usize) {
        keep(&mut self.of_all, summary, end);
        if summary.index < MAX_WATCHED {
            keep(&mut self.of_first, summary, end);
        }
    }
}

#[inline]
fn keep(list: &mut Vec<SlowConnection>, summary: &ConnectionSummary, end: usize) {
    let rank = (Reverse(summary.waited_ns), summary.index);
    if list.len() == MOST && list.last().is_some_and(|last| last.rank() < rank) {
        return;
    }
    let at = list.partition_point(|known| known.rank() < rank);
    let (client, server) = (&summary.client, &summary.server);
    list.truncate(MOST - 1);
    list.insert(
        at,
        SlowConnection {
            packets: summary.packets(),
            waited: summary.waited_ns,
            index: summary.index,
            end,
            client: (client.address.clone(), client.port),
            server: (server.address.clone(), server.port),
            duration_s: summary.duration_s,
        },
    );
}
