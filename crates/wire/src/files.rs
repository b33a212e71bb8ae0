//! Messages of the calls that inspect and change files and filesystems.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// A file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// Its path.
    pub path: ByteBuf,
}

/// A filesystem to mount, as `mount(2)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mount {
    /// Device, tag or `none`.
    pub source: ByteBuf,
    /// The mount point.
    pub target: ByteBuf,
    /// Type as in `/proc/filesystems`.
    pub fstype: String,
    /// Comma-separated options as for `mount -o`: flags are recognised, all others are passed to the filesystem.
    #[serde(default)]
    pub options: String,
}

/// A filesystem to unmount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Umount {
    /// Where it is mounted.
    pub target: ByteBuf,
    /// Detach now, unmount when no longer used.
    #[serde(default)]
    pub lazy: bool,
}

/// A part of a file to read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadFile {
    /// Path of the file, which may be in `/proc`, or of a device.
    pub path: ByteBuf,
    /// First byte.
    #[serde(default)]
    pub offset: u64,
    /// Maximum number of bytes to send.
    pub limit: u64,
}

/// A file to write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WriteFile {
    /// Path of the file, which is created or truncated.
    pub path: ByteBuf,
    /// Permissions if the file is created.
    pub mode: u32,
    /// Owner to give it.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Group to give it.
    #[serde(default)]
    pub gid: Option<u32>,
    /// Reply only when the contents have reached the disk.
    #[serde(default)]
    pub fsync: bool,
}

/// A directory to create.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mkdir {
    /// Its path.
    pub path: ByteBuf,
    /// Its permissions.
    pub mode: u32,
    /// Create missing parents too, and accept a directory that already exists.
    #[serde(default)]
    pub parents: bool,
}

/// A file or directory to remove.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Remove {
    /// Path of what to remove; a symbolic link itself is removed, not its target.
    pub path: ByteBuf,
    /// Remove directories with their contents.
    #[serde(default)]
    pub recursive: bool,
}

/// Digest of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Digest {
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// Bytes read.
    pub size: u64,
}

/// Digest of everything that a program can see of the files below a directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tree {
    /// XXH3 of 128 bits.
    pub xxh3: ByteBuf,
}

/// Number of bytes transferred, and when the agent handled the first and the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Number of bytes.
    pub bytes: u64,
    /// `CLOCK_MONOTONIC` when the agent began the call.
    pub started_ns: u64,
    /// `CLOCK_MONOTONIC` when the last byte was handled.
    pub ended_ns: u64,
}

/// Metadata of a file, as `stat(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Last modification, `CLOCK_REALTIME`.
    pub mtime_ns: i64,
}

/// Size of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statfs {
    /// Magic number of its type.
    pub magic: u64,
    /// Bytes of one block.
    pub block_size: u64,
    /// Total number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks that users other than root may use.
    pub available: u64,
}
