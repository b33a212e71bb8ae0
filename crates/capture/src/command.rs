//! `guestmark-capture`: the command behind `guestmark capture`.

use crate::engine::analysis::{Analysis, Report, SoFar};
use crate::engine::front::Kind;
use crate::engine::points::{self, Pair};
use crate::memory;
use crate::report::escape::{escape_controls, TerminalSafeWriter};
use crate::report::output::{By, Format, Options, Writer};
use crate::results::longest_waits;
use crate::results::slowest::{self, SlowConnection};
use crate::results::watch::{Series, Watch};
use crate::wire::fault::Fault;
use crate::wire::filter::Filter;
use crate::wire::live::{self, Ring};
use crate::wire::services::Services;
use lexopt::prelude::*;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

const USAGE: &str = "\
Usage: guestmark-capture [OPTIONS] FILE…      (- is standard input)

Finds out who is slow in a packet capture: statistics of every connection, response latency of each end.
Reads pcap, pcapng and Wireshark's packet list in CSV, each also compressed by
gzip, zstd, xz or bzip2.

  --format json|csv|tcp-stats    output format [json]
  --by connection|endpoint       one row per connection or per endpoint [connection]
  --filter HOST|PORT|FLOW        10.0.0.1, 10.0.0.0/8, 80, http, 10.0.0.1:80, [::1]:80-[::1]:1024
  --top N                        only the N connections that waited longest
  --merge                        treat all FILEs as one trace, in this order (default: one trace each)
  --histograms                   include the latency histograms of endpoints (json)
  --sequence                     include the points of a time-sequence view of the connection that waited longest (json)
  --sequences N                  the same for the N connections that waited longest, at most 8
  --guilty                       include the packets that ended the longest waits (json)
  --requests                     include HTTP/1 requests, TLS handshakes and DNS queries, by server (json)
  --extract OUT --frames N,N…    only write these packets of FILE to OUT, as pcapng
  --points                       only compare how packets passed from each FILE's point of capture to the next (json)
  --memory MB                    memory limit for open connections [an eighth of the available memory, at least 128]
  --live                         capture from the interface FILE (any: from all) until SIGINT or SIGTERM
  --progress                     report progress on standard error every second
  -h, --help  -V, --version

Exit status: 0 all files were read, 1 a file could not be read to its end (the output contains what came before),
2 wrong usage, 69 no such interface, 77 capturing is not permitted.
";

/// `EX_UNAVAILABLE` of sysexits.h.
const UNAVAILABLE: u8 = 69;
const NOT_PERMITTED: u8 = 77;

#[allow(
    clippy::struct_excessive_bools,
    reason = "each is an option of its own"
)]
struct Args {
    files: Vec<String>,
    options: Options,
    filter: Option<String>,
    merge: bool,
    sequences: usize,
    progress: bool,
    memory: usize,
    guilty: bool,
    requests: bool,
    extract: Option<String>,
    frames: BTreeSet<u64>,
    points: bool,
    live: bool,
}

fn parse() -> Result<Option<Args>, String> {
    let mut args = Args {
        files: Vec::new(),
        options: Options {
            format: Format::Json,
            by: By::Connection,
            top: None,
            histograms: false,
        },
        filter: None,
        merge: false,
        sequences: 0,
        progress: false,
        memory: 0,
        guilty: false,
        requests: false,
        extract: None,
        frames: BTreeSet::new(),
        points: false,
        live: false,
    };
    let mut parser = lexopt::Parser::from_env();
    let text = |parser: &mut lexopt::Parser| -> Result<String, String> {
        parser
            .value()
            .and_then(ValueExt::string)
            .map_err(|e| e.to_string())
    };
    while let Some(arg) = parser.next().map_err(|e| e.to_string())? {
        match arg {
            Long("format") => {
                args.options.format = match text(&mut parser)?.as_str() {
                    "json" => Format::Json,
                    "csv" => Format::Csv,
                    "tcp-stats" => Format::TcpStats,
                    other => {
                        return Err(format!(
                            "unknown format {other:?}: use json, csv or tcp-stats"
                        ))
                    }
                }
            }
            Long("by") => {
                args.options.by = match text(&mut parser)?.as_str() {
                    "connection" => By::Connection,
                    "endpoint" => By::Endpoint,
                    other => {
                        return Err(format!(
                            "unknown value {other:?} for --by: use connection or endpoint"
                        ))
                    }
                }
            }
            Long("filter") => args.filter = Some(text(&mut parser)?),
            Long("top") => args.options.top = Some(parse_number(&text(&mut parser)?)?),
            Long("memory") => args.memory = parse_number(&text(&mut parser)?)?.max(1),
            Long("merge") => args.merge = true,
            Long("histograms") => args.options.histograms = true,
            Long("sequence") => args.sequences = 1,
            Long("sequences") => {
                args.sequences = parse_number(&text(&mut parser)?)?.min(slowest::MOST);
            }
            Long("guilty") => args.guilty = true,
            Long("requests") => args.requests = true,
            Long("extract") => args.extract = Some(text(&mut parser)?),
            Long("frames") => {
                for part in text(&mut parser)?.split(',') {
                    args.frames.insert(parse_number(part)? as u64);
                }
            }
            Long("live") => args.live = true,
            Long("points") => args.points = true,
            Long("progress") => args.progress = true,
            Short('h') | Long("help") => {
                print!("{USAGE}");
                return Ok(None);
            }
            Short('V') | Long("version") => {
                println!("guestmark-capture {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            Value(file) => args.files.push(file.string().map_err(|e| e.to_string())?),
            other => return Err(other.unexpected().to_string()),
        }
    }
    if args.memory == 0 {
        args.memory = memory::default_megabytes();
    }
    if args.files.is_empty() {
        return Err("no capture file given (- is standard input)".into());
    }
    if args.files.iter().filter(|f| *f == "-").count() > 1 {
        return Err("standard input can be read only once".into());
    }
    Ok(Some(args))
}

fn parse_number(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a whole number"))
}

/// Run the program: read its arguments, and write to standard output and standard error.
#[must_use]
pub fn main() -> ExitCode {
    let args = match parse() {
        Ok(Some(args)) => args,
        Ok(None) => return ExitCode::SUCCESS,
        Err(message) => return print_usage(&message),
    };
    if let Some(out) = &args.extract {
        return extract(&args, out);
    }
    let services = Services::system();
    let filter = match args
        .filter
        .as_deref()
        .map(|text| (text, Filter::parse(text, &services)))
    {
        Some((text, None)) => {
            return print_usage(&format!("{text:?} is neither a host, a port nor a flow"))
        }
        Some((_, filter)) => filter,
        None => None,
    };
    if args.points {
        return compare(&args.files, filter.as_ref());
    }
    let job = Job {
        filter,
        services: Services::system(),
        memory: args.memory << 20,
        sequences: args.sequences,
        progress: args.progress,
        guilty: args.guilty,
        requests: args.requests,
    };
    let ring = match (&args.files[..], args.live) {
        (_, false) => None,
        ([interface], true) => {
            live::end_on_signal();
            match Ring::open(interface, args.requests) {
                Ok(ring) => Some(ring),
                Err(error) => return explain_refusal(interface, &error),
            }
        }
        _ => return print_usage("--live needs exactly one interface"),
    };
    if args.files.iter().any(|file| file == "-") {
        outlive_interrupt();
    }
    let out = TerminalSafeWriter::new(BufWriter::with_capacity(1 << 16, io::stdout().lock()));
    let mut writer = Writer::new(out, args.options, services);
    let mut whole = true;
    if let Some(ring) = ring {
        whole &= job.listen(ring, &args.files[0], &mut writer);
    } else if args.merge {
        whole &= job.run(&args.files, &args.files.join(" + "), &mut writer);
    } else {
        for file in &args.files {
            whole &= job.run(std::slice::from_ref(file), file, &mut writer);
            if writer.is_broken() {
                break;
            }
        }
    }
    match writer.finish() {
        Ok(()) if whole => ExitCode::SUCCESS,
        Ok(()) => ExitCode::from(1),
        // The reader of the output has closed it.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("guestmark: the output cannot be written: {e}");
            ExitCode::from(1)
        }
    }
}

/// Write the packets that were asked for.
fn extract(args: &Args, out: &str) -> ExitCode {
    let [file] = &args.files[..] else {
        return print_usage("--extract needs exactly one file");
    };
    let done = File::create(out)
        .map_err(|e| format!("{out} cannot be written: {e}"))
        .and_then(|opened| {
            let mut opened = BufWriter::new(opened);
            longest_waits::extract(file, &args.frames, &mut opened)
                .map_err(|fault| format!("{file}: {fault}"))?;
            opened
                .flush()
                .map_err(|e| format!("{out} cannot be written: {e}"))
        });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("guestmark: {}", escape_controls(&message));
            ExitCode::from(1)
        }
    }
}

/// Explain why nothing can be captured. If permission is missing, only the exit status shows it, because another
/// program may have it.
fn explain_refusal(interface: &str, error: &io::Error) -> ExitCode {
    if error.kind() == ErrorKind::PermissionDenied {
        return ExitCode::from(NOT_PERMITTED);
    }
    eprintln!(
        "guestmark: cannot capture on {}: {error}\n  ip link lists the interfaces",
        escape_controls(interface)
    );
    ExitCode::from(UNAVAILABLE)
}

#[derive(Serialize)]
struct Points {
    schema: &'static str,
    pairs: Vec<Pair>,
}

/// Compare how packets passed from one point of capture to the next.
fn compare(files: &[String], filter: Option<&Filter>) -> ExitCode {
    let pairs = match points::compare(files, filter) {
        Ok(pairs) => pairs,
        Err((file, fault)) => {
            eprintln!(
                "guestmark: {}",
                escape_controls(&format!("{file}: {fault}"))
            );
            if !fault.hint.is_empty() {
                eprintln!("  {}", fault.hint);
            }
            return ExitCode::from(1);
        }
    };
    let schema = "guestmark-capture-points/1";
    let mut out = TerminalSafeWriter::new(io::stdout().lock());
    let written = serde_json::to_writer(&mut out, &Points { schema, pairs })
        .map_err(io::Error::from)
        .and_then(|()| out.flush());
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("guestmark: the output cannot be written: {e}");
            ExitCode::from(1)
        }
    }
}

fn print_usage(message: &str) -> ExitCode {
    eprintln!(
        "guestmark: {}\n  guestmark capture --help",
        escape_controls(message)
    );
    ExitCode::from(2)
}

struct Job {
    filter: Option<Filter>,
    services: Services,
    memory: usize,
    sequences: usize,
    progress: bool,
    guilty: bool,
    requests: bool,
}

/// Survive the first Ctrl-C: it ends the program that writes the capture, and thus the input; what was captured until
/// then is still reported.
fn outlive_interrupt() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all-zero is a valid action, and a handler that does nothing is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
        libc::sigaction(libc::SIGINT, &raw const action, std::ptr::null_mut());
    }
}

/// Print the progress in one line, which replaces the previous one on a terminal.
#[allow(clippy::format_push_string, reason = "once a second")]
fn print_progress(so_far: &SoFar) {
    let parts = so_far.causes.parts();
    let whole: f64 = parts.iter().filter_map(|(_, part)| *part).sum();
    let mut line = format!(
        "{} packets, {} connections",
        so_far.packets, so_far.connections
    );
    for (name, part) in parts {
        let share = 100.0 * part.unwrap_or(0.0) / whole;
        if share >= 0.5 {
            line.push_str(&format!(", {name} {share:.0} %"));
        }
    }
    let mut out = io::stderr();
    let ends = if out.is_terminal() { "\r\x1b[2K" } else { "" };
    let after = if ends.is_empty() { "\n" } else { "" };
    let _ = write!(out, "{ends}{line}{after}");
}

impl Job {
    /// Analyse `files` as one trace; return false if one could not be read to its end.
    fn run<W: Write>(&self, files: &[String], title: &str, writer: &mut Writer<W>) -> bool {
        writer.begin(title);
        let piped = files
            .iter()
            .any(|file| !std::fs::metadata(file).is_ok_and(|m| m.is_file()));
        let watch = (self.sequences > 0 && piped).then(|| Watch::new(None));
        let (kind, mut report, faults) = self.read(files, watch, writer);
        let mut chosen = std::mem::take(if piped {
            &mut report.largest.of_first
        } else {
            &mut report.largest.of_all
        });
        chosen.truncate(self.sequences);
        if !piped && !chosen.is_empty() {
            // The second pass keeps the points of the connections that the first one found.
            let wanted = chosen.iter().map(|connection| connection.index).collect();
            let again = Some(Watch::new(Some(wanted)));
            report.watch = self.read(files, again, &mut |_: &_| {}).1.watch;
        }
        let sequences = take_series(chosen, &mut report);
        writer.end(
            kind,
            &report,
            faults.first().map(|(_, fault)| fault),
            sequences,
        );
        for (file, fault) in &faults {
            eprintln!(
                "guestmark: {}",
                escape_controls(&format!("{file}: {fault}"))
            );
            if !fault.hint.is_empty() {
                eprintln!("  {}", fault.hint);
            }
        }
        faults.is_empty()
    }

    /// Analyse packets from `interface` until a signal ends it; return false if the interface disappeared.
    fn listen<W: Write>(&self, ring: Ring, interface: &str, writer: &mut Writer<W>) -> bool {
        writer.begin(interface);
        let mut told = print_progress;
        let watch = (self.sequences > 0).then(|| Watch::new(None));
        let mut analysis = self.make_analysis(watch, writer, &mut told);
        let ended = analysis.listen(ring);
        let mut report = analysis.end();
        let mut chosen = std::mem::take(&mut report.largest.of_first);
        chosen.truncate(self.sequences);
        let sequences = take_series(chosen, &mut report);
        let fault = ended.err().map(|error| Fault::io(0, &error));
        writer.end(None, &report, fault.as_ref(), sequences);
        fault.is_none()
    }

    fn make_analysis<'o>(
        &self,
        watch: Option<Watch>,
        output: &'o mut dyn crate::engine::analysis::Output,
        told: &'o mut dyn FnMut(&SoFar),
    ) -> Analysis<'o> {
        let mut analysis = Analysis::new(self.memory, self.filter.clone(), output);
        if let Some(watch) = watch {
            analysis = analysis.watching(watch);
        }
        if self.guilty {
            analysis = analysis.with_longest_waits();
        }
        if self.requests {
            analysis = analysis.with_requests();
        }
        if self.progress {
            analysis = analysis.with_watcher(told);
        }
        analysis
    }

    fn read<'f>(
        &self,
        files: &'f [String],
        watch: Option<Watch>,
        output: &mut dyn crate::engine::analysis::Output,
    ) -> (Option<Kind>, Report, Vec<(&'f str, Fault)>) {
        let mut told = print_progress;
        let mut analysis = self.make_analysis(watch, output, &mut told);
        let mut kind = None;
        let mut faults = Vec::new();
        for file in files {
            let (found, result) = analysis.read_file(file, &self.services);
            kind = kind.or(found);
            if let Err(fault) = result {
                faults.push((
                    if file == "-" {
                        "standard input"
                    } else {
                        file.as_str()
                    },
                    fault,
                ));
            }
        }
        (kind, analysis.end(), faults)
    }
}

/// Return the points of the chosen connections.
fn take_series(chosen: Vec<SlowConnection>, report: &mut Report) -> Vec<(SlowConnection, Series)> {
    chosen
        .into_iter()
        .filter_map(|connection| {
            let watch = report.watch.as_mut()?;
            let series = watch.take(connection.index, connection.end)?;
            Some((connection, series))
        })
        .collect()
}
