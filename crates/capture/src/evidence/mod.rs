//! Gather evidence: what a packet, together with the packets before it, shows beyond its own fields.
//!
//! [`measure`] measures round trips and windows, [`twins`] recognises packets that were captured twice, and
//! [`numbering`] learns from IPv4's identification which hosts number the packets of each connection separately.
//! Nothing is attributed to a cause here.

pub mod measure;
pub mod numbering;
pub mod step;
pub mod twins;
