//! Messages about memory that is used, and processes that are made, to find out how long that takes.

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
    /// Page faults without I/O meanwhile, as the machine's kernel counts them.
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
    /// When the parent went on.
    pub made_ns: u64,
    /// The child's first instruction.
    pub first_ns: u64,
    /// The parent has the child's first byte.
    pub answered_ns: u64,
    /// The parent has the child's word that its memory is touched.
    pub touched_ns: u64,
    /// The child was waited for.
    pub gone_ns: u64,
    /// Pages that the child wrote to.
    pub pages: u64,
}
