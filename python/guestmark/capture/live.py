"""Capturing from an interface, by the tools that may do that."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

from guestmark.core.errors import GuestmarkError


@contextlib.contextmanager
def capturing(interface: str) -> Iterator[int]:
    """A descriptor from which the packets of `interface` come as a capture, until Ctrl-C.

    Raises `GuestmarkError` when nothing can be captured.
    """
    # A tool writes packets out at once, and its messages are told only if it fails.
    commands = (
        ["dumpcap", "-q", "-i", interface, "-w", "-"],
        ["tcpdump", "-U", "-i", interface, "-w", "-"],
    )
    command = next((known for known in commands if shutil.which(known[0])), None)
    if command is None:
        raise GuestmarkError(
            "neither dumpcap nor tcpdump is installed, one of which captures packets",
            hint="install one: apt-get install tcpdump",
        )
    with (
        tempfile.TemporaryFile() as messages,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages) as process,
    ):
        assert process.stdout
        try:
            yield process.stdout.fileno()
        finally:
            process.terminate()
            status = process.wait()
            messages.seek(0)
            said = messages.read().decode(errors="replace").strip().splitlines()
    if status > 0:
        raise GuestmarkError(
            f"{command[0]} cannot capture on {interface}: {said[-1] if said else f'status {status}'}",
            hint="capturing needs root or CAP_NET_RAW; ip link lists the interfaces",
        )
