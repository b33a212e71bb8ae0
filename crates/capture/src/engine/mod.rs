//! Analyse one input in one pass, on as many threads as help.
//!
//! [`front`] reads and decodes, [`tracker`] finds the connection of every segment and removes finished ones, and
//! [`analysis`] combines both. [`points`] compares several captures of the same packets.

pub mod analysis;
pub mod clocks;
pub mod front;
pub mod points;
pub mod tracker;
