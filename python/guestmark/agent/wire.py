"""Messages between the control plane and the agent, made from crates/wire by tools/wire.py."""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

A = TypeVar("A")
R = TypeVar("R")


class Call(msgspec.Struct, Generic[A, R], frozen=True):
    """A call by its name, with the types of its arguments and its answer (None: it has none)."""

    name: str
    arguments: type[A]
    answer: type[R]


PROTOCOL = 1
MAX_CHUNK = 1 << 20
MAX_FRAME = MAX_CHUNK + (64 << 10)
ACKNOWLEDGEMENT = 1 << 31
MAX_OUTPUT = 64 << 20
MAX_HOLDER = 4096


# The system-call mix, in the order in which it is measured, after the empty timed part.
NOTHING = "nothing"
COMPUTE = "compute"
SYSTEM_CALLS = (
    "null",
    "read",
    "write",
    "stat",
    "open",
    "futex",
    "signal",
    "mmap",
    "fault",
    "pipe",
    "switch",
    "exec",
)


class StandardOutput(StrEnum):
    """Where a program's standard output goes. Ignored if the program has a terminal."""

    PIPE = "pipe"  # It is returned, up to [`Exec::output_limit`].
    NULL = "null"  # It goes to `/dev/null`, uncounted.


class Kind(StrEnum):
    """Kinds of failures that a controller distinguishes."""

    NOT_FOUND = "not_found"  # The command or file does not exist.
    PERMISSION_DENIED = "permission_denied"  # Access to the command or file is denied.
    BAD_FORMAT = "bad_format"  # The command is not a program for this machine.
    BAD_CWD = "bad_cwd"  # The working directory cannot be entered.
    BAD_REQUEST = "bad_request"  # The request is invalid.
    IN_USE = "in_use"  # The request was sent ahead, and another process has the machine's lock.
    NO_DIRECT_IO = "no_direct_io"  # A filesystem or device refuses direct I/O.
    OS = "os"  # A system call failed, see `errno`.


class Pattern(StrEnum):
    """What to fill a file with."""

    ZERO = "zero"  # Bytes of value 0.
    ONE = "one"  # Bytes of value 1.
    RANDOM = "random"  # Pseudo-random bytes, the same every time; no two 4096-byte blocks are equal.


class TrafficTest(StrEnum):
    """What is measured between the client and its peer, the server; the client opens every connection."""

    UPLOAD = "upload"  # Streams to the peer.
    DOWNLOAD = "download"  # Streams from the peer.
    REQUEST = "request"  # Requests and responses on one connection, one at a time.
    TRANSACTION = (
        "transaction"  # A connection for each request: connect, request, response, and the peer closes.
    )
    CONNECT = "connect"  # Connections that the peer closes without a byte.
    DATAGRAMS_UP = "datagrams_up"  # Datagrams to the peer, as many as the client can send.
    DATAGRAMS_DOWN = "datagrams_down"  # Datagrams from the peer, as many as it can send.
    REQUEST_IN_UPLOAD = "request_in_upload"  # Requests while streams go to the peer.
    REQUEST_IN_DOWNLOAD = "request_in_download"  # Requests while streams come from the peer.
    REQUEST_IN_BOTH = "request_in_both"  # Requests while streams go both ways.


class Exec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A program to run in a session of its own."""

    argv: tuple[bytes, ...]
    env: tuple[bytes, ...] | None = None
    cwd: bytes | None = None
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None
    stdin: bool = False
    time_limit_ns: int | None = None
    output_limit: int
    tail: bool = False
    stream: bool = False
    pty: Winsize | None = None
    counters: tuple[Event, ...] = ()
    stdout: StandardOutput = StandardOutput.PIPE


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A performance event, by the numbers of `perf_event_open(2)`."""

    kind: int
    config: int
    user_only: bool


class Winsize(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Size of a terminal in characters."""

    rows: int
    cols: int


class Kill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A signal for the process group of a running call."""

    signal: int


class Lookup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command to look up."""

    name: bytes
    path: bytes | None = None
    cwd: bytes | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a call failed."""

    kind: Kind
    message: str
    errno: int | None = None


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identifies the agent."""

    protocol: int
    version: str
    arch: str
    kernel: str
    pid: int
    uid: int
    hostname: str
    boot_id: str
    clock: Clock
    window: int | None = None
    phases: tuple[Phase, ...]


class Phase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of one step of the boot."""

    name: str
    at_ns: int


class Clock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The clocks of the machine, read one right after the other."""

    monotonic_ns: int
    realtime_ns: int
    boottime_ns: int


class Exited(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a program ended and what it used."""

    status: int | None
    signal: int | None
    timed_out: bool
    oom_killed: bool
    pid: int
    started_ns: int
    ended_ns: int
    user_us: int
    system_us: int
    max_rss_kib: int
    minor_faults: int
    major_faults: int
    voluntary_switches: int
    involuntary_switches: int
    stdout_discarded: int
    stderr_discarded: int
    leftovers: int
    counted: tuple[int, ...] = ()


class Which(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Location of a command."""

    path: bytes


class Done(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Success without a result."""


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about the machine, as its kernel reports them."""

    cpu_model: str
    cpu_flags: tuple[str, ...]
    cpus_online: int
    mem_total_kib: int
    cmdline: str
    mounts: str
    clocksource: str
    hypervisor: str


class TransferOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a call transfers data."""

    direct: bool
    block_size: int
    in_flight: int


class WriteStream(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file to write the data that follows to."""

    path: bytes
    flush: bool


class Copy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file or device to copy into a file."""

    source: bytes
    destination: bytes
    how: TransferOptions
    length: int | None = None
    preallocate: bool
    flush: bool


class Fill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file to fill with a pattern."""

    path: bytes
    size: int
    pattern: Pattern
    how: TransferOptions
    preallocate: bool
    flush: bool


class ReadBack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file or device to read."""

    path: bytes
    how: TransferOptions
    length: int | None = None


class Extent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file or device, or the beginning of one, to compute a checksum of."""

    path: bytes
    length: int | None = None


class PatternExtent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pattern to compute a checksum of."""

    pattern: Pattern
    size: int


class Transferred(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a transfer; times are `CLOCK_MONOTONIC`."""

    bytes: int
    started_ns: int
    moved_ns: int
    ended_ns: int
    user_us: int
    system_us: int
    direct: bool
    preallocated: bool
    dirtied_bytes: int


class Checksum(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A 128-bit XXH3 checksum."""

    xxh3: str
    size: int


class Flushed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long flushing took."""

    fsync_ns: int
    syncfs_ns: int


class Path(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file."""

    path: bytes


class Mount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A filesystem to mount, as `mount(2)`."""

    source: bytes
    target: bytes
    fstype: str
    options: str = ""


class Umount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A filesystem to unmount."""

    target: bytes
    lazy: bool = False


class ReadFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a file to read."""

    path: bytes
    offset: int = 0
    limit: int


class WriteFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file to write."""

    path: bytes
    mode: int
    uid: int | None = None
    gid: int | None = None
    fsync: bool = False


class Mkdir(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A directory to create."""

    path: bytes
    mode: int
    parents: bool = False


class Remove(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file or directory to remove."""

    path: bytes
    recursive: bool = False


class Digest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Digest of a file."""

    sha256: str
    size: int


class Tree(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Digest of everything that a program can see of the files below a directory."""

    xxh3: bytes


class Count(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Number of bytes transferred, and when the agent handled the first and the last."""

    bytes: int
    started_ns: int
    ended_ns: int


class Stat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Metadata of a file, as `stat(2)`."""

    mode: int
    uid: int
    gid: int
    size: int
    blocks: int
    mtime_ns: int


class Statfs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Size of a filesystem."""

    magic: int
    block_size: int
    blocks: int
    free: int
    available: int


class Lock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Takes the machine's lock, which the agent then holds until it exits; never waits."""

    holder: bytes


class Locked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of the attempt to take the lock."""

    held: bool
    path: bytes
    holder: bytes


class Touch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Allocates this much memory and writes to each page of it once."""

    bytes: int


class Touched(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The memory was touched; the agent keeps it until it exits."""

    pages: int
    faults: int
    started_ns: int
    ended_ns: int


class Forked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A child of the agent, which executes no other program, has exited; all times are `CLOCK_MONOTONIC`."""

    asked_ns: int
    made_ns: int
    first_ns: int
    answered_ns: int
    touched_ns: int
    gone_ns: int
    pages: int


class LinkState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A network interface, with the settings of its namespace that affect it."""

    name: str
    index: int
    mac: str
    mtu: int
    up: bool
    carrier: bool
    kind: str
    other_end: int | None = None
    master: int | None = None
    addresses: tuple[str, ...]
    driver: str
    bus: str
    offloads: tuple[str, ...]
    fixed: tuple[str, ...]
    virtio: str
    tx_queues: int
    rx_queues: int
    channels: int | None = None
    most_channels: int | None = None
    tx_ring: int | None = None
    rx_ring: int | None = None
    interrupts: tuple[str, ...]
    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int
    congestion_control: str
    ipv6: bool
    routed: bool
    neighbours: tuple[Neighbour, ...]


class VsockState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A guest's device for sockets to its hypervisor's kernel."""

    cid: int
    driver: str
    virtio: str


class Neighbour(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A neighbour on a link."""

    address: str
    mac: str


class NetworkProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process in a network, or one that is meant to carry its traffic."""

    pid: int
    program: str
    processors: str
    in_namespace: bool
    holds_tap: bool
    is_end: bool
    is_joiner: bool
    worked_ns: int
    vhost_ns: int | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What will be timed next."""

    name: str


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long one operation takes."""

    name: str
    operations: int
    batches: int
    elapsed_ns: int
    cpu_ns: int
    median_ns: float
    lowest_ns: float
    loop_ns: float
    clock_ns: float


class TrafficTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One test to do."""

    test: TrafficTest
    time_ns: int
    flows: int = 0
    request: int = 0
    response: int = 0
    size: int = 0


class TrafficPorts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the server listens."""

    main: int
    bare: int


class TrafficResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one task. Values that do not apply to its test are absent."""

    elapsed_ns: int
    cpu_ns: int
    peer_cpu_ns: int
    flows: tuple[TrafficFlow, ...] = ()
    times: TrafficTimes | None = None
    datagrams: TrafficDatagrams | None = None


class TrafficFlow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stream, counted where it arrives."""

    upload: bool
    bytes: int
    elapsed_ns: int
    sender: SenderTcpInfo | None = None


class SenderTcpInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`TCP_INFO` of the sender's end of a TCP connection, since the connection's start."""

    congestion_control: str
    retransmits: int
    rtt_us: int
    window: int
    segment: int
    busy_us: int | None = None
    receiver_us: int | None = None
    buffer_us: int | None = None
    unsent: int | None = None


class TrafficTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Times of a repeated action. Quantiles are at most 0.4 % too high."""

    count: int
    elapsed_ns: int
    mean_ns: int
    lowest_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    p999_ns: int
    highest_ns: int


class TrafficDatagrams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Datagrams in one direction."""

    sent: int
    received: int
    elapsed_ns: int
    overflowed: int | None = None


class SyscallEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of one frame."""

    ready: Ready | None = None
    measured: Measured | None = None


class TrafficEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a frame that the program sends."""

    listening: TrafficPorts | None = None
    ready: TrafficTask | None = None
    measured: TrafficResult | None = None


# Identifies the agent: `Hello`.
HELLO: Call[None, Hello] = Call("hello", type(None), Hello)
# Reads the clocks with as little overhead as possible: `Clock`.
CLOCK: Call[None, Clock] = Call("clock", type(None), Clock)
# Runs a program: `Exited`, preceded by chunks of streams 1 and 2.
EXEC: Call[Exec, Exited] = Call("exec", Exec, Exited)
# Resolves a command as `exec` would: `Which`.
WHICH: Call[Lookup, Which] = Call("which", Lookup, Which)
# Computes the digest of a file: `Digest`.
SHA256: Call[Path, Digest] = Call("sha256", Path, Digest)
# Computes the digest of the files below a directory without their times: `Tree`.
TREE: Call[Path, Tree] = Call("tree", Path, Tree)
# Mounts a filesystem: `Done`.
MOUNT: Call[Mount, Done] = Call("mount", Mount, Done)
# Unmounts: `Done`.
UMOUNT: Call[Umount, Done] = Call("umount", Umount, Done)
# Writes all caches back: `Done`.
SYNC: Call[None, Done] = Call("sync", type(None), Done)
# Sends the contents of a file as chunks of stream 1, then `Count`.
READ_FILE: Call[ReadFile, Count] = Call("read_file", ReadFile, Count)
# Replaces a file by the data that follows: `Count`.
WRITE_FILE: Call[WriteFile, Count] = Call("write_file", WriteFile, Count)
# Discards the data that follows (measures the channel): `Count`.
SINK: Call[None, Count] = Call("sink", type(None), Count)
# Reads the metadata of a file, following symbolic links: `Stat`.
STAT: Call[Path, Stat] = Call("stat", Path, Stat)
# Reads the size of a filesystem: `Statfs`.
STATFS: Call[Path, Statfs] = Call("statfs", Path, Statfs)
# Creates a directory: `Done`.
MKDIR: Call[Mkdir, Done] = Call("mkdir", Mkdir, Done)
# Removes a file, or with `recursive` a whole directory: `Done`.
REMOVE: Call[Remove, Done] = Call("remove", Remove, Done)
# Describes the machine: `Facts`.
FACTS: Call[None, Facts] = Call("facts", type(None), Facts)
# Asks for exclusive use of the machine: `Locked`.
LOCK: Call[Lock, Locked] = Call("lock", Lock, Locked)
# Allocates memory and writes to each page of it once: `Touched`.
TOUCH: Call[Touch, Touched] = Call("touch", Touch, Touched)
# Does the same in a child of the agent, which then exits: `Forked`.
FORK: Call[Touch, Forked] = Call("fork", Touch, Forked)
# Writes the data that follows to a file: `Transferred`.
WRITE_STREAM: Call[WriteStream, Transferred] = Call("write_stream", WriteStream, Transferred)
# Copies a file or device into a file: `Transferred`.
COPY: Call[Copy, Transferred] = Call("copy", Copy, Transferred)
# Fills a file with a pattern: `Transferred`.
FILL: Call[Fill, Transferred] = Call("fill", Fill, Transferred)
# Reads a file or device and discards the data: `Transferred`.
READ_BACK: Call[ReadBack, Transferred] = Call("read_back", ReadBack, Transferred)
# Computes the checksum of a file or device: `Checksum`.
CHECKSUM: Call[Extent, Checksum] = Call("checksum", Extent, Checksum)
# Computes the checksum that a file filled with a pattern must have: `Checksum`.
CHECKSUM_OF_PATTERN: Call[PatternExtent, Checksum] = Call("checksum_of_pattern", PatternExtent, Checksum)
# Flushes a file and its filesystem: `Flushed`.
FLUSH: Call[Path, Flushed] = Call("flush", Path, Flushed)
# Flushes everything and drops the page cache: `Done`.
DROP_CACHES: Call[None, Done] = Call("drop_caches", type(None), Done)
# Ends this conversation and everything it started; on a channel for several, the `Hello` of the next one follows.
LEAVE: Call[None, Hello] = Call("leave", type(None), Hello)
# Flushes everything, replies `Done` and powers the machine off; an agent that is a plain process exits instead.
POWER_OFF: Call[None, Done] = Call("power_off", type(None), Done)
# Bytes for the standard input, file or sink of the call.
DATA: Call[bytes, None] = Call("data", bytes, type(None))
# No more bytes will follow.
END: Call[None, None] = Call("end", type(None), type(None))
# Sends a signal to the process group of the call.
KILL: Call[Kill, None] = Call("kill", Kill, type(None))
# New size of the terminal of the call.
WINSIZE: Call[Winsize, None] = Call("winsize", Winsize, type(None))
