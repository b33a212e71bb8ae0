//! Messages of the calls that measure how long using memory and making processes take.

use serde::{Deserialize, Serialize};

/// Takes this much memory of the machine and writes to each page of it once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Touch {
    /// Bytes; a part of a page counts as a page.
    pub bytes: u64,
}

/// The memory was touched, and stays with the agent until it ends.
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

/// A child of the agent, without another program, ran to its end; all times are `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forked {
    /// Right before the fork.
    pub asked_ns: u64,
    /// When the parent continued.
    pub made_ns: u64,
    /// Time of the child's first instruction.
    pub first_ns: u64,
    /// When the parent had the child's first byte.
    pub answered_ns: u64,
    /// When the parent had the child's report that its memory is touched.
    pub touched_ns: u64,
    /// When the child had been waited for.
    pub gone_ns: u64,
    /// Pages that the child wrote to.
    pub pages: u64,
}
