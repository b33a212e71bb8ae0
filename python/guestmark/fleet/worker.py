"""`guestmark fleet worker`: the engine's worker on a machine, tied to the connection that it was started over.

It hears one line on its standard input: keys, where the ledger is, its name. When the input ends, so does the worker
with everything it runs, whatever became of the other side.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from guestmark.agent.binary import supervised
from guestmark.agent.keeper import keeper
from guestmark.appliance.paths import scratch_parent
from guestmark.core.errors import UsageError
from guestmark.fleet import engine
from guestmark.fleet.machine import LEDGER, NAME

_LONGEST = 1 << 20
_POOL = "parsl.executors.high_throughput.process_worker_pool"


class Start(msgspec.Struct, frozen=True):
    """The line that a worker hears."""

    machine: str
    ledger: str
    keys: dict[str, str]
    arguments: list[str]


def run() -> int:
    """Starts the worker and waits for its end; its exit status."""
    start = _heard()
    engine.check()
    directory = keeper().directory("fleet", scratch_parent())
    keys, logs = directory / "keys", directory / "logs"
    keys.mkdir(mode=0o700)
    for name, text in start.keys.items():
        if "/" in name:
            raise UsageError(f"{name!r} is not the name of a key")
        (keys / name).write_text(text)
    command = [
        sys.executable, "-m", _POOL,
        *start.arguments, "--cert_dir", str(keys), "--logdir", str(logs),
    ]  # fmt: skip
    environment = {**os.environ, NAME: start.machine, LEDGER: start.ledger}
    # The python that runs us may have been told to look nowhere but here.
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path[1:]])
    lifeline = os.dup(0)
    try:
        return subprocess.run(
            supervised(command, lifeline_fd=lifeline, hold=[keeper().lifeline]),
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=(lifeline, keeper().lifeline),
            env=environment,
            check=False,
        ).returncode
    finally:
        keeper().remove(directory)


def _heard() -> Start:
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < _LONGEST:
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    try:
        return msgspec.json.decode(line, type=Start)
    except msgspec.MsgspecError as error:
        raise UsageError(
            "fleet worker is started by fleet run, on the machines of a lab",
            hint="guestmark fleet run --help",
        ) from error
