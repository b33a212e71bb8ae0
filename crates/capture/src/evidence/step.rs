//! Describe what a packet's position among the earlier ones shows.

use crate::connection::numbers::Order;

/// Facts about a segment that are not in its fields, and about its connection just before it.
pub struct Step {
    /// Whether it has new payload, or a SYN or FIN that was not seen before.
    pub fresh: bool,
    /// Whether it repeats payload, SYN or FIN.
    pub repeats: bool,
    /// Whether it has new payload below the highest sequence number seen.
    pub late: bool,
    /// The sequence number that its sender would have sent next.
    pub next: u32,
    /// The highest acknowledgement of its sender so far, if any.
    pub acked: Option<u32>,
    /// Whether packets of its sender were lost before the point of capture, or whether it was overtaken.
    pub order: Order,
}
