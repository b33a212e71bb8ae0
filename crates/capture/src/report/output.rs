//! Write the output formats: a JSON document, CSV, and the lines of the published `tcp-stats` script. All are written
//! as connections end.

use crate::application::exchange::Exchange;
use crate::application::served::Served;
use crate::connection::hist;
use crate::connection::latency::seconds;
use crate::engine::analysis::{Output, Report};
use crate::engine::front::Kind;
use crate::report::csv;
use crate::results::endpoint::Endpoint;
use crate::results::figures::Causes;
use crate::results::side::Side;
use crate::results::slowest::SlowConnection;
use crate::results::summary::ConnectionSummary;
use crate::results::watch::Series;
use crate::wire::fault::Fault;
use crate::wire::host::Host;
use crate::wire::services::Services;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::{self, Write};

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON document.
    Json,
    /// A header line, then one row per connection or endpoint.
    Csv,
    /// One line per TCP connection, as the published script prints it.
    TcpStats,
}

/// What each row describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A connection.
    Connection,
    /// An endpoint.
    Endpoint,
}

/// Options of the output.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The format.
    pub format: Format,
    /// What each row describes.
    pub by: By,
    /// If present, only this many rows are written: those of the connections that waited longest.
    pub top: Option<usize>,
    /// Whether the histograms of endpoints are included.
    pub histograms: bool,
}

/// Writes the results of all files; after an error of the output, nothing more is written.
pub struct Writer<W: Write> {
    out: W,
    options: Options,
    services: Services,
    file: String,
    files: usize,
    rows: usize,
    header: bool,
    line: Vec<u8>,
    /// The connections that waited longest so far, shortest wait first.
    longest: BinaryHeap<Reverse<(u64, Reverse<u64>)>>,
    kept: BTreeMap<u64, ConnectionSummary>,
    error: Option<io::Error>,
}

#[derive(Serialize)]
struct Shares {
    client: Option<f64>,
    server: Option<f64>,
    unknown: Option<f64>,
}

#[derive(Serialize)]
struct FaultDoc<'a> {
    offset: u64,
    reason: &'a str,
    hint: &'a str,
}

#[derive(Serialize)]
struct EndDoc {
    address: Host,
    port: u16,
}

#[derive(Serialize)]
struct SequenceDoc {
    connection: u64,
    client: EndDoc,
    server: EndDoc,
    packets: u64,
    duration_s: f64,
    stride: u32,
    points: Vec<crate::results::watch::SeriesPoint>,
    spans: Vec<crate::results::watch::Span>,
}

#[derive(Serialize)]
struct Tail<'a> {
    format: Option<&'static str>,
    compression: Option<&'static str>,
    connection_count: u64,
    start_ns: Option<i64>,
    shares: Shares,
    causes: Causes,
    relative_error: f64,
    counters: &'a crate::results::truth::CaptureQuality,
    limits: Vec<crate::results::truth::Limit>,
    endpoints: Vec<Endpoint>,
    exchanges: &'a [Exchange],
    fetches: &'a [crate::engine::analysis::Fetch],
    requests: &'a [Served],
    guilty: &'a [crate::results::longest_waits::Ended],
    sequence: Option<SequenceDoc>,
    sequences: Vec<SequenceDoc>,
    error: Option<FaultDoc<'a>>,
}

impl From<(SlowConnection, Series)> for SequenceDoc {
    fn from((chosen, series): (SlowConnection, Series)) -> Self {
        let end = |(address, port)| EndDoc { address, port };
        Self {
            connection: chosen.index,
            client: end(chosen.client),
            server: end(chosen.server),
            packets: chosen.packets,
            duration_s: chosen.duration_s,
            stride: series.stride.max(1),
            points: series.points,
            spans: series.spans,
        }
    }
}

impl<W: Write> Writer<W> {
    /// Create a writer that has written nothing yet.
    pub fn new(out: W, options: Options, services: Services) -> Self {
        let (longest, kept) = (BinaryHeap::new(), BTreeMap::new());
        let mut writer = Self {
            out,
            options,
            services,
            file: String::new(),
            files: 0,
            rows: 0,
            header: false,
            line: Vec::new(),
            longest,
            kept,
            error: None,
        };
        if options.format == Format::Json {
            writer.try_to(|w| write!(w.out, "{{\"schema\":\"guestmark-capture/2\",\"files\":["));
        }
        writer
    }

    /// Begin the results of `file`.
    pub fn begin(&mut self, file: &str) {
        file.clone_into(&mut self.file);
        self.rows = 0;
        self.files += 1;
        let first = self.files == 1;
        if self.options.format == Format::Json {
            self.try_to(|w| {
                write!(w.out, "{}{{\"file\":", if first { "" } else { "," })?;
                serde_json::to_writer(&mut w.out, &w.file)?;
                write!(w.out, ",\"connections\":[")
            });
        }
    }

    /// End the results of the file.
    pub fn end(
        &mut self,
        kind: Option<Kind>,
        report: &Report,
        fault: Option<&Fault>,
        sequences: Vec<(SlowConnection, Series)>,
    ) {
        for (_, summary) in std::mem::take(&mut self.kept) {
            self.write(&summary);
        }
        self.longest.clear();
        if self.options.format == Format::Json {
            let [all, client, server] = report.endpoints.time.map(seconds);
            let share = |part: f64| (all > 0.0).then(|| part / all);
            let endpoints = report
                .endpoints
                .rows(self.options.histograms, self.options.top);
            let mut sequences = sequences.into_iter().map(SequenceDoc::from);
            let tail = Tail {
                format: kind.map(|k| k.format),
                compression: kind.and_then(|k| k.compression.name()),
                connection_count: report.connections,
                start_ns: report.start_ns,
                shares: Shares {
                    client: share(client),
                    server: share(server),
                    unknown: share((all - client - server).max(0.0)),
                },
                causes: report.endpoints.causes,
                relative_error: hist::RELATIVE_ERROR,
                counters: &report.truth,
                limits: report.truth.limits(),
                endpoints,
                exchanges: &report.exchanges,
                fetches: &report.fetches,
                requests: &report.requests,
                guilty: &report.guilty,
                sequence: sequences.next(),
                sequences: sequences.collect(),
                error: fault.map(|f| FaultDoc {
                    offset: f.offset,
                    reason: &f.reason,
                    hint: f.hint,
                }),
            };
            self.try_to(|w| {
                let text = serde_json::to_string(&tail)?;
                // The document's fields continue those written by `begin`.
                write!(w.out, "],{}", text.trim_start_matches('{'))
            });
        } else if self.options.by == By::Endpoint && self.options.format == Format::Csv {
            for row in report.endpoints.rows(false, self.options.top) {
                self.try_to(|w| w.csv_row(&row));
            }
        }
    }

    /// Finish after the last file. Return the first error of writing, if any.
    pub fn finish(mut self) -> io::Result<()> {
        if self.options.format == Format::Json {
            self.try_to(|w| writeln!(w.out, "]}}"));
        }
        self.try_to(|w| w.out.flush());
        self.error.map_or(Ok(()), Err)
    }

    /// Whether writing has failed.
    pub fn is_broken(&self) -> bool {
        self.error.is_some()
    }

    fn try_to(&mut self, f: impl FnOnce(&mut Self) -> io::Result<()>) {
        if self.error.is_none() {
            self.error = f(self).err();
        }
    }

    fn write(&mut self, summary: &ConnectionSummary) {
        match self.options.format {
            Format::Json => self.try_to(|w| {
                let comma = if w.rows == 0 { "" } else { "," };
                w.rows += 1;
                writeln!(w.out, "{comma}")?;
                Ok(serde_json::to_writer(&mut w.out, summary)?)
            }),
            Format::Csv => self.try_to(|w| w.csv_row(summary)),
            Format::TcpStats => {
                if summary.protocol == "tcp" {
                    let line = tcp_stats(summary, &self.services);
                    self.try_to(|w| writeln!(w.out, "{line}"));
                }
            }
        }
    }

    fn csv_row(&mut self, row: &impl Serialize) -> io::Result<()> {
        if !std::mem::replace(&mut self.header, true) {
            let mut names = vec!["file".to_owned()];
            csv::collect_names("", &serde_json::to_value(row)?, &mut names);
            writeln!(self.out, "{}", names.join(","))?;
        }
        let json = serde_json::to_vec(row)?;
        self.line.clear();
        csv::append_cell(&self.file, &mut self.line);
        csv::append_cells(&json, &mut self.line);
        self.line.push(b'\n');
        self.out.write_all(&self.line)
    }
}

impl<W: Write> Output for Writer<W> {
    fn wants_percentiles(&self, waited: u64) -> bool {
        if self.options.by == By::Endpoint && self.options.format != Format::TcpStats {
            return false;
        }
        let shortest = || self.longest.peek().map_or(0, |Reverse((least, _))| *least);
        self.options
            .top
            .is_none_or(|top| self.longest.len() < top || waited > shortest())
    }

    fn connection(&mut self, summary: &ConnectionSummary) {
        if !self.wants_percentiles(summary.waited_ns) {
            return;
        }
        let Some(top) = self.options.top else {
            self.write(summary);
            return;
        };
        self.kept.insert(summary.index, summary.clone());
        self.longest
            .push(Reverse((summary.waited_ns, Reverse(summary.index))));
        if self.longest.len() > top {
            if let Some(Reverse((_, Reverse(index)))) = self.longest.pop() {
                self.kept.remove(&index);
            }
        }
    }
}

/// Return `server-client duration=… bytes_transferred=… [client: …] [server: …]`, with seconds to six decimals.
#[must_use]
pub fn tcp_stats(summary: &ConnectionSummary, services: &Services) -> String {
    let end = |side: &Side| match &side.address {
        Host::Ip(ip) if ip.is_ipv6() => format!("[{ip}]:{}", services.name(side.port, true)),
        host => format!("{host}:{}", services.name(side.port, true)),
    };
    let latency = |side: &Side| {
        let of = |value: Option<f64>| value.unwrap_or(0.0);
        let response = &side.response;
        format!(
            "[{}: avg={:.6} min={:.6} max={:.6}]",
            side.address,
            of(response.mean_s),
            of(response.min_s),
            of(response.max_s)
        )
    };
    let (client, server) = (&summary.client, &summary.server);
    format!(
        "{}-{} duration={:.6} bytes_transferred={} {} {}",
        end(server),
        end(client),
        summary.duration_s,
        client.unique_bytes + server.unique_bytes,
        latency(client),
        latency(server)
    )
}
