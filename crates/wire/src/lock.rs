//! Messages about the lock of a machine.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Takes the machine's lock, which the agent then holds until it exits; never waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lock {
    /// Description of the holder, shown to others; at most [`MAX_HOLDER`] bytes.
    pub holder: ByteBuf,
}

/// Maximum length of a holder's description, in bytes.
pub const MAX_HOLDER: usize = 4096;

/// Result of the attempt to take the lock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Locked {
    /// Whether this agent holds it now.
    pub held: bool,
    /// Path of the lock; empty if locking is disabled on the machine.
    pub path: ByteBuf,
    /// Description of the other holder, if another process has the lock.
    pub holder: ByteBuf,
}
