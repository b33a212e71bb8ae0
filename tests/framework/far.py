"""A server far away: a relay on loopback that delivers everything later, and whose connections can be cut."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

_PIECE = 64 << 10


@dataclass(slots=True)
class Relay:
    """A relay: whoever connects to `port` reaches the server behind it, `one_way_s` later in each direction."""

    port: int
    one_way_s: float
    turns: int = 0  # how often a client sent something after it had received something
    _heard: bool = False
    _sockets: list[socket.socket] = field(default_factory=list)

    def cut(self) -> None:
        """End all connections at once, and drop what is in flight."""
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def carry(self, source: socket.socket, target: socket.socket, *, to_server: bool) -> None:
        """Carry one direction of one connection, until it ends."""
        waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._deliver, args=(waiting, target), daemon=True).start()
        data = b"."
        while data:
            try:
                data = source.recv(_PIECE)
            except OSError:
                data = b""
            self.turns += to_server and self._heard
            self._heard = not to_server
            waiting.put((time.monotonic() + self.one_way_s, data))

    def _deliver(self, waiting: queue.SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)
            except OSError:
                return


@contextlib.contextmanager
def relay(server: tuple[str, int], one_way_s: float = 0.0) -> Iterator[Relay]:
    """Yield a relay to that server; its connections end with it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        made = Relay(listening.getsockname()[1], one_way_s)

        def accept() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                    there = socket.create_connection(server)
                except OSError:
                    return
                for end in (client, there):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    made._sockets.append(end)
                for ends, to_server in (((client, there), True), ((there, client), False)):
                    threading.Thread(
                        target=made.carry, args=ends, kwargs={"to_server": to_server}, daemon=True
                    ).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield made
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            made.cut()
            for end in made._sockets:
                end.close()
