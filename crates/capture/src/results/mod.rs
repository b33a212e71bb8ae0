//! Summarise connections that are over, in the units and names of the documents.
//!
//! A [`summary::ConnectionSummary`] is one connection, with a [`side::Side`] for each end; [`endpoint`] adds
//! connections up, [`slowest`] and [`longest_waits`] keep the notable ones, and [`truth`] shows how reliable they are.

pub mod confidence;
pub mod endpoint;
pub mod figures;
pub mod longest_waits;
pub mod side;
pub mod slowest;
pub mod summary;
pub mod truth;
pub mod watch;
