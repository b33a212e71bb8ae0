//! Add connections up per server (address and port) and per client (address), for `--by endpoint`.

use crate::connection::conn::Conn;
use crate::connection::hist::bucket_range;
use crate::connection::latency::seconds;
use crate::connection::latency::Latency;
use crate::connection::pages;
use crate::connection::spent::on;
use crate::results::figures::Causes;
use crate::results::side::{Response, Side};
use crate::results::summary::ConnectionSummary;
use crate::wire::host::Host;
use crate::wire::packet::{AddrWords, Family};
use ahash::RandomState;
use hashbrown::hash_table::{Entry, HashTable};
use serde::Serialize;
use std::cmp::Ordering;

/// Maximum number of endpoints, and of bytes for their histograms; all further endpoints are added up as one.
const MAX_ENDPOINTS: usize = 65_536;
/// With this many endpoints, room for the maximum number is allocated.
const MANY: usize = 2048;
const MAX_HEAP: usize = 24 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Role {
    Client,
    Server,
}

/// Family and words of the address, the server's port, role, protocol.
type EndpointKey = (Family, AddrWords, Option<u16>, Role, &'static str);

struct KeyedSums {
    key: EndpointKey,
    host: Host,
    sums: Sums,
}

impl KeyedSums {
    /// Order by the time that others waited for the endpoint, longest first, then by the time spent responding, then by
    /// address.
    fn order(&self, other: &Self) -> Ordering {
        let own = |one: &Self| (one.sums.own, one.sums.latency.sum);
        let time = own(other).cmp(&own(self));
        let rest = |one: &Self| (one.key.2, one.key.3, one.key.4);
        time.then_with(|| (&self.host, rest(self)).cmp(&(&other.host, rest(other))))
    }
}

#[derive(Default)]
struct Sums {
    connections: u64,
    duration: u64,
    packets: u64,
    wire_bytes: u64,
    payload_bytes: u64,
    unique_bytes: u64,
    retransmitted_bytes: u64,
    retransmissions: u64,
    out_of_order: u64,
    missing_bytes: u64,
    zero_windows: u64,
    resets: u64,
    latency: Latency,
    own: u64,
    longest: u64,
}

/// The sums of all endpoints so far.
#[derive(Default)]
pub struct Endpoints {
    hasher: RandomState,
    /// Positions in `all`.
    by_key: HashTable<u32>,
    all: Vec<KeyedSums>,
    others: Sums,
    heap: usize,
    /// Total duration of all connections captured in both directions, and the time in it that clients and servers took
    /// to respond, in nanoseconds.
    pub time: [u64; 3],
    /// That total duration by cause.
    pub causes: Causes,
}

/// One endpoint's row.
#[derive(Clone, Debug, Serialize)]
pub struct Endpoint {
    /// Address, or `others` for the sum of all endpoints beyond the limit.
    pub address: String,
    /// Port of a server.
    pub port: Option<u16>,
    role: Option<Role>,
    /// `tcp` or `udp`.
    pub protocol: Option<&'static str>,
    /// Number of connections in which it took part.
    pub connections: u64,
    /// Sum of the durations of its connections.
    pub time_s: f64,
    packets: u64,
    wire_bytes: u64,
    payload_bytes: u64,
    unique_bytes: u64,
    retransmitted_bytes: u64,
    retransmissions: u64,
    out_of_order: u64,
    missing_bytes: u64,
    zero_windows: u64,
    resets: u64,
    /// Time attributed to its program.
    pub own_s: f64,
    /// The longest uninterrupted wait for its program; 0 if there was none.
    pub longest_wait_s: f64,
    /// Its response latency in all connections.
    pub response: Response,
    /// (lower end in seconds, upper end, count) of every non-empty bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Vec<(f64, f64, u32)>>,
}

/// Add without overflow: if a clock is set while a connection is open, the connection may seem to last fifty years, and
/// the sum has room for only a dozen of these.
fn add(sum: &mut u64, nanos: u64) {
    *sum = sum.saturating_add(nanos);
}

impl Endpoints {
    /// Add a finished connection.
    pub fn add(&mut self, conn: &Conn, client: usize, summary: &ConnectionSummary) {
        let sides = [
            (&summary.client, client, Role::Client),
            (&summary.server, 1 - client, Role::Server),
        ];
        // A single direction shows no responses, so it is not evidence about either end.
        let both = summary.client.packets > 0 && summary.server.packets > 0;
        if both {
            add(&mut self.time[0], summary.duration_ns);
        }
        self.causes += summary.causes;
        let spent = summary.spent;
        let [one, other] = [0, 1].map(|end| conn.sent[end].latency.sum);
        let responses = one.saturating_add(other);
        for (side, which, role) in sides {
            let latency = &conn.sent[which].latency;
            if responses <= summary.duration_ns {
                add(
                    &mut self.time[1 + usize::from(role == Role::Server)],
                    latency.sum,
                );
            }
            let port = (role == Role::Server).then_some(side.port);
            let key = (
                conn.key.family,
                conn.key.addr[which],
                port,
                role,
                summary.protocol,
            );
            let own = on::APPLICATION + which;
            // This is exact if no other wait of the connection was longer.
            let longest = match conn.account.longest {
                wait if wait.cause() == Some(own) => wait.nanos(),
                _ => conn.own[which].nanos(),
            };
            let longest = spent.map_or(0, |_| longest);
            let sums = self.sums(key, &side.address);
            add(&mut sums.own, spent.map_or(0, |spent| spent[own]));
            sums.longest = sums.longest.max(longest);
            self.heap += sums.add(side, latency, summary.duration_ns);
        }
    }

    fn sums(&mut self, key: EndpointKey, host: &Host) -> &mut Sums {
        let full = self.all.len() >= MAX_ENDPOINTS || self.heap > MAX_HEAP;
        let (all, hasher) = (&mut self.all, &self.hasher);
        let hash = |key: &EndpointKey| hasher.hash_one((key.1, key.2, key.3));
        let found = self.by_key.entry(
            hash(&key),
            |&at| all[at as usize].key == key,
            |&at| hash(&all[at as usize].key),
        );
        let at = match found {
            Entry::Occupied(entry) => *entry.get() as usize,
            Entry::Vacant(_) if full => return &mut self.others,
            Entry::Vacant(entry) => {
                if all.len() == MANY {
                    let few = std::mem::replace(all, pages::allocate_on_huge_pages(MAX_ENDPOINTS));
                    all.extend(few);
                }
                entry.insert(all.len() as u32);
                all.push(KeyedSums {
                    key,
                    host: host.clone(),
                    sums: Sums::default(),
                });
                all.len() - 1
            }
        };
        &mut self.all[at].sums
    }

    /// Return at most `limit` rows, ordered by the time that others waited for the endpoint, longest first.
    #[must_use]
    pub fn rows(&self, histograms: bool, limit: Option<usize>) -> Vec<Endpoint> {
        let limit = limit.unwrap_or(usize::MAX);
        let mut sorted: Vec<_> = self.all.iter().collect();
        if limit < sorted.len() {
            sorted.select_nth_unstable_by(limit, |a, b| a.order(b));
            sorted.truncate(limit);
        }
        sorted.sort_unstable_by(|a, b| a.order(b));
        let mut rows: Vec<_> = sorted
            .into_iter()
            .map(|KeyedSums { key, host, sums }| Endpoint {
                port: key.2,
                role: Some(key.3),
                protocol: Some(key.4),
                ..sums.row(host.to_string(), histograms)
            })
            .collect();
        if self.others.connections > 0 && rows.len() < limit {
            rows.push(self.others.row("others".to_owned(), histograms));
        }
        rows
    }
}

impl Sums {
    fn add(&mut self, side: &Side, latency: &Latency, duration: u64) -> usize {
        self.connections += 1;
        add(&mut self.duration, duration);
        self.packets += side.packets;
        self.wire_bytes += side.wire_bytes;
        self.payload_bytes += side.payload_bytes;
        self.unique_bytes += side.unique_bytes;
        self.retransmitted_bytes += side.retransmitted_bytes;
        self.retransmissions += u64::from(side.retransmissions);
        self.out_of_order += u64::from(side.out_of_order);
        self.missing_bytes += side.missing_bytes;
        self.zero_windows += u64::from(side.zero_windows);
        self.resets += u64::from(side.resets);
        self.latency.merge(latency)
    }

    fn row(&self, address: String, histogram: bool) -> Endpoint {
        let buckets = || {
            let range = |bucket| {
                let (low, width) = bucket_range(bucket);
                (seconds(low), seconds(low.saturating_add(width)))
            };
            self.latency
                .hist
                .buckets()
                .into_iter()
                .map(|(b, count)| (range(b).0, range(b).1, count))
                .collect()
        };
        Endpoint {
            address,
            port: None,
            role: None,
            protocol: None,
            connections: self.connections,
            time_s: seconds(self.duration),
            packets: self.packets,
            wire_bytes: self.wire_bytes,
            payload_bytes: self.payload_bytes,
            unique_bytes: self.unique_bytes,
            retransmitted_bytes: self.retransmitted_bytes,
            retransmissions: self.retransmissions,
            out_of_order: self.out_of_order,
            missing_bytes: self.missing_bytes,
            zero_windows: self.zero_windows,
            resets: self.resets,
            own_s: seconds(self.own),
            longest_wait_s: seconds(self.longest),
            response: Response::new(&self.latency, self.duration, true),
            histogram: histogram.then(buckets),
        }
    }
}
