//! Find out who is slow in a trace: exact statistics of every connection in a packet capture, in one pass and in
//! bounded memory.
//!
//! The modules are layers, and each one uses only those before it:
//!
//! | layer | from | to |
//! | --- | --- | --- |
//! | [`wire`] | bytes of a capture | packets, then segments |
//! | [`connection`] | | the state of one connection |
//! | [`evidence`] | a segment and its connection | round trips, windows, copies |
//! | [`cause`] | evidence | time by cause |
//! | [`application`] | payload | requests and answers |
//! | [`results`] | a connection that is over | its summary |
//! | [`engine`] | an input | all summaries, and what limits them |
//! | [`report`] | summaries | JSON, CSV, lines of text |
//! | [`command`] | options | a report |

pub mod application;
pub mod cause;
pub mod command;
pub mod connection;
pub mod engine;
pub mod evidence;
pub mod memory;
pub mod report;
pub mod results;
pub mod wire;
