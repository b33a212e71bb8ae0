"""A thread that answers on one socket while a context lasts."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

_POLL_S = 0.2
_END_S = 2.0


class Answering(ABC):
    """Serves `_socket`, which wakes up often enough to see that the context is `_closing`."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self._socket = sock
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._socket.settimeout(_POLL_S)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._thread.join(_END_S)

    @abstractmethod
    def _serve(self) -> None:
        """What the thread does."""
