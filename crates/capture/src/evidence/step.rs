//! Describe what the position of a packet among those before it shows.

use crate::connection::numbers::Order;

/// What is known about a segment besides its fields, and about its connection just before it.
pub struct Step {
    /// It holds new payload, or a SYN or FIN for the first time.
    pub fresh: bool,
    /// It repeats payload, SYN or FIN.
    pub repeats: bool,
    /// It holds new payload from before the highest seen.
    pub late: bool,
    /// The sequence number that its sender would have sent next.
    pub next: u32,
    /// The highest acknowledgement of its sender so far, if any.
    pub acked: Option<u32>,
    /// Whether packets of its sender were lost before the point of capture, or whether it was overtaken.
    pub order: Order,
}
