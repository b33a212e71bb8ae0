"""What a fleet is to do, as every machine of it is told, and how far one is."""

from __future__ import annotations

import secrets
import time

import msgspec

# Labels of a machine's run; `HOST` is the same for two names of one machine.
FLEET, MACHINE, KIND, HOST = "fleet", "machine", "class", "host"


class Progress(msgspec.Struct, frozen=True):
    """What became of one block on one machine."""

    machine: str
    run: str = ""
    state: str = ""
    blocks: int = 0
    trials: int = 0
    failed: int = 0
    lost: int = 0
    left_out: int = 0  # of what the plan asks for, as the machine cannot measure it
    error: str = ""
    hint: str = ""
    final: bool = False  # whether trying again cannot help


def new_id() -> str:
    """The name of a new fleet: UTC time and random letters, so that names sort by age."""
    return f"fleet-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
