//! Count what limits the reliability of a capture while it is read, and report it afterwards.

use crate::connection::latency::seconds;
use crate::results::summary::{Captured, ConnectionSummary, Mark, Point};
use crate::wire::link::SkipReason;
use crate::wire::packet::NO_TIME;
use serde::Serialize;

/// Counters of everything that makes the figures of a capture inexact.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CaptureQuality {
    /// Number of packets read.
    pub packets: u64,
    /// Bytes on the wire of all packets.
    pub wire_bytes: u64,
    /// Packets that are part of a flow and match the filter.
    pub counted: u64,
    /// Packets of flows that the filter excludes.
    pub filtered: u64,
    /// Packets shortened by the snapshot length.
    pub cut: u64,
    /// Packets shortened so much that ports or flags are missing.
    pub cut_headers: u64,
    /// SYNs shortened so much that options are missing.
    pub cut_options: u64,
    /// Packets that the capturing program or kernel reports as lost.
    pub dropped: u64,
    /// Later IP fragments, which have no ports.
    pub fragments: u64,
    /// Packets whose length fields contradict each other.
    pub malformed: u64,
    /// Packets without IP, or with neither TCP nor UDP.
    pub other: u64,
    /// Packets in tunnels that cannot be decoded.
    pub opaque: u64,
    /// Packets that were found inside tunnels.
    pub tunnelled: u64,
    /// Packets of a link type that cannot be read.
    pub unknown_link: u64,
    /// Packets without a time stamp.
    pub untimed: u64,
    /// Time stamps smaller than the previous one of the same interface.
    pub clock_backwards: u64,
    /// Largest of these steps in nanoseconds.
    pub clock_backwards_ns: u64,
    /// Connections with packets larger than the peer's maximum segment size.
    pub offload: u64,
    /// Size of the largest frame.
    pub largest_frame: u32,
    /// Bytes acknowledged but not captured.
    pub missing_bytes: u64,
    /// Payload bytes of all connections, each counted once.
    pub unique_bytes: u64,
    /// Total duration of all TCP connections in nanoseconds.
    pub tcp_ns: u64,
    /// The part of `tcp_ns` in connections that began before the capture.
    pub begun_before_ns: u64,
    /// The part of `tcp_ns` in connections of which the capture contains nearly every byte twice.
    pub merged_ns: u64,
    /// Connections whose beginning or end is missing.
    pub half_captured: u64,
    /// Connections of which only one direction was captured.
    pub one_sided: u64,
    /// Connections evicted while open, to keep within the memory limit.
    pub evicted: u64,
    /// Connections whose unique bytes are not exact.
    pub inexact: u64,
    /// Packets captured more than once, and counted once.
    pub copies: u64,
    /// Connections of which the capture contains nearly every byte twice, far apart.
    pub merged: u64,
    /// Files read as one trace that begin before the previous one ends.
    pub overlapping: u64,
    /// Connections captured near the client.
    pub near_client: u64,
    /// Connections captured near the server.
    pub near_server: u64,
    /// Rows of a packet list whose ports or lengths were inferred from earlier rows.
    pub inferred: u64,
    /// Rows whose port is a name that is not in the services file.
    pub unnamed_ports: u64,
}

/// One remark for the user.
#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    /// The name of its counter.
    pub kind: &'static str,
    /// The counter's value.
    pub count: u64,
    /// The rest of a sentence that begins with the count: it states what was found and what that means for the figures.
    pub text: String,
}

impl CaptureQuality {
    /// Add what another part of the pipeline has counted.
    pub fn absorb(&mut self, other: &CaptureQuality) {
        self.packets += other.packets;
        self.wire_bytes += other.wire_bytes;
        self.counted += other.counted;
        self.filtered += other.filtered;
        self.cut += other.cut;
        self.cut_headers += other.cut_headers;
        self.cut_options += other.cut_options;
        self.dropped += other.dropped;
        self.fragments += other.fragments;
        self.malformed += other.malformed;
        self.other += other.other;
        self.opaque += other.opaque;
        self.tunnelled += other.tunnelled;
        self.unknown_link += other.unknown_link;
        self.untimed += other.untimed;
        self.clock_backwards += other.clock_backwards;
        self.offload += other.offload;
        self.missing_bytes += other.missing_bytes;
        self.unique_bytes += other.unique_bytes;
        self.tcp_ns = self.tcp_ns.saturating_add(other.tcp_ns);
        self.begun_before_ns = self.begun_before_ns.saturating_add(other.begun_before_ns);
        self.merged_ns = self.merged_ns.saturating_add(other.merged_ns);
        self.half_captured += other.half_captured;
        self.one_sided += other.one_sided;
        self.evicted += other.evicted;
        self.inexact += other.inexact;
        self.copies += other.copies;
        self.merged += other.merged;
        self.overlapping += other.overlapping;
        self.near_client += other.near_client;
        self.near_server += other.near_server;
        self.inferred += other.inferred;
        self.unnamed_ports += other.unnamed_ports;
        self.clock_backwards_ns = self.clock_backwards_ns.max(other.clock_backwards_ns);
        self.largest_frame = self.largest_frame.max(other.largest_frame);
        // Only the connections show which packets are copies.
        self.counted -= self.copies.min(self.counted);
    }

    /// Count a packet that is part of no flow.
    pub fn count_skipped(&mut self, reason: SkipReason) {
        match reason {
            SkipReason::NotIp | SkipReason::OtherProtocol => self.other += 1,
            SkipReason::Opaque => self.opaque += 1,
            SkipReason::Fragment => self.fragments += 1,
            SkipReason::Cut => self.cut_headers += 1,
            SkipReason::Malformed => self.malformed += 1,
            SkipReason::UnknownLink => self.unknown_link += 1,
        }
    }

    /// Compare a time stamp with the interface's last one.
    #[inline]
    pub fn clock(&mut self, last: &mut i64, now: i64) {
        if now < *last && *last != NO_TIME {
            self.clock_backwards += 1;
            self.clock_backwards_ns = self.clock_backwards_ns.max(last.abs_diff(now));
        }
        *last = now;
    }

    /// Count a finished connection.
    pub fn connection(&mut self, summary: &ConnectionSummary) {
        let copies = u64::from(summary.client.copies) + u64::from(summary.server.copies);
        self.copies += copies;
        self.missing_bytes += summary.client.missing_bytes + summary.server.missing_bytes;
        self.unique_bytes += summary.client.unique_bytes + summary.server.unique_bytes;
        self.add_duration(summary);
        let half = !matches!(summary.captured, Captured::Whole | Captured::Flow);
        self.half_captured += u64::from(half);
        let marked = |mark| u64::from(summary.marks.contains(&mark));
        self.one_sided += marked(Mark::OneSided);
        self.evicted += marked(Mark::Evicted);
        self.inexact += marked(Mark::Inexact);
        self.offload += marked(Mark::Offload);
        self.merged += marked(Mark::Merged);
        self.near_client += u64::from(summary.capture_point == Point::Client);
        self.near_server += u64::from(summary.capture_point == Point::Server);
    }

    fn add_duration(&mut self, summary: &ConnectionSummary) {
        if summary.captured == Captured::Flow {
            return;
        }
        let lasted = summary.duration_ns;
        self.tcp_ns = self.tcp_ns.saturating_add(lasted);
        if matches!(summary.captured, Captured::NoStart | Captured::Middle) {
            self.begun_before_ns = self.begun_before_ns.saturating_add(lasted);
        }
        if summary.marks.contains(&Mark::Merged) {
            self.merged_ns = self.merged_ns.saturating_add(lasted);
        }
    }

    /// Return everything that limits the reliability, the most serious first.
    #[must_use]
    pub fn limits(&self) -> Vec<Limit> {
        let frame = self.largest_frame;
        let step = spell_limit(self.clock_backwards_ns);
        let all = [
            ("dropped", self.dropped, ("packet was", "packets were"), " lost by the capture, as the capture itself reports: latencies and counts do not include lost packets".to_owned()),
            ("missing_bytes", self.missing_bytes, ("byte was", "bytes were"), " acknowledged but not captured: the capture lost packets".to_owned()),
            ("cut_headers", self.cut_headers, ("packet is", "packets are"), " cut too short to show ports or flags, and not counted (capture with a snapshot length of at least 96)".to_owned()),
            ("cut_options", self.cut_options, ("SYN is", "SYNs are"), " cut before the options end: window scaling is unknown, and so is time in which a window may have been full (capture with a snapshot length of at least 96)".to_owned()),
            ("overlapping", self.overlapping, ("file begins", "files begin"), " before the previous one ends: --merge is for files that follow each other; a packet in two files is counted twice (analyse each file alone)".to_owned()),
            ("merged", self.merged, ("connection contains", "connections contain"), " nearly every byte twice, far apart: captures of two points were merged, so retransmissions and causes are unknown (analyse each capture alone)".to_owned()),
            ("evicted", self.evicted, ("connection was", "connections were"), " evicted while open to stay within the memory limit; later packets count as another connection (raise --memory)".to_owned()),
            ("inexact", self.inexact, ("connection has", "connections have"), " too many gaps at once: unique and retransmitted bytes are only bounds".to_owned()),
            ("clock_backwards", self.clock_backwards, ("time stamp is", "time stamps are"), format!(" smaller than the previous one, by up to {step}: negative gaps are left out")),
            ("copies", self.copies, ("packet was", "packets were"), " captured more than once (on several interfaces of the path): counted once, with the first time stamp".to_owned()),
            ("untimed", self.untimed, ("packet has", "packets have"), " no time stamp: counted at the time of the previous packet".to_owned()),
            ("fragments", self.fragments, ("IP fragment has", "IP fragments have"), " no ports: not counted".to_owned()),
            ("malformed", self.malformed, ("packet has contradictory length fields and is not counted", "packets have contradictory length fields and are not counted"), String::new()),
            ("unknown_link", self.unknown_link, ("packet has", "packets have"), " a link type that cannot be read".to_owned()),
            ("opaque", self.opaque, ("packet is", "packets are"), " in tunnels that cannot be decoded (ESP, L2TP, unknown kinds of GRE): not counted".to_owned()),
            ("tunnelled", self.tunnelled, ("packet was", "packets were"), " in tunnels: the packets inside are counted, sizes on the wire are those of whole frames".to_owned()),
            ("offload", self.offload, ("connection contains", "connections contain"), format!(" packets larger than the maximum segment size (largest frame {frame} bytes): with segmentation offload, one captured packet was several on the wire; packet counts and times within bursts are those of the sending machine")),
            ("half_captured", self.half_captured, ("connection was", "connections were"), " captured without beginning or end".to_owned()),
            ("one_sided", self.one_sided, ("connection was", "connections were"), " captured in one direction only: the response latency is unknown, and the time is not part of the shares".to_owned()),
            ("cut", self.cut, ("packet is", "packets are"), " shortened by the snapshot length; lengths are taken from the headers, so only the timing of requests and the comparison of datagrams are affected".to_owned()),
            ("inferred", self.inferred, ("row of the packet list does", "rows of the packet list do"), " not show ports or length, which were taken from earlier rows".to_owned()),
            ("unnamed_ports", self.unnamed_ports, ("row names", "rows name"), " a port that is not in /etc/services: not counted (export with transport name resolution off)".to_owned()),
            ("near_client", self.near_client, ("connection was", "connections were"), " captured on or near the client: the server's response includes the network's round trip".to_owned()),
            ("near_server", self.near_server, ("connection was", "connections were"), " captured on or near the server: the client's response includes the network's round trip".to_owned()),
        ];
        all.into_iter()
            .filter(|(_, count, _, _)| *count > 0)
            .map(|(kind, count, (one, many), rest)| {
                let begin = if count == 1 { one } else { many };
                Limit {
                    kind,
                    count,
                    text: format!("{begin}{rest}"),
                }
            })
            .collect()
    }
}

/// Format a duration with its unit.
fn spell_limit(nanos: u64) -> String {
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.3} µs", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", nanos as f64 / 1e6),
        _ => format!("{:.3} s", seconds(nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Return the limits of a capture whose counters are all `count`.
    fn list_limits(count: u64) -> Vec<Limit> {
        let mut truth = CaptureQuality::default();
        for counter in [
            &mut truth.cut,
            &mut truth.cut_headers,
            &mut truth.cut_options,
            &mut truth.dropped,
            &mut truth.fragments,
            &mut truth.malformed,
            &mut truth.opaque,
            &mut truth.tunnelled,
            &mut truth.unknown_link,
            &mut truth.untimed,
            &mut truth.clock_backwards,
            &mut truth.offload,
            &mut truth.missing_bytes,
            &mut truth.half_captured,
            &mut truth.one_sided,
            &mut truth.evicted,
            &mut truth.inexact,
            &mut truth.copies,
            &mut truth.merged,
            &mut truth.overlapping,
            &mut truth.near_client,
            &mut truth.near_server,
            &mut truth.inferred,
            &mut truth.unnamed_ports,
        ] {
            *counter = count;
        }
        truth.limits()
    }

    #[test]
    fn one_thing_is_said_in_the_singular() {
        let (one, two) = (list_limits(1), list_limits(2));
        assert_eq!(one.len(), 24);
        for (single, several) in one.iter().zip(&two) {
            let noun = |limit: &Limit| {
                let mut words = limit.text.split(' ');
                let first = words.next().unwrap_or_default().to_owned();
                if ["IP", "time"].contains(&first.as_str()) {
                    words.next().unwrap_or_default().to_owned()
                } else {
                    first
                }
            };
            assert_eq!(
                noun(several),
                format!("{}s", noun(single)),
                "{}",
                several.text
            );
            assert!(
                !["they ", "their ", " are not counted"]
                    .iter()
                    .any(|plural| single.text.contains(plural)),
                "{}",
                single.text
            );
        }
    }
}
