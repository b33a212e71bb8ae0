"""Capturing from an interface, by the tools that may do that."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from guestmark.core.distribution import to_install
from guestmark.core.errors import GuestmarkError
from guestmark.core.temporary import unnamed_file

_SNAPLEN = 320  # headers, and the messages of DHCP, DNS and TFTP; QUIC's would need whole packets
_BUFFER_MIB = 64
_BY_SIGNAL = 128  # of a supervisor, whose command has ended by a signal
# A command in, and around the life of its process: what to start instead, and a descriptor that this inherits.
Supervised = Callable[[Sequence[str]], AbstractContextManager[tuple[list[str], int]]]


@contextlib.contextmanager
def capturing(interface: str, supervised: Supervised) -> Iterator[int]:
    """A descriptor from which the packets of `interface` come as a capture, until Ctrl-C.

    The tool that captures is `supervised`: it does not outlive this process. Raises `GuestmarkError` when nothing
    can be captured.
    """
    # A tool writes packets out at once, and its messages are told only if it fails.
    commands = (
        ["dumpcap", "-q", "-i", interface, "-s", str(_SNAPLEN), "-B", str(_BUFFER_MIB), "-w", "-"],
        ["tcpdump", "-U", "-i", interface, "-s", str(_SNAPLEN), "-B", str(_BUFFER_MIB << 10), "-w", "-"],
    )
    command = next((known for known in commands if shutil.which(known[0])), None)
    if command is None:
        raise GuestmarkError(
            "neither dumpcap nor tcpdump is installed, one of which captures packets",
            hint=to_install("tcpdump"),
        )
    with (
        unnamed_file() as messages,
        supervised(command) as (words, lifeline),
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=messages, pass_fds=(lifeline,)) as process,
    ):
        assert process.stdout
        try:
            yield process.stdout.fileno()
        finally:
            process.terminate()
            status = process.wait()
            messages.seek(0)
            said = messages.read().decode(errors="replace").strip().splitlines()
    if 0 < status < _BY_SIGNAL:
        raise GuestmarkError(
            f"{command[0]} cannot capture on {interface}: {_reason(said) or f'status {status}'}",
            hint="capturing needs root or CAP_NET_RAW: run it with sudo; ip link lists the interfaces",
        )


def _reason(said: list[str]) -> str:
    """The line of a tool's messages that says why: the first that is more than a heading."""
    told = [line.strip() for line in said if line.strip() and not line.startswith("Capturing on")]
    return next(
        (line for line in told if "ermission" in line or "could not" in line), told[0] if told else ""
    )
