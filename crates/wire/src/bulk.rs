//! Messages of the calls that move whole disks' worth of bytes.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// How bytes are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct How {
    /// `O_DIRECT` wherever a file or device is opened; refused, not ignored, where it cannot be.
    pub direct: bool,
    /// Bytes of one request; whole 4096-byte blocks for direct I/O.
    pub block_size: u64,
    /// Requests under way at once, for direct I/O.
    pub in_flight: u32,
}

/// A file for the data that follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WriteStream {
    /// Created or truncated.
    pub path: ByteBuf,
    /// Then `fsync` and `syncfs`.
    pub flush: bool,
}

/// A file or device to copy into a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Copy {
    /// What is read.
    pub source: ByteBuf,
    /// Created or truncated.
    pub destination: ByteBuf,
    /// How.
    pub how: How,
    /// Bytes to copy; all there are when absent. A shorter source is an error.
    #[serde(default)]
    pub length: Option<u64>,
    /// Allocate the destination beforehand where its filesystem can.
    pub preallocate: bool,
    /// Then `fsync` and `syncfs`.
    pub flush: bool,
}

/// What to fill a file with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Bytes of value 0.
    Zero,
    /// Bytes of value 1.
    One,
    /// Pseudo-random bytes, the same ones every time, no two blocks of 4096 alike.
    Random,
}

/// A file to fill with a pattern.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fill {
    /// Created or truncated.
    pub path: ByteBuf,
    /// Bytes.
    pub size: u64,
    /// Which bytes.
    pub pattern: Pattern,
    /// How.
    pub how: How,
    /// Allocate the file beforehand where its filesystem can.
    pub preallocate: bool,
    /// Then `fsync` and `syncfs`.
    pub flush: bool,
}

/// A file or device to read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadBack {
    /// Its path.
    pub path: ByteBuf,
    /// How.
    pub how: How,
    /// Bytes to read; all there are when absent. A shorter file is an error.
    #[serde(default)]
    pub length: Option<u64>,
}

/// A file or device to digest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Extent {
    /// Its path.
    pub path: ByteBuf,
    /// Bytes from its start; all there are when absent. A shorter file is an error.
    #[serde(default)]
    pub length: Option<u64>,
}

/// A pattern to digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatternExtent {
    /// Which bytes.
    pub pattern: Pattern,
    /// How many.
    pub size: u64,
}

/// What moving bytes took; times are `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transferred {
    /// Bytes.
    pub bytes: u64,
    /// When the call was taken up.
    pub started_ns: u64,
    /// When the last byte was handed to the kernel.
    pub moved_ns: u64,
    /// When all of it was flushed.
    pub ended_ns: u64,
    /// Processor time of the agent in user mode.
    pub user_us: u64,
    /// Processor time of the agent in the kernel.
    pub system_us: u64,
    /// Whether `O_DIRECT` was used.
    pub direct: bool,
    /// Whether the file was allocated beforehand.
    pub preallocated: bool,
    /// Bytes that went into the machine's page cache to be written back, whoever wrote them.
    pub dirtied_bytes: u64,
}

/// XXH3 with 128 bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    /// In hexadecimal.
    pub xxh3: String,
    /// Bytes it is of.
    pub size: u64,
}

/// What writing back took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flushed {
    /// The file.
    pub fsync_ns: u64,
    /// Its whole filesystem, afterwards.
    pub syncfs_ns: u64,
}
