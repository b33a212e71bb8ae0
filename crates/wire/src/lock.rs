//! Messages about the lock of a machine.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Takes the machine's lock, which the agent then holds until it ends; never waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lock {
    /// Description of the holder for others; at most [`MAX_HOLDER`] bytes.
    pub holder: ByteBuf,
}

/// Longest description of a holder.
pub const MAX_HOLDER: usize = 4096;

/// Result of the attempt to take the lock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Locked {
    /// Whether this agent holds it now.
    pub held: bool,
    /// Path of the lock; empty if the machine has locking switched off.
    pub path: ByteBuf,
    /// Description of the other holder, if the lock is not ours.
    pub holder: ByteBuf,
}
