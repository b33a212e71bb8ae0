"""Capturing from an interface, by the tools that may do that."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from guestmark.capture.binary import handle_signals
from guestmark.core.distribution import install_hint
from guestmark.core.errors import GuestmarkError
from guestmark.core.temporary import open_unnamed_file

_HEADERS, _WHOLE = 320, 65_535  # bytes of a packet; headers, and the messages of DHCP, DNS and TFTP
_BUFFER_MIB = 64
_BY_SIGNAL = 128  # of a supervisor, whose command has ended by a signal
# A command in, and around the life of its process: what to start instead, and a descriptor that this inherits.
Supervised = Callable[[Sequence[str]], AbstractContextManager[tuple[list[str], int]]]


@contextlib.contextmanager
def capture_packets(interface: str, supervised: Supervised, *, whole: bool = False) -> Iterator[int]:
    """A descriptor from which the `whole` packets of `interface`, or their headers, come as a capture, until a signal.

    The tool that captures is `supervised`: it does not outlive this process. Raises `GuestmarkError` when nothing
    can be captured.
    """
    # A tool writes packets out at once, and its messages are told only if it fails.
    length = str(_WHOLE if whole else _HEADERS)
    commands = (
        ["dumpcap", "-q", "-i", interface, "-s", length, "-B", str(_BUFFER_MIB), "-w", "-"],
        ["tcpdump", "-U", "-i", interface, "-s", length, "-B", str(_BUFFER_MIB << 10), "-w", "-"],
    )
    command = next((known for known in commands if shutil.which(known[0])), None)
    if command is None:
        raise GuestmarkError(
            "neither dumpcap nor tcpdump is installed, one of which captures packets",
            hint=install_hint("tcpdump"),
        )
    with (
        open_unnamed_file() as messages,
        supervised(command) as (words, lifeline),
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=messages, pass_fds=(lifeline,)) as process,
    ):
        assert process.stdout

        def end_capture(*_: object) -> None:
            process.terminate()

        try:
            with handle_signals({signal.SIGINT: end_capture, signal.SIGTERM: end_capture}):
                yield process.stdout.fileno()
        finally:
            process.terminate()
            status = process.wait()
            messages.seek(0)
            said = messages.read().decode(errors="replace").strip().splitlines()
    if 0 < status < _BY_SIGNAL:
        raise GuestmarkError(
            f"{command[0]} cannot capture on {interface}: {_failure_reason(said) or f'status {status}'}",
            hint="capturing needs root or CAP_NET_RAW: run it with sudo; ip link lists the interfaces",
        )


def _failure_reason(said: list[str]) -> str:
    """The line of a tool's messages that says why: the first that is more than a heading."""
    told = [line.strip() for line in said if line.strip() and not line.startswith("Capturing on")]
    return next(
        (line for line in told if "ermission" in line or "could not" in line), told[0] if told else ""
    )
