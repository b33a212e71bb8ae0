"""A synchronous client for QEMU's monitor: a thin wrapper around `qemu.qmp`, which uses asyncio."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from qemu.qmp import QMPClient, QMPError
from qemu.qmp.qmp_client import ExecuteError

from guestmark.core.cause import Speaker, classify_message
from guestmark.core.errors import MachineError

_DEADLINE_S = 10.0
# Exceptions that `qemu.qmp` raises for malformed answers, as from a QEMU that a guest has taken over.
_NO_ANSWERS = (RecursionError, ValueError, TypeError, KeyError, MemoryError)


@contextlib.contextmanager
def require_shape() -> Iterator[None]:
    """Raises `MachineError` if code inside the context reads an answer of unexpected structure."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MachineError(f"QEMU's monitor gave a malformed answer ({type(error).__name__})") from error


class UnknownCommandError(MachineError):
    """The monitor of this QEMU does not have the command."""


class Monitor:
    """One QMP connection over a socket whose other end QEMU has inherited, so it needs no file."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._runner: asyncio.Runner | None = None
        self._client: Any = None

    def execute(
        self, command: str, arguments: Mapping[str, Any] | None = None, timeout_s: float = _DEADLINE_S
    ) -> Any:
        """Runs one command and returns its answer.

        Raises `MachineError` if QEMU reports an error, has ended or does not answer, `UnknownCommandError` if it
        does not have the command.
        """
        try:
            if self._client is None:
                self._connect(timeout_s)
            return self._wait_for_answer(self._client.execute(command, dict(arguments or {})), timeout_s)
        except TimeoutError:
            raise MachineError(f"QEMU's monitor did not answer {command} within {timeout_s:g} s") from None
        except (QMPError, OSError, EOFError, *_NO_ANSWERS) as error:
            if isinstance(error, ExecuteError) and error.error_class == "CommandNotFound":
                raise UnknownCommandError(f"this QEMU has no command {command}") from error
            raise MachineError(
                f"the command {command} of QEMU's monitor failed: {error}",
                cause=classify_message(Speaker.QEMU, str(error)).cause,
            ) from error

    def send_descriptor(self, name: str, descriptor: int) -> None:
        """Sends QEMU a copy of a descriptor, with `name` as its name in commands. Raises `MachineError`."""
        # A descriptor needs a connection, which the first command opens.
        self.execute("query-status")
        try:
            self._client.send_fd_scm(descriptor)
        except (OSError, ValueError) as error:
            raise MachineError(f"no descriptor can be passed to QEMU's monitor: {error}") from error
        self.execute("getfd", {"fdname": name})

    def close(self) -> None:
        """Closes the connection; QEMU continues to run. May be called twice."""
        if self._runner is not None:
            # QEMU may have exited already, which `qemu.qmp` reports by various exceptions.
            with contextlib.suppress(Exception):
                self._wait_for_answer(self._client.disconnect(), 1.0)
            self._runner.close()
            self._runner = None
        self._client = None
        self._socket.close()

    def _connect(self, timeout_s: float) -> None:
        self._runner = asyncio.Runner()
        self._client = QMPClient("guestmark")
        self._client.logger.setLevel("CRITICAL")
        # Events are never read, so their queue would grow.
        self._client.events.event_filter = lambda _event: False
        self._wait_for_answer(self._client.connect(self._socket), timeout_s)

    def _wait_for_answer(self, awaitable: Any, timeout_s: float) -> Any:
        assert self._runner is not None

        async def call_with_deadline() -> Any:
            return await asyncio.wait_for(awaitable, timeout_s)

        return self._runner.run(call_with_deadline())
