//! Describe faults of a capture: where and why reading failed.

use std::fmt;
use std::io;

/// Reading stopped at `offset` (in decompressed bytes) for `reason`; everything before it was counted.
#[derive(Debug)]
pub struct Fault {
    /// Offset in bytes; for a packet list, the reason contains the line number.
    pub offset: u64,
    /// What is wrong, in one line.
    pub reason: String,
    /// What to do, in one line; may be empty.
    pub hint: &'static str,
}

impl Fault {
    /// Create a fault without a hint.
    #[must_use]
    pub fn new(offset: u64, reason: impl Into<String>) -> Self {
        Self {
            offset,
            reason: reason.into(),
            hint: "",
        }
    }

    /// Create the fault of an input that could not be read.
    #[must_use]
    pub fn io(offset: u64, error: &io::Error) -> Self {
        Self::new(offset, format!("cannot be read: {error}"))
    }

    /// Add a hint.
    #[must_use]
    pub fn hint(mut self, hint: &'static str) -> Self {
        self.hint = hint;
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.offset, self.reason)
    }
}

impl std::error::Error for Fault {}
