//! What `guestmark-agent syscalls` says on its standard output, in frames as the agent's own.
//!
//! The program measures one operation after the other. Before the timed part of each it says [`Said::Ready`], after it
//! [`Said::Measured`], and goes on when it has read one byte: so the controller can read the hypervisor's counters
//! with nothing but the timed part in between.

use serde::{Deserialize, Serialize};

/// One frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// Everything before the timed part is done.
    Ready(Ready),
    /// The timed part has ended.
    Measured(Measured),
}

/// What will be timed next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Name of the operation; `nothing` for a part without any, which tells what the byte and the frame alone cost.
    pub name: String,
}

/// How long one operation takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Name of the operation.
    pub name: String,
    /// How often it was done in the timed part.
    pub operations: u64,
    /// Batches that the clock was read around.
    pub batches: u64,
    /// Time of all batches on the monotonic clock.
    pub elapsed_ns: u64,
    /// Processor time of the program and its children meanwhile, as this machine's kernel accounts it.
    pub cpu_ns: u64,
    /// Nanoseconds of one operation: the median over batches, loop and clock subtracted.
    pub median_ns: f64,
    /// Of the quickest batch.
    pub lowest_ns: f64,
    /// What one turn of an empty loop takes; has been subtracted.
    pub loop_ns: f64,
    /// What one reading of the clock takes; has been subtracted from each batch.
    pub clock_ns: f64,
}
