//! Parse the Info column of a packet list, and its CSV.

use crate::wire::packet::flag;

/// The relevant contents of the Info column.
#[derive(Default)]
pub struct InfoColumn<'t> {
    /// Source and destination as written: numbers or service names.
    pub ports: Option<(&'t str, &'t str)>,
    /// Whether TCP flags are shown.
    pub tcp: bool,
    /// The flags (see [`flag`]).
    pub flags: u8,
    /// Relative sequence number.
    pub seq: Option<u32>,
    /// Relative acknowledgement.
    pub ack: u32,
    /// Window, at most 65,535.
    pub window: u16,
    /// Payload bytes.
    pub len: Option<u32>,
    /// Maximum segment size.
    pub mss: u16,
}

impl<'t> InfoColumn<'t> {
    /// Parse a cell of the column; any part may be missing.
    #[must_use]
    pub fn parse(info: &'t str) -> Self {
        let mut out = Self {
            window: u16::MAX,
            ..Self::default()
        };
        let mut rest = info.trim_start();
        // Remarks such as "[TCP Retransmission] " come first.
        while let Some(end) = rest.strip_prefix('[').and_then(|r| r.find(']')) {
            rest = rest[end + 2..].trim_start();
        }
        if let Some(old) = rest.strip_prefix("Source port: ") {
            if let Some((from, to)) = old.split_once("Destination port: ") {
                out.ports = Some((
                    extract_port(from),
                    extract_port(to.split("  ").next().unwrap_or(to)),
                ));
            }
            return out;
        }
        let mut words = rest.split_whitespace();
        let (Some(from), Some(arrow), Some(to)) = (words.next(), words.next(), words.next()) else {
            return out;
        };
        if !["→", ">", "->", "\u{2192}"].contains(&arrow) {
            return out;
        }
        out.ports = Some((extract_port(from), extract_port(to)));
        if let Some((flags, _)) = rest.split_once('[').and_then(|(_, r)| r.split_once(']')) {
            for name in flags.split(',') {
                out.flags |= match name.trim() {
                    "FIN" => flag::FIN,
                    "SYN" => flag::SYN,
                    "RST" => flag::RST,
                    "ACK" => flag::ACK,
                    "<None>" | "PSH" | "URG" | "ECE" | "ECN" | "CWR" | "NS" | "AE" | "Reserved" => {
                        0
                    }
                    _ => continue,
                };
                out.tcp = true;
            }
        }
        for word in words {
            let Some((name, value)) = word.split_once('=') else {
                continue;
            };
            let number = value.parse::<u32>().ok();
            match name {
                "Seq" => out.seq = number,
                "Ack" => out.ack = number.unwrap_or(0),
                "Win" => out.window = number.unwrap_or(0).min(65_535) as u16,
                "Len" => out.len = out.len.or(number),
                "MSS" => out.mss = number.unwrap_or(0).min(65_535) as u16,
                _ => {}
            }
        }
        out
    }
}

/// Return the number in `http(80)` or `http (80)`, as some versions write ports, or the text itself.
fn extract_port(text: &str) -> &str {
    let text = text.trim();
    text.split_once('(')
        .map_or(text, |(_, number)| number.trim_end_matches(')'))
}

/// Split a line of CSV into fields; return false if a quoted field does not end.
pub fn split_csv_line(line: &str, fields: &mut Vec<String>) -> bool {
    fields.clear();
    let mut chars = line.chars().peekable();
    loop {
        let mut field = String::new();
        let quoted = chars.next_if_eq(&'"').is_some();
        if quoted {
            loop {
                match chars.next() {
                    Some('"') if chars.next_if_eq(&'"').is_some() => field.push('"'),
                    Some('"') => break,
                    Some(c) => field.push(c),
                    None => return false,
                }
            }
        }
        loop {
            match chars.next() {
                Some(',') => break,
                Some(c) => field.push(c),
                None => {
                    fields.push(field);
                    return true;
                }
            }
        }
        fields.push(field);
    }
}
