//! What the position of a packet among those before it shows.

use crate::connection::numbers::Order;

/// What is known of a segment besides its fields, and of its connection just before it.
pub struct Step {
    /// It holds new payload, or a SYN or FIN for the first time.
    pub fresh: bool,
    /// It repeats payload, SYN or FIN.
    pub repeats: bool,
    /// It holds new payload from before the highest seen.
    pub late: bool,
    /// What its sender would have sent next.
    pub next: u32,
    /// What its sender had acknowledged so far, if anything.
    pub acked: Option<u32>,
    /// Packets of its sender were lost before the point of capture; or it was sent before another that passed first.
    pub order: Order,
}
