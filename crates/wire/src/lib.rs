//! Types of the messages between the control plane and the agent.
//!
//! A frame is a little-endian `u32` length followed by that many bytes of `MessagePack` (structs as maps with field
//! names, enums externally tagged). The controller sends [`Request`]s, the agent answers with [`Answer`] or
//! [`Failed`], in between with any number of [`Chunk`]s. The agent speaks first: one [`Answer`] of [`Hello`] with id 0.
//!
//! Byte strings (arguments, environment, paths, contents) are `MessagePack` `bin`: Unix names need not be UTF-8.

pub mod bulk;
mod files;
mod lock;
mod memory;
pub mod network;
pub mod syscalls;
pub mod traffic;

pub use files::{
    Count, Digest, Mkdir, Mount, Path, ReadFile, Remove, Stat, Statfs, Tree, Umount, WriteFile,
};
pub use lock::{Lock, Locked, MAX_HOLDER};
pub use memory::{Forked, Touch, Touched};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Version of the protocol. It changes with every incompatible change of a message; each side refuses other versions.
pub const PROTOCOL: u32 = 1;
/// Maximum number of content bytes in one [`Call::Data`] or [`Chunk`].
pub const MAX_CHUNK: usize = 1 << 20;
/// Longest payload of a frame: a chunk and room for its envelope, or a long command line. Longer ones are refused.
pub const MAX_FRAME: usize = MAX_CHUNK + (64 << 10);
/// A length with this bit set is not a frame but an acknowledgement: the other bits say how many more bytes the agent
/// has taken from a channel with a [`Hello::window`].
pub const ACKNOWLEDGEMENT: u32 = 1 << 31;
/// Maximum number of bytes of one output stream that the agent keeps for the reply to an [`Exec`].
pub const MAX_OUTPUT: u64 = 64 << 20;

/// What the controller sends. `id` is chosen by the controller, unique among the calls in flight, and not 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request<'a> {
    /// Number of the call that this message starts or belongs to.
    pub id: u64,
    /// The call.
    #[serde(borrow)]
    pub call: Call<'a>,
    /// Sent before the answer to a [`Call::Lock`] is known: refused with [`Kind::InUse`] if another process has the
    /// lock.
    #[serde(default)]
    pub ahead: bool,
}

/// The calls. The last four belong to a running call with the same `id`, have no reply of their own, and are ignored if
/// that call has already ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call<'a> {
    /// Identifies the agent: [`Hello`].
    Hello,
    /// Reads the clocks with as little overhead as possible: [`Clock`].
    Clock,
    /// Runs a program: [`Exited`], preceded by chunks of streams 1 and 2.
    Exec(Box<Exec>),
    /// Resolves a command as `exec` would: [`Which`].
    Which(Lookup),
    /// Computes the digest of a file: [`Digest`].
    Sha256(Path),
    /// Computes the digest of the files below a directory without their times: [`Tree`].
    Tree(Path),
    /// Mounts a filesystem: [`Done`].
    Mount(Mount),
    /// Unmounts: [`Done`].
    Umount(Umount),
    /// Writes all caches back: [`Done`].
    Sync,
    /// Sends the contents of a file as chunks of stream 1, then [`Count`].
    ReadFile(ReadFile),
    /// Replaces a file by the data that follows: [`Count`].
    WriteFile(WriteFile),
    /// Discards the data that follows (measures the channel): [`Count`].
    Sink,
    /// Reads the metadata of a file, following symbolic links: [`Stat`].
    Stat(Path),
    /// Reads the size of a filesystem: [`Statfs`].
    Statfs(Path),
    /// Creates a directory: [`Done`].
    Mkdir(Mkdir),
    /// Removes a file, or with `recursive` a whole directory: [`Done`].
    Remove(Remove),
    /// Describes the machine: [`Facts`].
    Facts,
    /// Asks for exclusive use of the machine: [`Locked`].
    Lock(Lock),
    /// Allocates memory and writes to each page of it once: [`Touched`].
    Touch(Touch),
    /// Does the same in a child of the agent, which then exits: [`Forked`].
    Fork(Touch),
    /// Writes the data that follows to a file: [`bulk::Transferred`].
    WriteStream(bulk::WriteStream),
    /// Copies a file or device into a file: [`bulk::Transferred`].
    Copy(bulk::Copy),
    /// Fills a file with a pattern: [`bulk::Transferred`].
    Fill(bulk::Fill),
    /// Reads a file or device and discards the data: [`bulk::Transferred`].
    ReadBack(bulk::ReadBack),
    /// Computes the checksum of a file or device: [`bulk::Checksum`].
    Checksum(bulk::Extent),
    /// Computes the checksum that a file filled with a pattern must have: [`bulk::Checksum`].
    ChecksumOfPattern(bulk::PatternExtent),
    /// Flushes a file and its filesystem: [`bulk::Flushed`].
    Flush(Path),
    /// Flushes everything and drops the page cache: [`Done`].
    DropCaches,
    /// Ends this conversation and everything it started; on a channel for several, the [`Hello`] of the next one
    /// follows.
    Leave,
    /// Flushes everything, replies [`Done`] and powers the machine off; an agent that is a plain process exits instead.
    PowerOff,
    /// Bytes for the standard input, file or sink of the call.
    Data(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// No more bytes will follow.
    End,
    /// Sends a signal to the process group of the call.
    Kill(Kill),
    /// New size of the terminal of the call.
    Winsize(Winsize),
}

/// A program to run in a session of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exec {
    /// Arguments; the first is looked up as `execvp` does, with the `PATH` of `env`.
    pub argv: Vec<ByteBuf>,
    /// `NAME=value` strings; the agent's own environment when absent.
    #[serde(default)]
    pub env: Option<Vec<ByteBuf>>,
    /// Working directory; the agent's own when absent.
    #[serde(default)]
    pub cwd: Option<ByteBuf>,
    /// User to become.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Group to become.
    #[serde(default)]
    pub gid: Option<u32>,
    /// Supplementary groups to set.
    #[serde(default)]
    pub groups: Option<Vec<u32>>,
    /// Whether [`Call::Data`] for the standard input follows; otherwise it is `/dev/null`.
    #[serde(default)]
    pub stdin: bool,
    /// Time after which the whole process group is killed, in nanoseconds.
    #[serde(default)]
    pub time_limit_ns: Option<u64>,
    /// Bytes of each output stream to keep; the rest is read, discarded and counted.
    pub output_limit: u64,
    /// Keep the last bytes of each output stream instead of the first; ignored for output that is sent as it comes.
    #[serde(default)]
    pub tail: bool,
    /// Send output as it comes instead of after the program's end (sending it afterwards does not disturb the program).
    #[serde(default)]
    pub stream: bool,
    /// Run on a terminal of this size; output is one stream (1), sent as it comes.
    #[serde(default)]
    pub pty: Option<Winsize>,
    /// Performance events to count while it runs.
    #[serde(default)]
    pub counters: Vec<Event>,
    /// Where its standard output goes; standard error is always returned.
    #[serde(default)]
    pub stdout: StandardOutput,
}

/// Where a program's standard output goes. Ignored if the program has a terminal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandardOutput {
    /// It is returned, up to [`Exec::output_limit`].
    #[default]
    Pipe,
    /// It goes to `/dev/null`, uncounted.
    Null,
}

/// A performance event, by the numbers of `perf_event_open(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its type: hardware, software, cache, …
    pub kind: u32,
    /// Its number within that type.
    pub config: u64,
    /// Do not count in the kernel.
    pub user_only: bool,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Winsize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// A signal for the process group of a running call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// Signal number.
    pub signal: i32,
}

/// A command to look up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lookup {
    /// The command's first word, `argv[0]`.
    pub name: ByteBuf,
    /// The `PATH` to search.
    #[serde(default)]
    pub path: Option<ByteBuf>,
    /// Directory that relative names start from.
    #[serde(default)]
    pub cwd: Option<ByteBuf>,
}

/// The reply to a call that succeeded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer<T> {
    /// Number of the request.
    pub id: u64,
    /// The result.
    pub ok: T,
}

/// The reply to a call that failed; the agent continues.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// Number of the request; 0 if it could not be decoded.
    pub id: u64,
    /// The reason.
    pub error: Failure,
}

/// A part of an output stream or file of the call `id`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chunk<'a> {
    /// Number of the request.
    pub id: u64,
    /// 1 for standard output or a file's contents, 2 for standard error.
    pub stream: u8,
    /// The bytes.
    #[serde(borrow, with = "serde_bytes")]
    pub data: &'a [u8],
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of failure.
    pub kind: Kind,
    /// Message for a human.
    pub message: String,
    /// The system's error number, if it was a system call that failed.
    #[serde(default)]
    pub errno: Option<i32>,
}

/// Kinds of failures that a controller distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The command or file does not exist.
    NotFound,
    /// Access to the command or file is denied.
    PermissionDenied,
    /// The command is not a program for this machine.
    BadFormat,
    /// The working directory cannot be entered.
    BadCwd,
    /// The request is invalid.
    BadRequest,
    /// The request was sent ahead, and another process has the machine's lock.
    InUse,
    /// A filesystem or device refuses direct I/O.
    NoDirectIo,
    /// A system call failed, see `errno`.
    Os,
}

/// Identifies the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the agent.
    pub protocol: u32,
    /// Version of the agent.
    pub version: String,
    /// Machine as `uname -m`.
    pub arch: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Process id; 1 in a guest.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Host name.
    pub hostname: String,
    /// Identifies one boot of one kernel.
    pub boot_id: String,
    /// The clocks at this moment.
    pub clock: Clock,
    /// The most bytes that the controller may send ahead of an acknowledgement; unlimited if absent.
    #[serde(default)]
    pub window: Option<u32>,
    /// Steps of the boot and when each ended on the monotonic clock, in order.
    pub phases: Vec<Phase>,
}

/// The end of one step of the boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// When it ended, `CLOCK_MONOTONIC`.
    pub at_ns: u64,
}

/// The clocks of the machine, read one right after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// `CLOCK_MONOTONIC`.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`.
    pub realtime_ns: u64,
    /// `CLOCK_BOOTTIME`.
    pub boottime_ns: u64,
}

/// How a program ended and what it used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exited {
    /// Exit status, if it exited.
    pub status: Option<i32>,
    /// Signal, if one killed it.
    pub signal: Option<i32>,
    /// Whether it was killed at its time limit.
    pub timed_out: bool,
    /// Whether the kernel killed a process for lack of memory during the run.
    pub oom_killed: bool,
    /// Its process id.
    pub pid: u32,
    /// `CLOCK_MONOTONIC` right before the process was created.
    pub started_ns: u64,
    /// `CLOCK_MONOTONIC` right after its end was noticed.
    pub ended_ns: u64,
    /// Processor time in user mode, including children that were waited for.
    pub user_us: u64,
    /// Processor time in the kernel.
    pub system_us: u64,
    /// Largest resident set size of any of its processes.
    pub max_rss_kib: u64,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
    /// Number of voluntary context switches.
    pub voluntary_switches: u64,
    /// Number of involuntary context switches.
    pub involuntary_switches: u64,
    /// Bytes of standard output discarded past the limit.
    pub stdout_discarded: u64,
    /// Bytes of standard error discarded past the limit.
    pub stderr_discarded: u64,
    /// Number of processes that it left behind and that were killed.
    pub leftovers: u32,
    /// The counts of its performance events, in order; a negative error number for an event that could not be opened.
    #[serde(default)]
    pub counted: Vec<i64>,
}

/// Location of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Which {
    /// Absolute path.
    pub path: ByteBuf,
}

/// Success without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// Facts about the machine, as its kernel reports them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Model of the first processor.
    pub cpu_model: String,
    /// Features of the first processor.
    pub cpu_flags: Vec<String>,
    /// Processors online.
    pub cpus_online: u32,
    /// `MemTotal`.
    pub mem_total_kib: u64,
    /// Command line of the kernel.
    pub cmdline: String,
    /// `/proc/self/mounts`.
    pub mounts: String,
    /// Clock source in use; empty if the kernel does not report it.
    pub clocksource: String,
    /// Hypervisor or vendor of the machine, as the kernel or the firmware reports it; empty if unknown.
    pub hypervisor: String,
}
