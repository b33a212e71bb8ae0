"""`guestmark fleet worker`: the engine's worker on a machine, tied to the connection that started it.

It reads one line from its standard input: keys, the ledger's address, its name. When the input ends, for any reason, so
does the worker with everything that it runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from guestmark.agent.binary import build_supervise_command
from guestmark.appliance.paths import choose_scratch_parent
from guestmark.core.errors import UsageError
from guestmark.core.keeper import keeper
from guestmark.core.temporary import find_default_parent
from guestmark.fleet import parsl_engine, pool_watchdog
from guestmark.fleet.block_task import (
    LEDGER_VARIABLE,
    MACHINE_VARIABLE,
    TEMPORARY_VARIABLE,
    WorkerMark,
    tell_coordinator,
)

_LONGEST = 1 << 20
_LONGEST_TEMPORARY = 107 - len("/pymp-12345678/listener-12345678")


class WorkerStart(msgspec.Struct, frozen=True):
    """The line that a worker reads when it starts."""

    machine: str
    ledger: str
    keys: dict[str, str]
    arguments: list[str]
    versions: dict[str, str] = {}


def run_worker() -> int:
    """Start the worker, wait for its end, and return its exit status."""
    start = _read_start()
    parsl_engine.require_parsl()
    if wrong := parsl_engine.describe_version_mismatch(
        start.machine, parsl_engine.read_versions(), start.versions
    ):
        raise UsageError(wrong, hint=parsl_engine.INSTALL_ALIKE)
    directory = _write_keys(start.keys)
    command = [
        sys.executable, "-c", pool_watchdog.TIED_POOL,
        *start.arguments, "--cert_dir", str(directory / "keys"), "--logdir", str(directory / "logs"),
    ]  # fmt: skip
    environment = {**os.environ, MACHINE_VARIABLE: start.machine, LEDGER_VARIABLE: start.ledger}
    # This Python may have been started with options that ignore PYTHONPATH or site-packages, but the worker's processes
    # need the same modules.
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path[1:]])
    environment |= _choose_temporary_directories(directory)
    tell_coordinator(WorkerMark.READY)
    lifeline, held = os.dup(0), keeper().handles
    process = subprocess.Popen(
        build_supervise_command(command, lifeline_fd=lifeline, hold=held, spare_keepers=True),
        stdin=subprocess.DEVNULL,
        stdout=2,
        pass_fds=(lifeline, *held),
        env=environment,
    )
    try:
        if pool_watchdog.watch_pool(process):
            tell_coordinator(WorkerMark.PART_ENDED)
        return process.wait()
    finally:
        keeper().remove(directory)


def _write_keys(keys: dict[str, str]) -> Path:
    """Write the keys to a private directory and return it. Raises `UsageError` if there is no room."""
    parent = choose_scratch_parent()
    try:
        directory = keeper().directory("fleet", parent)
        (directory / "keys").mkdir(mode=0o700)
        for name, text in keys.items():
            if "/" in name:
                raise UsageError(f"{name!r} is not a valid key name")
            (directory / "keys" / name).write_text(text)
    except OSError as error:
        raise UsageError(
            f"the engine's files cannot be written to {parent}: {error.strerror}",
            hint='free some space there, or set another directory in the lab\'s file: environment = {TMPDIR = "…"}',
        ) from error
    return directory


def _choose_temporary_directories(directory: Path) -> dict[str, str]:
    """Return variables with the temporary directories of the engine's processes and of measured programs.

    The engine's processes leave their sockets behind when they are killed, so these are in a directory that a keeper
    removes. A socket's path has at most 107 characters, 32 of which follow the directory. Measured programs keep their
    temporary files where they would without a fleet.
    """
    if len(os.fspath(directory)) > _LONGEST_TEMPORARY:
        directory = keeper().directory("fleet", "/tmp")
    return {TEMPORARY_VARIABLE: os.fspath(find_default_parent()), "TMPDIR": os.fspath(directory)}


def _read_start() -> WorkerStart:
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < _LONGEST:
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    try:
        return msgspec.json.decode(line, type=WorkerStart)
    except msgspec.MsgspecError as error:
        raise UsageError(
            "fleet worker is started by fleet run, on the machines of a lab",
            hint="see guestmark fleet run --help",
        ) from error
