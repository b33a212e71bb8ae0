"""Captures packets at both ends of a machine's network, and analyses what its connections waited for."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.capture import verdict
from guestmark.capture.binary import Selection
from guestmark.capture.points import join_points
from guestmark.core.distribution import make_install_hint
from guestmark.core.errors import GuestmarkError, WorkloadError
from guestmark.core.temporary import scratch_directory

if TYPE_CHECKING:
    from guestmark.agent.background import Background
    from guestmark.agent.client import Agent
    from guestmark.capture.model import Causes

# Bytes kept of each packet: its headers.
_HEADERS = "320"
_BEGIN_S, _END_S = 15.0, 15.0
# dumpcap reads packets in bursts.
_BURST_S = 0.7
_MOST_BYTES = 512 << 20
# Each tool with the message that it prints once it captures.
_TOOLS = (("dumpcap", ("-q", "-B", "64"), b"File:"), ("tcpdump", ("-U", "-B", "65536"), b"listening on"))


@dataclass
class BothEnds:
    """The result of captures at both ends; empty until they have ended."""

    causes: Causes | None = None
    # All causes in a sentence, largest first.
    description: str = ""


@contextlib.contextmanager
def capture_both_ends(machine: Agent, peer: Agent, ports: Sequence[int]) -> Iterator[BothEnds]:
    """Captures the traffic of these TCP ports at both ends while the block runs, then analyses it.

    Raises `WorkloadError` if an end cannot capture, or the captures have no connection in common.
    """
    found = BothEnds()
    wanted = " or ".join(f"tcp port {port}" for port in ports)
    with scratch_directory("guestmark-capture") as directory, contextlib.ExitStack() as stack:
        files = [Path(directory, name) for name in ("machine.pcapng", "peer.pcapng")]
        ends = [stack.enter_context(_capture_end(agent, wanted, directory)) for agent in (machine, peer)]
        yield found
        time.sleep(_BURST_S)
        for (program, path), agent, file in zip(ends, (machine, peer), files, strict=True):
            program.send_signal(signal.SIGTERM)
            program.wait(_END_S)
            _fetch_file(agent, path, file)
        _analyse_captures(found, files)


@contextlib.contextmanager
def _capture_end(agent: Agent, wanted: str, directory: Path | str) -> Iterator[tuple[Background, str]]:
    """Captures on all interfaces of one end; yields the program and its file, which is removed afterwards.

    On this host the file is in `directory`, which is removed even if this process is killed; elsewhere it disappears
    with the machine.
    """
    here = agent.exec(["test", "-w", str(directory)], timeout_s=_BEGIN_S).ok
    path = f"{directory if here else '/tmp'}/guestmark-capture-{secrets.token_hex(6)}"
    for name, options, ready in _TOOLS:
        if not agent.exec(["sh", "-c", f"command -v {name}"], timeout_s=_BEGIN_S).ok:
            continue
        filtered = ["-f", wanted] if name == "dumpcap" else [wanted]
        words = [name, "-i", "any", "-s", _HEADERS, "-w", path, *options, *filtered]
        program = agent.background(words)
        try:
            program.wait(_BEGIN_S, lambda output, ready=ready: ready in output)  # type: ignore[misc]
            if not program.is_running:
                raise WorkloadError(
                    f"{name} cannot capture: {program.read_text().strip() or 'it printed nothing'}"
                )
            yield program, path
        finally:
            if program.is_running and not agent.closed:
                program.send_signal(signal.SIGKILL)
                program.wait(_END_S)
            if not agent.closed:
                agent.exec(["rm", "-f", path], timeout_s=_END_S)
        return
    raise WorkloadError(
        "cannot capture packets: neither dumpcap nor tcpdump is installed",
        hint=make_install_hint("tcpdump"),
    )


def _fetch_file(agent: Agent, path: str, file: Path) -> None:
    with file.open("wb") as stream:

        def keep(_: int, data: bytes) -> None:
            stream.write(data)

        agent.receive_file(path, keep, limit=_MOST_BYTES)


def _analyse_captures(found: BothEnds, files: Sequence[Path]) -> None:
    try:
        answer = join_points(Selection(tuple(str(file) for file in files)), top=1)
    except GuestmarkError as error:
        raise WorkloadError(
            f"the captures of both ends cannot be analysed: {error.message}",
            hint=error.hint,
            cause=error.cause,
        ) from error
    found.causes = answer.document.files[0].causes
    found.description = verdict.describe_causes(found.causes) or "unknown"
