"""Runs inside an outer guest: starts the inner machine there and passes bytes between the host and its agent.

The first line that goes to the host is a JSON object: `phases`, `attestation` and `command_line` of the inner machine,
or `error`, `hint` and `console`. All that follows is the inner agent's conversation, greeting first.
"""

import contextlib
import json
import os
import select
import sys
from pathlib import Path
from typing import Any

from guestmark.agent.frames import Transport
from guestmark.errors import GuestmarkError, MachineError
from guestmark.plan.model import Cell, WorkloadSpec
from guestmark.platforms import registry
from guestmark.platforms.nested import PORT

_CHUNK = 1 << 16


def main(order_text: str) -> None:
    """Carries out `order_text` (JSON: platform, factors, deadline_s) until the host hangs up."""
    order: dict[str, Any] = json.loads(order_text)
    cell = Cell("inner", WorkloadSpec("inner"), order["platform"], order["factors"])
    port = os.open(_device(PORT), os.O_RDWR)
    platform: Any = registry.get(order["platform"])
    try:
        with platform.start(cell, order["deadline_s"]) as machine:
            header = {
                "phases": dict(machine.phases),
                "attestation": dict(machine.attest()),
                "command_line": list(machine.command_line),
            }
            transport, greeting = machine.agent.detach()
            _write(port, json.dumps(header).encode() + b"\n" + greeting)
            _pass_on(port, transport)
    except GuestmarkError as error:
        console = error.console if isinstance(error, MachineError) else ""
        refusal = {"error": error.message, "hint": error.hint, "console": console}
        _write(port, json.dumps(refusal).encode() + b"\n")
        sys.exit(1)


def _device(name: str) -> str:
    for entry in Path("/sys/class/virtio-ports").iterdir():
        if (entry / "name").read_text().strip() == name:
            return f"/dev/{entry.name}"
    sys.exit(f"there is no channel {name}")


def _pass_on(port: int, transport: Transport) -> None:
    """Copies in both directions until either side ends. Blocking writes give each side's own back-pressure."""
    os.set_blocking(transport.write_fd, True)
    with contextlib.suppress(OSError):
        while True:
            readable, _, _ = select.select([port, transport.read_fd], [], [])
            if port in readable:
                data = os.read(port, _CHUNK)
                if not data:
                    return  # the host has hung up
                _write(transport.write_fd, data)
            if transport.read_fd in readable:
                data = os.read(transport.read_fd, _CHUNK)
                if not data:
                    return  # the inner guest has gone
                _write(port, data)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
