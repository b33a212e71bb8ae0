"""A relay for TCP connections, which share one queue in each direction; a full queue takes `queue_s` to drain."""

from __future__ import annotations

import collections
import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

HERE = "127.0.0.1"
_PIECE = 1448


@dataclass
class _Direction:
    """One queue, which `rate` bytes leave per second. Bytes that do not fit stay with their sender."""

    rate: float  # bytes a second
    limit: int
    pieces: collections.deque[tuple[socket.socket, bytes]] = field(default_factory=collections.deque)
    size: int = 0
    free_at: float = 0.0

    def take(self, target: socket.socket, piece: bytes) -> None:
        if not self.pieces:
            self.free_at = max(self.free_at, time.monotonic())
        self.pieces.append((target, piece))
        self.size += len(piece)

    def drain(self) -> None:
        """Pass on the bytes that are due; an empty piece is the end of a stream."""
        while self.pieces and self.free_at <= time.monotonic():
            target, piece = self.pieces.popleft()
            self.size -= len(piece)
            self.free_at += len(piece) / self.rate
            with contextlib.suppress(OSError):
                if piece:
                    target.sendall(piece)
                else:
                    target.shutdown(socket.SHUT_WR)


class _Relay:
    def __init__(self, ways: dict[socket.socket, int], rate: float, queue_s: float) -> None:
        self.ways = ways
        limit = int(rate * queue_s)
        self.directions = (_Direction(rate, limit), _Direction(rate, limit))
        self.targets: dict[socket.socket, tuple[socket.socket, _Direction]] = {}
        self.ended = False

    def accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        server = socket.create_connection((HERE, self.ways[listener]))
        for ours, other, direction in (
            (client, server, self.directions[0]),
            (server, client, self.directions[1]),
        ):
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.targets[ours] = (other, direction)

    def run(self) -> None:
        selector = selectors.DefaultSelector()
        for listener in self.ways:
            selector.register(listener, selectors.EVENT_READ)
        watched: set[socket.socket] = set()
        while not self.ended:
            for direction in self.directions:
                direction.drain()
            # Nothing is read for a full queue, so its senders wait.
            for source, (_, direction) in list(self.targets.items()):
                wanted = direction.size < direction.limit
                if wanted and source not in watched:
                    selector.register(source, selectors.EVENT_READ)
                    watched.add(source)
                elif not wanted and source in watched:
                    selector.unregister(source)
                    watched.discard(source)
            for key, _ in selector.select(0.0002):
                ready = key.fileobj
                assert isinstance(ready, socket.socket)
                if ready in self.ways:
                    self.accept(ready)
                elif ready in self.targets:
                    self._read(ready, selector, watched)

    def _read(
        self, source: socket.socket, selector: selectors.BaseSelector, watched: set[socket.socket]
    ) -> None:
        target, direction = self.targets[source]
        try:
            piece = source.recv(_PIECE)
        except OSError:
            # Its sender must learn at once, by a reset, that nobody reads any more.
            if target in watched:
                selector.unregister(target)
                watched.discard(target)
            with contextlib.suppress(OSError):
                target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.targets.pop(target, None)
            target.close()
            piece = b""
        direction.take(target, piece)
        if not piece:
            selector.unregister(source)
            watched.discard(source)
            self.targets.pop(source, None)


@contextlib.contextmanager
def standing_queue(*ports: int, rate: float, queue_s: float) -> Iterator[list[int]]:
    """Relay connections to these ports of this host; yields the relay's ports. `rate` is in bytes a second."""
    with contextlib.ExitStack() as stack:
        ways = {}
        for port in ports:
            listener = stack.enter_context(socket.create_server((HERE, 0)))
            ways[listener] = port
        relay = _Relay(ways, rate, queue_s)
        thread = threading.Thread(target=relay.run)
        thread.start()
        try:
            yield [listener.getsockname()[1] for listener in ways]
        finally:
            relay.ended = True
            thread.join(10)
