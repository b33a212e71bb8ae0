//! Messages about the lock of a machine.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Takes the machine's lock, which the agent then holds until it ends; never waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lock {
    /// What others are to read of the holder; at most [`MAX_HOLDER`] bytes.
    pub holder: ByteBuf,
}

/// Longest description of a holder.
pub const MAX_HOLDER: usize = 4096;

/// What became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Locked {
    /// Whether this agent holds it now.
    pub held: bool,
    /// Where the lock is; empty when the machine wants none.
    pub path: ByteBuf,
    /// What another holder said of itself, when it is not ours.
    pub holder: ByteBuf,
}
