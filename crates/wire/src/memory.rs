//! Messages of the calls that measure how long allocating memory and creating processes takes.

use serde::{Deserialize, Serialize};

/// Allocates this much memory and writes to each page of it once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Touch {
    /// Size in bytes, rounded up to whole pages.
    pub bytes: u64,
}

/// The memory was touched; the agent keeps it until it exits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Touched {
    /// Pages that were written to.
    pub pages: u64,
    /// Page faults without I/O during that, as the machine's kernel counts them.
    pub faults: u64,
    /// `CLOCK_MONOTONIC` before the first page.
    pub started_ns: u64,
    /// `CLOCK_MONOTONIC` after the last one.
    pub ended_ns: u64,
}

/// A child of the agent, which executes no other program, has exited; all times are `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forked {
    /// Right before the fork.
    pub asked_ns: u64,
    /// When the parent continued.
    pub made_ns: u64,
    /// When the child ran its first instruction.
    pub first_ns: u64,
    /// When the parent received the child's first byte.
    pub answered_ns: u64,
    /// When the parent received the child's report that its memory is touched.
    pub touched_ns: u64,
    /// When the child had been waited for.
    pub gone_ns: u64,
    /// Pages that the child wrote to.
    pub pages: u64,
}
