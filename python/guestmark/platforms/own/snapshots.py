"""Snapshots of a user's own machines, from which others are restored, and the parts of the saved one that continue.

A snapshot is taken of a machine that is ready and in which no agent has run yet. It is kept for one block: clones share
the saved state, so one snapshot for all blocks would make one machine look like many. What a restored machine really
continues is observed from inside: before saving, a secret is written to a file there and a waiting program is started.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from guestmark.agent.client import Agent
from guestmark.core.errors import AttestationError
from guestmark.core.machine_facts import OwnSnapshotFacts
from guestmark.platforms.commands import run_to_success
from guestmark.platforms.own.definition import SNAPSHOT, Definition
from guestmark.platforms.own.guard import Record, guard_record
from guestmark.platforms.own.lifecycle import (
    CreatedMachine,
    create_machine,
    make_command_environment,
    make_id,
)

# Prefix of the name of the file with the secret, and of the waiting program's argument.
SAVED_MARK = "guestmark-template-"
_LOOK_S = 20.0
_OUTPUT = 4 << 20
# Writes the secret to a file, prints its path, and starts the program. The program ends when the file is removed: if
# the machine has no process namespace, as with a chroot, it would stay on the host.
_MARK = """
for folder in /var/tmp /root /tmp; do
  file=$folder/$1
  if echo "$2" > "$file"; then
    echo "$file"
    sh -c 'while [ -e "$1" ]; do sleep 5; done' "$1" "$file" > /dev/null 2>&1 < /dev/null &
    sync
    exit 0
  fi
done 2> /dev/null
exit 1
"""


@dataclass(slots=True)
class Snapshot:
    """A saved machine: its id, its marks, and the number of machines restored from it."""

    id: str
    mark: str
    file: str  # in the machine, with the secret
    secret: str
    made_s: float = 0.0
    clones: int = 0

    def attest_restored(self, agent: Agent, name: str, clone: int) -> OwnSnapshotFacts:
        """Return which parts of the saved machine continue here. Raises `AttestationError` if none do."""
        seen = agent.exec(
            ["/bin/sh", "-c", "cat /proc/[0-9]*/cmdline"],
            timeout_s=_LOOK_S,
            output_limit=_OUTPUT,
            question=True,
        )
        kept = agent.exec(["cat", self.file], timeout_s=_LOOK_S, output_limit=_OUTPUT, question=True)
        programs, files = self.mark.encode() in seen.stdout, self.secret.encode() in kept.stdout
        if not programs and not files:
            raise AttestationError(
                f"{name} was not restored: nothing of the saved machine is in it",
                hint="restore has to create the machine {id} from {snapshot}",
            )
        template_s = 0.0
        # Only the first clone's start includes the time for the snapshot.
        if clone == 1:
            template_s = self.made_s
        return OwnSnapshotFacts(
            template=hashlib.sha256(self.id.encode()).hexdigest()[:16],
            clone=clone,
            template_s=template_s,
            programs=programs,
            files=files,
        )


@dataclass(slots=True)
class Snapshots:
    """The snapshots of this process. Inside `share_in_block`, machines with the same parameters share one."""

    _sharing: contextlib.ExitStack | None = None
    _held: dict[tuple[str, tuple[tuple[str, str], ...]], Snapshot] = field(default_factory=dict)
    # Machines that are started at the same time also share one snapshot.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def share_in_block(self) -> Iterator[None]:
        """Keep snapshots for one block, and remove them when it ends. Raises `MachineError` if that fails."""
        with contextlib.ExitStack() as stack:
            self._sharing = stack
            try:
                yield
            finally:
                self._sharing = None
                self._held.clear()

    @contextlib.contextmanager
    def take(self, definition: Definition, values: Mapping[str, str]) -> Iterator[tuple[Snapshot, int]]:
        """Yield a snapshot of a machine with these values, and the number of its next clone.

        Raises `MachineError` if no snapshot can be taken.
        """
        key = (definition.digest, tuple(sorted(values.items())))
        with contextlib.ExitStack() as stack:
            with self._lock:
                snapshot = self._held.get(key)
                if snapshot is None:
                    holder = self._sharing or stack
                    snapshot = holder.enter_context(_make_snapshot(definition, values))
                    if self._sharing is not None:
                        self._held[key] = snapshot
                snapshot.clones += 1
                clone = snapshot.clones
            yield snapshot, clone


SNAPSHOTS = Snapshots()


@contextlib.contextmanager
def _make_snapshot(definition: Definition, values: Mapping[str, str]) -> Iterator[Snapshot]:
    """Create a machine, mark it, and save it; the snapshot is removed when the context is left."""
    began = time.monotonic()
    ident = make_id()
    filled = {**values, SNAPSHOT: ident}
    record = Record(
        name=definition.name,
        id=ident,
        destroy=definition.discard.fill(filled),
        env=dict(definition.env),
        limit_s=definition.timeouts.destroy,
    )
    snapshot = Snapshot(ident, f"{SAVED_MARK}{secrets.token_hex(8)}", "", secrets.token_hex(16))
    with guard_record(record) as guard:
        try:
            with create_machine(definition, values) as made:
                snapshot.file = _mark_machine(made, snapshot)
                guard.create(
                    definition.snapshot.fill({**filled, "id": made.id}),
                    make_command_environment(definition),
                    definition.timeouts.snapshot,
                )
        finally:
            _end_marking_programs(snapshot.mark)
        snapshot.made_s = time.monotonic() - began
        yield snapshot


def _mark_machine(made: CreatedMachine, snapshot: Snapshot) -> str:
    """Leave the marks in a machine, and return the path of the file with the secret. Raises `MachineError`."""
    argv = made.fill(made.definition.exec, ["/bin/sh", "-c", _MARK, "sh", snapshot.mark, snapshot.secret])
    said = run_to_success(argv, made.environment, made.definition.timeouts.exec, hold=made.hold)
    return said.strip()


def _end_marking_programs(mark: str) -> None:
    """End programs that the saved machine has left on this host, which happens if it has no process namespace.

    They would be mistaken for programs of the restored machines.
    """
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (folder / "cmdline").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
