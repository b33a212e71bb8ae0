//! Compute the figures of a finished connection that are not counts: its time by cause, and its round trips.

use crate::connection::latency::seconds;
use crate::connection::spent::{on, Spent};
use serde::Serialize;
use std::ops::AddAssign;

/// Time by cause in seconds; the parts add up to the duration. All are absent if only one direction was captured.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Causes {
    /// The client's program had everything it needed, or did not read what had arrived.
    pub client_s: Option<f64>,
    /// The server's program.
    pub server_s: Option<f64>,
    /// The client's receive buffer was too small for the path.
    pub client_receive_buffer_s: Option<f64>,
    /// The server's receive buffer.
    pub server_receive_buffer_s: Option<f64>,
    /// The client kept less in flight than the window and the path allowed.
    pub client_send_buffer_s: Option<f64>,
    /// The server kept less in flight than the window and the path allowed.
    pub server_send_buffer_s: Option<f64>,
    /// Round trips.
    pub latency_s: Option<f64>,
    /// The rate of the path, and its queues.
    pub bandwidth_s: Option<f64>,
    /// Small segments waited for delayed acknowledgements.
    pub nagle_s: Option<f64>,
    /// From a loss to its repair.
    pub recovery_s: Option<f64>,
    /// Neither end owed anything for a second or more.
    pub idle_s: Option<f64>,
    /// The capture does not show the cause.
    pub unknown_s: Option<f64>,
}

/// Return the name, without its unit, of the cause at `position`; `client` is the client's end.
#[must_use]
pub fn name_cause(position: usize, client: usize) -> &'static str {
    let of = |end: usize, names: [&'static str; 2]| names[usize::from(end != client)];
    match position {
        0 | 1 => of(position, ["client", "server"]),
        2 | 3 => of(
            position - on::RECEIVE_BUFFER,
            ["client_receive_buffer", "server_receive_buffer"],
        ),
        4 | 5 => of(
            position - on::SEND_BUFFER,
            ["client_send_buffer", "server_send_buffer"],
        ),
        on::LATENCY => "latency",
        on::BANDWIDTH => "bandwidth",
        on::NAGLE => "nagle",
        on::RECOVERY => "recovery",
        on::IDLE => "idle",
        _ => "unknown",
    }
}

impl Causes {
    /// Convert the nanoseconds by cause to seconds; `client` is the client's end.
    #[must_use]
    pub fn new(spent: Spent, client: usize) -> Self {
        let part = |cause: usize| Some(seconds(spent[cause]));
        Self {
            client_s: part(on::APPLICATION + client),
            server_s: part(on::APPLICATION + 1 - client),
            client_receive_buffer_s: part(on::RECEIVE_BUFFER + client),
            server_receive_buffer_s: part(on::RECEIVE_BUFFER + 1 - client),
            client_send_buffer_s: part(on::SEND_BUFFER + client),
            server_send_buffer_s: part(on::SEND_BUFFER + 1 - client),
            latency_s: part(on::LATENCY),
            bandwidth_s: part(on::BANDWIDTH),
            nagle_s: part(on::NAGLE),
            recovery_s: part(on::RECOVERY),
            idle_s: part(on::IDLE),
            unknown_s: part(on::UNKNOWN),
        }
    }

    /// Return every part and its name in words.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, Option<f64>); on::COUNT] {
        [
            ("client", self.client_s),
            ("server", self.server_s),
            ("client's receive buffer", self.client_receive_buffer_s),
            ("server's receive buffer", self.server_receive_buffer_s),
            ("client's send buffer", self.client_send_buffer_s),
            ("server's send buffer", self.server_send_buffer_s),
            ("path latency", self.latency_s),
            ("path bandwidth", self.bandwidth_s),
            ("Nagle and delayed ACK", self.nagle_s),
            ("loss recovery", self.recovery_s),
            ("idle", self.idle_s),
            ("unknown", self.unknown_s),
        ]
    }
}

impl AddAssign for Causes {
    fn add_assign(&mut self, other: Self) {
        let add = |sum: &mut Option<f64>, part: Option<f64>| {
            if let Some(part) = part {
                *sum = Some(sum.unwrap_or(0.0) + part);
            }
        };
        add(&mut self.client_s, other.client_s);
        add(&mut self.server_s, other.server_s);
        add(
            &mut self.client_receive_buffer_s,
            other.client_receive_buffer_s,
        );
        add(
            &mut self.server_receive_buffer_s,
            other.server_receive_buffer_s,
        );
        add(&mut self.client_send_buffer_s, other.client_send_buffer_s);
        add(&mut self.server_send_buffer_s, other.server_send_buffer_s);
        add(&mut self.latency_s, other.latency_s);
        add(&mut self.bandwidth_s, other.bandwidth_s);
        add(&mut self.nagle_s, other.nagle_s);
        add(&mut self.recovery_s, other.recovery_s);
        add(&mut self.idle_s, other.idle_s);
        add(&mut self.unknown_s, other.unknown_s);
    }
}
