//! Gather evidence: what one packet shows beyond its own fields, together with the packets before it.
//!
//! [`measure`] takes round trips and windows, [`twins`] recognises packets that were captured twice, and [`numbering`]
//! learns from IPv4's identification which hosts number the packets of each connection by themselves. Nothing is
//! attributed to a cause here.

pub mod measure;
pub mod numbering;
pub mod step;
pub mod twins;
