//! Messages of the calls that read, write and copy whole disks.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// How a call transfers data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferOptions {
    /// Open files and devices with `O_DIRECT`; the call fails where that is refused.
    pub direct: bool,
    /// Size of one request in bytes; a multiple of 4096 for direct I/O.
    pub block_size: u64,
    /// Number of requests in flight, for direct I/O.
    pub in_flight: u32,
}

/// A file to write the data that follows to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WriteStream {
    /// Path of the file, which is created or truncated.
    pub path: ByteBuf,
    /// Call `fsync` and `syncfs` afterwards.
    pub flush: bool,
}

/// A file or device to copy into a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Copy {
    /// Path to read from.
    pub source: ByteBuf,
    /// Path to write to; the file is created or truncated.
    pub destination: ByteBuf,
    /// How the data are copied.
    pub how: TransferOptions,
    /// Number of bytes to copy; the whole source if absent. A shorter source is an error.
    #[serde(default)]
    pub length: Option<u64>,
    /// Allocate the destination beforehand if its filesystem can.
    pub preallocate: bool,
    /// Call `fsync` and `syncfs` afterwards.
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
    /// Pseudo-random bytes, the same every time; no two 4096-byte blocks are equal.
    Random,
}

/// A file to fill with a pattern.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fill {
    /// Path of the file, which is created or truncated.
    pub path: ByteBuf,
    /// Size in bytes.
    pub size: u64,
    /// The content.
    pub pattern: Pattern,
    /// How the file is written.
    pub how: TransferOptions,
    /// Allocate the file beforehand if its filesystem can.
    pub preallocate: bool,
    /// Call `fsync` and `syncfs` afterwards.
    pub flush: bool,
}

/// A file or device to read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadBack {
    /// Its path.
    pub path: ByteBuf,
    /// How the file is read.
    pub how: TransferOptions,
    /// Number of bytes to read; the whole file if absent. A shorter file is an error.
    #[serde(default)]
    pub length: Option<u64>,
}

/// A file or device, or the beginning of one, to compute a checksum of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Extent {
    /// Its path.
    pub path: ByteBuf,
    /// Number of bytes from its start; the whole file if absent. A shorter file is an error.
    #[serde(default)]
    pub length: Option<u64>,
}

/// A pattern to compute a checksum of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatternExtent {
    /// The content.
    pub pattern: Pattern,
    /// Number of bytes.
    pub size: u64,
}

/// The result of a transfer; times are `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transferred {
    /// Number of bytes transferred.
    pub bytes: u64,
    /// When the agent began the call.
    pub started_ns: u64,
    /// When the last byte was handed to the kernel.
    pub moved_ns: u64,
    /// When everything was flushed.
    pub ended_ns: u64,
    /// Processor time of the agent in user mode.
    pub user_us: u64,
    /// Processor time of the agent in the kernel.
    pub system_us: u64,
    /// Whether `O_DIRECT` was used.
    pub direct: bool,
    /// Whether the file was allocated beforehand.
    pub preallocated: bool,
    /// Bytes that became dirty in the machine's page cache meanwhile, whichever process wrote them.
    pub dirtied_bytes: u64,
}

/// A 128-bit XXH3 checksum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    /// The checksum in hexadecimal.
    pub xxh3: String,
    /// Number of bytes that it covers.
    pub size: u64,
}

/// How long flushing took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flushed {
    /// `fsync` of the file.
    pub fsync_ns: u64,
    /// `syncfs` of its filesystem, afterwards.
    pub syncfs_ns: u64,
}
