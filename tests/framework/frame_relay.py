"""A path between the machine's own network stack and the device of another stack; it delays and loses packets.

Frames are copied between a new device, which the machine uses, and a device that another stack uses, so that each end
can be captured. Both are in the network namespace of the calling thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator

_TUNSETIFF, _TAP_NO_PI = 0x400454CA, 0x1002
_ALL, _OUTGOING, _MOST = 0x0003, 4, 65_536
_LARGE = 200  # bytes; smaller frames carry no data, and are never lost


@contextlib.contextmanager
def relaying(near: str, far: str, way_s: float = 0.0, loss: float = 0.0) -> Iterator[None]:
    """Create the device `near`, and connect it with `far` for the context.

    Frames take `way_s`; `loss` is the share of large frames from `far` that are lost.
    """
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH", near.encode(), _TAP_NO_PI))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL)) as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        wire.bind((far, _ALL))
        ended = threading.Event()
        copying = threading.Thread(target=_copy, args=(tap, wire, way_s, loss, ended))
        copying.start()
        try:
            yield
        finally:
            ended.set()
            copying.join()
            os.close(tap)


def _copy(tap: int, wire: socket.socket, way_s: float, loss: float, ended: threading.Event) -> None:
    due: list[tuple[float, int, bool, bytes]] = []
    number, chance = 0, random.Random(1)
    while not ended.is_set():
        wait = max(0.0, due[0][0] - time.monotonic()) if due else 0.05
        for ready in select.select([tap, wire.fileno()], [], [], wait)[0]:
            from_far = ready != tap
            if from_far:
                frame, (_, _, kind, _, _) = wire.recvfrom(_MOST)
                if kind == _OUTGOING or (len(frame) > _LARGE and chance.random() < loss):
                    continue
            else:
                frame = os.read(tap, _MOST)
            number += 1
            heapq.heappush(due, (time.monotonic() + way_s, number, from_far, frame))
        while due and due[0][0] <= time.monotonic():
            _, _, to_near, frame = heapq.heappop(due)
            with contextlib.suppress(OSError):  # a device that is about to go
                if to_near:
                    os.write(tap, frame)
                else:
                    wire.send(frame)
