//! Collect the requests to each server, and the times of the answers.

use crate::connection::latency::Latency;
use crate::connection::latency::RoundTrips;
use serde::Serialize;

/// Maximum number of requests of a server that are listed.
const MOST_NAMED: usize = 16;

/// One request and its answer.
#[derive(Clone, Debug, Serialize)]
pub struct Request {
    /// In HTTP method and target, such as `GET /index.html`; in TLS the requested server name; in DNS type and name.
    pub name: String,
    /// HTTP status, or DNS response code.
    pub status: Option<u16>,
    /// The client.
    pub client: String,
    /// Time of its first byte, nanoseconds since 1970.
    pub start_ns: i64,
    /// From its first byte to its last.
    pub sent_s: f64,
    /// From its last byte to the answer's first; absent without an answer.
    pub first_byte_s: Option<f64>,
    /// From its last byte to the answer's last; absent if that is not in the capture.
    pub last_byte_s: Option<f64>,
    /// The frame with its last byte.
    pub frame: u64,
    /// The frame with the answer's first byte, and the one with its last.
    pub answer_frames: Option<(u64, u64)>,
    /// Bytes of the answer, with its head.
    pub bytes: u64,
    /// How often it was repeated before the answer; times count from the first attempt.
    pub repeated: u32,
}

/// All requests in one protocol to one server.
#[derive(Debug, Serialize)]
pub struct Served {
    /// `http`, `tls` or `dns`.
    pub protocol: &'static str,
    /// Address and port.
    pub server: String,
    /// Number of requests.
    pub count: u64,
    /// Number of requests without an answer.
    pub unanswered: u64,
    /// Number of requests whose answer reports a failure: in HTTP a status of 400 or more, in DNS a response code other
    /// than 0.
    pub failed: u64,
    /// Number of requests that were repetitions.
    pub repeated: u64,
    /// From the end of a request to the first byte of its answer.
    pub first_byte: RoundTrips,
    /// From the end of a request to the last byte of its answer.
    pub last_byte: RoundTrips,
    /// The requests that took longest, the longest first.
    pub longest: Vec<Request>,
    #[serde(skip)]
    first: Latency,
    #[serde(skip)]
    last: Latency,
}

impl Served {
    pub(crate) fn new(protocol: &'static str, host: &str, port: u16) -> Self {
        let server = if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        Self {
            protocol,
            server,
            count: 0,
            unanswered: 0,
            failed: 0,
            repeated: 0,
            first_byte: RoundTrips::default(),
            last_byte: RoundTrips::default(),
            longest: Vec::new(),
            first: Latency::default(),
            last: Latency::default(),
        }
    }

    pub(crate) fn add(&mut self, request: Request, first: Option<u64>, last: Option<u64>) {
        self.count += 1;
        self.unanswered += u64::from(first.is_none());
        let fails = request.status >= Some(if self.protocol == "dns" { 1 } else { 400 });
        self.failed += u64::from(fails);
        self.repeated += u64::from(request.repeated);
        if let Some(nanos) = first {
            self.first.record(nanos);
        }
        if let Some(nanos) = last {
            self.last.record(nanos);
        }
        self.longest.push(request);
        if self.longest.len() > 4 * MOST_NAMED {
            self.keep_longest();
        }
    }

    /// Keep the requests that took longest. A DNS query without an answer ranks first; another request without one
    /// ranks last, since it may only not have been captured completely.
    fn keep_longest(&mut self) {
        let none = if self.protocol == "dns" {
            f64::INFINITY
        } else {
            -1.0
        };
        let took = |request: &Request| request.last_byte_s.or(request.first_byte_s).unwrap_or(none);
        self.longest.sort_by(|a, b| took(b).total_cmp(&took(a)));
        self.longest.truncate(MOST_NAMED);
    }

    /// Finish at the end of the capture.
    pub(crate) fn finish(&mut self) {
        self.first_byte = RoundTrips::new(&self.first, true);
        self.last_byte = RoundTrips::new(&self.last, true);
        self.keep_longest();
    }
}
