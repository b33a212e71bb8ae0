"""Calls that move large amounts of data on the machine, timed there and converted to the host's clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from guestmark.agent import clocks, wire
from guestmark.agent.conversation import Conversation
from guestmark.agent.wire import A, Checksum, Flushed, Pattern, Transferred

# Bytes of one request of direct I/O.
DIRECT_BLOCK = 8 << 20
# Concurrent requests: one is read while the other is written.
IN_FLIGHT = 2
BUFFERED_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class MoveResult:
    """Bytes that were moved, and flushed if requested. Times are in seconds.

    `wall_s` is on the host's monotonic clock, from taking the call to the end of the flush, uncertain by
    `wall_error_s`. `guest_wall_s` is on the machine's own clock; `flush_s` is the part of it spent in fsync and syncfs.
    `user_s` and `system_s` are the agent's processor time. `direct` tells whether O_DIRECT was used, `dirtied_bytes`
    how much went through the machine's page cache nevertheless (of the whole machine; exact to some pages).
    """

    bytes: int
    wall_s: float
    wall_error_s: float
    guest_wall_s: float
    clock_warning: str
    flush_s: float
    user_s: float
    system_s: float
    direct: bool
    preallocated: bool
    dirtied_bytes: int


class BulkCalls(Conversation):
    """The part of `Agent` that moves bulk data."""

    def write_stream(
        self, path: str, data: bytes | Iterable[bytes], *, flush: bool = True, timeout_s: float
    ) -> MoveResult:
        """Sends bytes through the channel into a file that is created or replaced; then fsync and syncfs.

        `send_to_sink` measures the channel alone, `fill` the disk alone. Raises `CallError` (`errno` ENOSPC, …).
        """
        file = wire.WriteStream(path=os.fsencode(path), flush=flush)
        return self._move_bytes(wire.WRITE_STREAM, file, timeout_s, data)

    def copy(
        self,
        source: str,
        destination: str,
        *,
        direct: bool = False,
        block_size: int | None = None,
        in_flight: int = IN_FLIGHT,
        length: int | None = None,
        preallocate: bool = True,
        flush: bool = True,
        timeout_s: float,
    ) -> MoveResult:
        """Copies a file or device into a file that is created or replaced.

        Buffered copies move one block after the other, as dd does. With `direct`, both sides use O_DIRECT: `in_flight`
        requests at once if the filesystem can preallocate, else several reads ahead of one write. Nothing falls back:
        if O_DIRECT is refused, a `CallError` names the side. With `length` None everything is copied; a shorter
        source is an error.
        """
        copy = wire.Copy(
            source=os.fsencode(source),
            destination=os.fsencode(destination),
            how=_choose_method(direct, block_size, in_flight),
            length=length,
            preallocate=preallocate,
            flush=flush,
        )
        return self._move_bytes(wire.COPY, copy, timeout_s)

    def fill(
        self,
        path: str,
        size: int,
        pattern: Pattern = Pattern.ZERO,
        *,
        direct: bool = False,
        block_size: int | None = None,
        in_flight: int = IN_FLIGHT,
        preallocate: bool = False,
        flush: bool = True,
        timeout_s: float,
    ) -> MoveResult:
        """Writes `size` bytes of a pattern into a file that is created or replaced; none of them is sent."""
        fill = wire.Fill(
            path=os.fsencode(path),
            size=size,
            pattern=pattern,
            how=_choose_method(direct, block_size, in_flight),
            preallocate=preallocate,
            flush=flush,
        )
        return self._move_bytes(wire.FILL, fill, timeout_s)

    def read_back(
        self,
        path: str,
        *,
        direct: bool = False,
        block_size: int | None = None,
        in_flight: int = IN_FLIGHT,
        length: int | None = None,
        timeout_s: float,
    ) -> MoveResult:
        """Reads a file or device and discards the bytes. Caches are left as they are; see `drop_caches`."""
        file = wire.ReadBack(
            path=os.fsencode(path), how=_choose_method(direct, block_size, in_flight), length=length
        )
        return self._move_bytes(wire.READ_BACK, file, timeout_s)

    def checksum(self, path: str, *, length: int | None = None, timeout_s: float) -> Checksum:
        """Returns the digest of a file or device, or of its first `length` bytes; a shorter one is an error."""
        extent = wire.Extent(path=os.fsencode(path), length=length)
        return self._call(wire.CHECKSUM, extent, timeout_s)

    def compute_pattern_checksum(self, pattern: Pattern, size: int, *, timeout_s: float = 120.0) -> Checksum:
        """Returns what `checksum` would return for a file that `fill` wrote, computed from the pattern alone."""
        return self._call(wire.CHECKSUM_OF_PATTERN, wire.PatternExtent(pattern=pattern, size=size), timeout_s)

    def flush(self, path: str, *, timeout_s: float = 600.0) -> Flushed:
        """Calls fsync on a file or directory, then syncfs on its filesystem."""
        return self._call(wire.FLUSH, wire.Path(path=os.fsencode(path)), timeout_s)

    def drop_caches(self, *, timeout_s: float = 60.0) -> None:
        """Syncs and drops the machine's page cache, so that the next read comes from the disk. Needs root there."""
        self._call(wire.DROP_CACHES, None, timeout_s)

    def _move_bytes(
        self,
        asked: wire.Call[A, Transferred],
        arguments: A,
        timeout_s: float,
        data: bytes | Iterable[bytes] | None = None,
    ) -> MoveResult:
        def call() -> Transferred:
            return self._call(asked, arguments, timeout_s, data=data or b"", streaming=data is not None)

        self.hello()
        done, wall = self._time_call(call)
        return MoveResult(
            bytes=done.bytes,
            wall_s=wall.seconds,
            wall_error_s=wall.error_s,
            guest_wall_s=(done.ended_ns - done.started_ns) / 1e9,
            clock_warning=wall.warning,
            flush_s=(done.ended_ns - done.moved_ns) / 1e9,
            user_s=done.user_us / 1e6,
            system_s=done.system_us / 1e6,
            direct=done.direct,
            preallocated=done.preallocated,
            dirtied_bytes=done.dirtied_bytes,
        )

    def _time_call(self, call: Callable[[], Transferred]) -> tuple[Transferred, clocks.HostWall]:
        """Makes a call between pings, as `exec` does."""
        before = self._ping_if_needed()
        sent_ns = time.monotonic_ns()
        done = call()
        received_ns = time.monotonic_ns()
        return done, self._relate_duration((done.started_ns, done.ended_ns), before, (sent_ns, received_ns))


def _choose_method(direct: bool, block_size: int | None, in_flight: int) -> wire.TransferOptions:
    """Returns how bytes are moved. Raises `ValueError` for impossible values."""
    size = block_size or (DIRECT_BLOCK if direct else BUFFERED_BLOCK)
    if not 512 <= size <= 64 << 20 or (direct and size % 4096):
        raise ValueError(
            f"block_size {size} must be between 512 bytes and 64 MiB, and for direct I/O a multiple of 4096"
        )
    if not 1 <= in_flight <= 64:
        raise ValueError(f"in_flight {in_flight} must be between 1 and 64")
    return wire.TransferOptions(direct=direct, block_size=size, in_flight=in_flight)
