"""Captures from a network interface with tools that are permitted to do so."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from guestmark.capture.binary import handle_signals
from guestmark.core.distribution import make_install_hint
from guestmark.core.errors import GuestmarkError
from guestmark.core.temporary import open_unnamed_file

# Bytes kept of a packet: the first holds headers and the messages of DHCP, DNS and TFTP.
_HEADERS, _WHOLE = 320, 65_535
_BUFFER_MIB = 64
# A supervisor whose command was ended by a signal exits with at least this status.
_BY_SIGNAL = 128
# Takes a command, and yields the command to start in its place and a descriptor that it has to inherit.
Supervised = Callable[[Sequence[str]], AbstractContextManager[tuple[list[str], int]]]


@contextlib.contextmanager
def capture_packets(interface: str, supervised: Supervised, *, whole: bool = False) -> Iterator[int]:
    """Yield a descriptor from which packets of `interface` are read as a capture until a signal ends it.

    With `whole` packets are captured entirely, else only their headers. The tool that captures is `supervised`, so that
    it does not outlive this process. Raises `GuestmarkError` if nothing can be captured.
    """
    # Either tool writes each packet out at once. What it prints is shown only if it fails.
    length = str(_WHOLE if whole else _HEADERS)
    # dumpcap counts its buffer in MiB, tcpdump in KiB.
    commands = (
        ["dumpcap", "-q", "-i", interface, "-s", length, "-B", str(_BUFFER_MIB), "-w", "-"],
        ["tcpdump", "-U", "-i", interface, "-s", length, "-B", str(_BUFFER_MIB << 10), "-w", "-"],
    )
    command = next((known for known in commands if shutil.which(known[0])), None)
    if command is None:
        raise GuestmarkError(
            "neither dumpcap nor tcpdump is installed; one of them is needed to capture packets",
            hint=make_install_hint("tcpdump"),
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
            lines = messages.read().decode(errors="replace").strip().splitlines()
    if 0 < status < _BY_SIGNAL:
        raise GuestmarkError(
            f"{command[0]} cannot capture on {interface}: {_find_failure_reason(lines) or f'status {status}'}",
            hint="capturing needs root or CAP_NET_RAW: run it with sudo; ip link lists the interfaces",
        )


def _find_failure_reason(lines: list[str]) -> str:
    """Return the line of a tool's messages that gives the reason for its failure: the first one after headings."""
    reasons = [line.strip() for line in lines if line.strip() and not line.startswith("Capturing on")]
    for reason in reasons:
        if "ermission" in reason or "could not" in reason:
            return reason
    return reasons[0] if reasons else ""
