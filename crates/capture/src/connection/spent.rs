//! Define the causes of time spent, and count the nanoseconds of each.

/// A silence of at least this length is idle time if neither end owed a packet.
pub const IDLE_FROM: u64 = 1_000_000_000;

/// Positions of the causes in [`Spent`]. Those that belong to an end have one position for each end of the key.
pub mod on {
    /// An end's program, including time in which it does not read what has arrived.
    pub const APPLICATION: usize = 0;
    /// An end's receive buffer: its program read at once, but the window was too small for the path.
    pub const RECEIVE_BUFFER: usize = 2;
    /// An end's send buffer (or pacing by its system): it had less in flight than the window and the path allowed.
    pub const SEND_BUFFER: usize = 4;
    /// Round trips.
    pub const LATENCY: usize = 6;
    /// The rate of the path and its queues.
    pub const BANDWIDTH: usize = 7;
    /// A small segment that waits for the acknowledgement of the previous one, which the other end delays.
    pub const NAGLE: usize = 8;
    /// From a loss to its repair.
    pub const RECOVERY: usize = 9;
    /// Neither end owed anything.
    pub const IDLE: usize = 10;
    /// The capture does not show the cause.
    pub const UNKNOWN: usize = 11;
    /// Number of causes.
    pub const COUNT: usize = 12;

    /// Whether time of this cause counts as waiting: idle time does not, and unknown time might not.
    #[must_use]
    pub fn is_waited_for(cause: usize) -> bool {
        !matches!(cause, IDLE | UNKNOWN)
    }
}

/// Nanoseconds by cause.
pub type Spent = [u64; on::COUNT];
