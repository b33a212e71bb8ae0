//! Messages of `guestmark-agent syscalls` on its standard output, in frames like the agent's own.
//!
//! The program measures one operation after the other. Before the timed part of each it sends [`SyscallEvent::Ready`],
//! after it [`SyscallEvent::Measured`], and continues when it has read one byte. The controller can thus read the
//! hypervisor's counters right before and after the timed part.

use serde::{Deserialize, Serialize};

/// The content of one frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyscallEvent {
    /// Everything before the timed part is done.
    Ready(Ready),
    /// The timed part has ended.
    Measured(Measured),
}

/// What will be timed next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Name of the operation; `nothing` for a part without any, which shows what the byte and the frame alone cost.
    pub name: String,
}

/// How long one operation takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Name of the operation.
    pub name: String,
    /// How many operations the timed part had.
    pub operations: u64,
    /// How many batches were timed.
    pub batches: u64,
    /// Time of all batches on the monotonic clock.
    pub elapsed_ns: u64,
    /// Processor time of the program and its children meanwhile, as this machine's kernel accounts it.
    pub cpu_ns: u64,
    /// Nanoseconds of one operation: the median over batches, loop and clock subtracted.
    pub median_ns: f64,
    /// The same for the fastest batch.
    pub lowest_ns: f64,
    /// Time of one iteration of an empty loop, which has been subtracted.
    pub loop_ns: f64,
    /// Time of one reading of the clock, which has been subtracted from each batch.
    pub clock_ns: f64,
}
