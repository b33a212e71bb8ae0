//! Read the packet list that Wireshark exports as CSV: one row per packet, with ports and lengths in the Info column.
//!
//! Rows of higher protocols (`GET /file HTTP/1.1`) show neither ports nor length: they are assigned to the connection
//! that those two hosts used last, and their payload is the frame's length less that connection's headers. Such rows
//! are counted as inferred.

use crate::wire::fault::Fault;
use crate::wire::info::{split_csv_line, InfoColumn};
use crate::wire::input::Source;
use crate::wire::message::Message;
use crate::wire::packet::{
    flag, AddrWords, Direction, Family, FlowKey, Options, Segment, TCP, UDP,
};
use crate::wire::services::Services;
use crate::wire::wiretime;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// How many rows are examined to recognise what the time column shows.
const LOOKED_AT: usize = 40;
const MAX_LINE: usize = 64 * 1024;
const MAX_NAMES: usize = 1 << 20;
/// Protocols of rows without ports that cannot belong to a TCP connection.
const NOT_TCP: [&str; 17] = [
    "arp", "icmp", "icmpv6", "igmp", "igmpv2", "igmpv3", "dns", "mdns", "dhcp", "bootp", "dhcpv6",
    "ntp", "ssdp", "nbns", "llmnr", "tftp", "quic",
];

/// Receiver of rows.
pub trait RowSink {
    /// Take one segment.
    fn row(&mut self, segment: Segment, inferred: bool);
    /// Take a row that is part of no flow, with the length of its frame.
    fn take_non_flow_row(&mut self, ts: i64, wire_len: u32, unnamed_port: bool);
    /// Return the number of a host's name.
    fn name(&mut self, name: &str) -> Option<u64>;
}

/// Positions of the columns.
struct Columns {
    /// Whether the time column shows the time since the previous row.
    delta: bool,
    time: usize,
    source: usize,
    destination: usize,
    length: Option<usize>,
    protocol: Option<usize>,
    info: Option<usize>,
    ports: Option<(usize, usize)>,
}

impl Columns {
    fn find(header: &[String]) -> Option<Self> {
        let names: Vec<String> = header
            .iter()
            .map(|h| {
                h.trim_start_matches('\u{feff}')
                    .trim()
                    .to_lowercase()
                    .replace("_ws.col.", "")
            })
            .collect();
        let find = |wanted: &[&str]| {
            names
                .iter()
                .position(|name| wanted.contains(&name.as_str()))
        };
        let source_port = find(&[
            "source port",
            "src port",
            "tcp.srcport",
            "srcport",
            "unres_src_port",
            "res_src_port",
        ]);
        let destination_port = find(&[
            "destination port",
            "dest port",
            "dst port",
            "tcp.dstport",
            "dstport",
            "unres_dst_port",
            "res_dst_port",
        ]);
        let delta = find(&[
            "delta time",
            "delta time displayed",
            "delta",
            "frame.time_delta",
            "frame.time_delta_displayed",
            "time delta from previous captured frame",
            "time delta from previous displayed frame",
            "time since previous captured packet",
        ]);
        let time = find(&[
            "time",
            "cls_time",
            "rel_time",
            "abs_time",
            "frame.time_epoch",
            "frame.time_relative",
            "epoch time",
        ]);
        Some(Self {
            delta: time.is_none(),
            time: time.or(delta)?,
            source: find(&["source", "def_src", "src", "ip.src", "source address"])?,
            destination: find(&[
                "destination",
                "def_dst",
                "dst",
                "ip.dst",
                "destination address",
            ])?,
            length: find(&[
                "length",
                "packet_length",
                "frame.len",
                "packet length (bytes)",
            ]),
            protocol: find(&["protocol"]),
            info: find(&["info"]),
            ports: source_port.zip(destination_port),
        })
    }
}

/// Whether the first line looks like the header of a packet list.
#[must_use]
pub fn matches(head: &[u8]) -> bool {
    let line = head.split(|&b| b == b'\n').next().unwrap_or(&[]);
    let Ok(line) = std::str::from_utf8(&line[..line.len().min(4096)]) else {
        return false;
    };
    let mut fields = Vec::new();
    line.contains(',')
        && split_csv_line(line.trim_end(), &mut fields)
        && Columns::find(&fields).is_some()
}

/// Read rows until the end of the input or a fault.
pub fn read(
    source: &mut Source<'_>,
    services: &Services,
    sink: &mut impl RowSink,
) -> Result<(), Fault> {
    let mut list = List {
        services,
        columns: None,
        last: HashMap::new(),
        overhead: HashMap::new(),
        line: 0,
        now: 0,
    };
    let mut fields = Vec::new();
    let mut wanted = 1;
    loop {
        let offset = source.offset();
        let whole = source.need(wanted).map_err(|e| Fault::io(offset, &e))?;
        let data = source.data();
        if data.is_empty() {
            return Ok(());
        }
        let end = match data.iter().position(|&b| b == b'\n') {
            Some(end) => end,
            None if !whole => data.len(),
            None if data.len() >= MAX_LINE => {
                return Err(Fault::new(
                    offset,
                    format!("line {} is longer than {MAX_LINE} bytes", list.line + 1),
                ));
            }
            None => {
                wanted = data.len() + 1;
                continue;
            }
        };
        list.line += 1;
        let used = (end + 1).min(data.len());
        let heading = list.columns.is_none();
        let text = String::from_utf8_lossy(&data[..end]);
        let result = list.line(text.trim_end_matches('\r'), &mut fields, sink);
        result.map_err(|reason| Fault::new(offset, format!("line {}: {reason}", list.line)))?;
        source.consume(used);
        if heading {
            list.recognise_deltas(source.data());
        }
        wanted = 1;
    }
}

type Pair = (Family, AddrWords, AddrWords);

struct List<'s> {
    services: &'s Services,
    columns: Option<Columns>,
    /// Ports and protocol of the last row of each pair of hosts.
    last: HashMap<Pair, (u16, u16, u8)>,
    /// Length of the headers in the last frame of each pair of hosts.
    overhead: HashMap<Pair, u32>,
    line: u64,
    /// The sum of the times between rows so far.
    now: i64,
}

impl List<'_> {
    /// Recognise a column "Time" that shows times since the previous packet: the first is zero, and later ones rise and
    /// fall, as no clock does.
    fn recognise_deltas(&mut self, rows: &[u8]) {
        let Some(columns) = &mut self.columns else {
            return;
        };
        let mut fields = Vec::new();
        let text = String::from_utf8_lossy(rows);
        let times: Vec<i64> = text
            .lines()
            .take(LOOKED_AT)
            .filter_map(|line| {
                split_csv_line(line, &mut fields)
                    .then(|| wiretime::parse(fields.get(columns.time)?))?
            })
            .collect();
        let falls = times.windows(2).filter(|pair| pair[1] < pair[0]).count();
        columns.delta |= times.first() == Some(&0) && falls >= 2 && falls * 8 >= times.len();
    }

    #[allow(clippy::too_many_lines, reason = "one column after the other")]
    fn line(
        &mut self,
        text: &str,
        fields: &mut Vec<String>,
        sink: &mut impl RowSink,
    ) -> Result<(), String> {
        if text.trim().is_empty() {
            return Ok(());
        }
        if !split_csv_line(text, fields) {
            return Err("a quoted field does not end".into());
        }
        let Some(columns) = &self.columns else {
            let found = Columns::find(fields)
                .ok_or("the columns Time, Source and Destination are needed")?;
            if found.info.is_none() {
                return Err(
                    "there is no column Info, which shows sequence numbers, flags and lengths: export the packet list \
                     as Wireshark shows it, or analyse the capture itself"
                        .into(),
                );
            }
            self.columns = Some(found);
            return Ok(());
        };
        let field = |i: usize| fields.get(i).map(String::as_str);
        let missing = |what: &str| format!("the column {what} is missing");
        let time = field(columns.time).ok_or_else(|| missing("Time"))?;
        let mut ts = wiretime::parse(time).ok_or_else(|| format!("{time:?} is not a time"))?;
        if columns.delta {
            self.now = self
                .now
                .saturating_add(ts)
                .clamp(i64::MIN / 2, i64::MAX / 2);
            ts = self.now;
        }
        let source = field(columns.source).ok_or_else(|| missing("Source"))?;
        let destination = field(columns.destination).ok_or_else(|| missing("Destination"))?;
        let length = columns.length.and_then(field);
        let wire_len = match length {
            Some(text) => text
                .trim()
                .parse()
                .map_err(|_| format!("{text:?} is not a length"))?,
            None => 0,
        };
        let info = columns.info.and_then(field).unwrap_or("");
        let protocol = columns
            .protocol
            .and_then(field)
            .unwrap_or("")
            .to_lowercase();
        let mut detail = InfoColumn::parse(info);
        if let Some((from, to)) = columns.ports {
            if let (Some(from), Some(to)) = (field(from), field(to)) {
                if !from.is_empty() && !to.is_empty() {
                    detail.ports = Some((from, to));
                }
            }
        }
        let Some((family, src, dst)) = addresses(source, destination, sink) else {
            sink.take_non_flow_row(ts, wire_len, false);
            return Ok(());
        };
        let pair = (family, src, dst);
        let (ports, inferred) = match detail.ports {
            Some((from, to)) => {
                let (Some(from), Some(to)) = (self.services.port(from), self.services.port(to))
                else {
                    sink.take_non_flow_row(ts, wire_len, true);
                    return Ok(());
                };
                let udp = protocol == "udp" || !detail.tcp && detail.len.is_some();
                (
                    Some((from, to, if udp { UDP } else { TCP })),
                    detail.len.is_none(),
                )
            }
            None if NOT_TCP.contains(&protocol.as_str()) => (None, true),
            None => (self.last.get(&pair).copied(), true),
        };
        let Some((from, to, protocol)) = ports else {
            sink.take_non_flow_row(ts, wire_len, false);
            return Ok(());
        };
        if self.last.len() < MAX_NAMES {
            self.last.insert(pair, (from, to, protocol));
            self.last.insert((family, dst, src), (to, from, protocol));
        }
        let payload = payload(&mut self.overhead, pair, &detail, wire_len);
        let (key, end) = FlowKey::new(family, protocol, (src, from), (dst, to));
        sink.row(
            Segment {
                key,
                from: end,
                flags: if detail.tcp { detail.flags } else { flag::ACK },
                window: detail.window,
                id: 0,
                checksum: 0,
                options: Options {
                    mss: detail.mss,
                    ..Options::default()
                },
                tunnels: 0,
                direction: Direction::Unknown,
                frame: 0,
                seq_known: detail.seq.is_some(),
                said_again: false,
                ts,
                wire_len,
                payload,
                payload_at: 0,
                message: Message::NOTHING,
                interface: 0,
                seq: detail.seq.unwrap_or(0),
                ack: detail.ack,
            },
            inferred,
        );
        Ok(())
    }
}

fn addresses(source: &str, destination: &str, sink: &mut impl RowSink) -> Option<Pair> {
    let words = |text: &str| match text.parse().ok()? {
        IpAddr::V4(ip) => Some((Family::V4, [u64::from(u32::from(ip)), 0])),
        IpAddr::V6(ip) => Some((
            Family::V6,
            [(u128::from(ip) >> 64) as u64, u128::from(ip) as u64],
        )),
    };
    match (words(source), words(destination)) {
        (Some((a, src)), Some((b, dst))) if a == b => Some((a, src, dst)),
        _ if source.is_empty() || destination.is_empty() => None,
        _ => Some((
            Family::Name,
            [sink.name(source)?, 0],
            [sink.name(destination)?, 0],
        )),
    }
}

/// Return the payload length of a row: as shown, or the frame's length less the headers that the pair's last frame had.
fn payload(
    overhead: &mut HashMap<Pair, u32>,
    pair: Pair,
    detail: &InfoColumn<'_>,
    wire_len: u32,
) -> u32 {
    let Some(len) = detail.len else {
        return overhead
            .get(&pair)
            .map_or(0, |&headers| wire_len.saturating_sub(headers));
    };
    if detail.flags & flag::SYN == 0 && overhead.len() < MAX_NAMES {
        let headers = wire_len.saturating_sub(len);
        let (family, src, dst) = pair;
        overhead.insert(pair, headers);
        overhead.entry((family, dst, src)).or_insert(headers);
    }
    len
}

/// Numbers of host names.
#[derive(Default)]
pub struct Names {
    numbers: HashMap<Arc<str>, u64>,
}

impl Names {
    /// Return the number of `name`, which is added to `list` if it is new; `None` if there are too many.
    pub fn number(&mut self, name: &str, list: &mut Vec<Arc<str>>) -> Option<u64> {
        if let Some(&number) = self.numbers.get(name) {
            return Some(number);
        }
        if list.len() >= MAX_NAMES {
            return None;
        }
        let name: Arc<str> = name.chars().take(255).collect::<String>().into();
        let number = list.len() as u64;
        list.push(name.clone());
        self.numbers.insert(name, number);
        Some(number)
    }
}
