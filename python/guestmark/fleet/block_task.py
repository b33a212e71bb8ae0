"""The task that the engine runs on a machine of a fleet: the next block of that machine's run."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path

import msgspec

from guestmark.core.context import Caller, FleetOrder
from guestmark.core.errors import (
    BlockStatus,
    GuestmarkError,
    LedgerError,
    PlatformUnusableError,
    TakenError,
    UsageError,
)
from guestmark.core.findings import find_machine
from guestmark.core.model import Plan, TrialStatus
from guestmark.engine.audience import Audience, hold_machines
from guestmark.engine.interrupt import Interruption
from guestmark.engine.run import RunOptions, prepare_run
from guestmark.engine.stored_run import measure_next_block
from guestmark.fleet import pool_watchdog
from guestmark.fleet.order import (
    CLASS_LABEL,
    FLEET_LABEL,
    HOST_LABEL,
    MACHINE_LABEL,
    SHARED_HOST_PREFIX,
    MachineProgress,
)
from guestmark.ledger import open_ledger, trial_counts
from guestmark.ledger.attempts import find_runs_with_labels
from guestmark.ledger.model import StoredRun
from guestmark.ledger.run_annotations import Annotations
from guestmark.ledger.store import Ledger
from guestmark.plan.load import load_outline
from guestmark.plan.outline import Overrides, assemble_plan, override_outline
from guestmark.platforms import affinity, exclusive

# The prefix of lines that a worker prints for the coordinator.
MESSAGE_PREFIX = "guestmark-fleet: "
MACHINE_VARIABLE, LEDGER_VARIABLE = "GUESTMARK_FLEET_MACHINE", "GUESTMARK_LEDGER"
# The temporary directory of measured programs; the engine has another one.
TEMPORARY_VARIABLE = "GUESTMARK_FLEET_TMPDIR"


class WorkerMark(StrEnum):
    """Lines about a worker's progress, which the coordinator reads and does not show."""

    READY = "ready"  # to start the engine's worker
    BEGUN = "block begun"
    DONE = "block done"
    PART_ENDED = "one of the engine's processes there was killed"


DIFFERENT_CLASS_HINT = (
    "give it another class in the lab's file, or measure everything on each machine: --whole"
)

# The runs whose cells this machine is known to be able to measure.
_EXAMINED: set[str] = set()
# The pause after an error that may be temporary, such as a restart of the ledger's server.
_PAUSE_S = 1.0
# The time between two checks whether another machine has created the run.
_LOOK_S = 0.1


def run_block(order: bytes) -> bytes:
    """Run the next block of this machine's run, which is created if there is none; errors are part of the result.

    `order` is an encoded `FleetOrder`, the result an encoded `MachineProgress`. The engine may call this any number of
    times, because only the ledger decides which block is next.
    """
    machine = os.environ[MACHINE_VARIABLE]
    if temporary := os.environ.pop(TEMPORARY_VARIABLE, None):
        os.environ["TMPDIR"], tempfile.tempdir = temporary, None
    tell_coordinator(WorkerMark.BEGUN)
    try:
        done = _measure_block(msgspec.json.decode(order, type=FleetOrder), machine)
    except GuestmarkError as error:
        final = isinstance(error, UsageError | PlatformUnusableError)
        away = isinstance(error, LedgerError)
        done = MachineProgress(machine, error=error.message, hint=error.hint, final=final, ledger=away)
        if not final:
            time.sleep(_PAUSE_S)
    except Exception as error:
        # The engine would take an exception for a lost worker.
        time.sleep(_PAUSE_S)
        done = MachineProgress(
            machine, error=f"{type(error).__name__}: {error}", hint=traceback.format_exc()[-2000:]
        )
    tell_coordinator(WorkerMark.DONE)
    return msgspec.json.encode(done)


def _measure_block(order: FleetOrder, machine: str) -> MachineProgress:
    # Imported here, because the coordinator, which never measures, imports this module, too.
    affinity.set_companion_processes(pool_watchdog.find_pool_processes())
    with open_ledger(os.environ[LEDGER_VARIABLE]) as ledger:
        ledger.patience.notice = tell_coordinator
        run_id = find_run(ledger, order, machine)
        plan = _load_plan(order) if run_id is None else ledger.load_head(run_id).plan
        with hold_machines(plan, tell_coordinator, name=f"{plan.name} ({order.fleet})"):
            if run_id is None:
                with _claim_class(ledger, order, machine):
                    # Another worker may have created it while this one waited.
                    run_id = find_run(ledger, order, machine)
                    if run_id is None:
                        run_id = _create_run(ledger, order, machine, plan)
                        _EXAMINED.add(run_id)
            if run_id not in _EXAMINED:
                _join_shared_run(ledger, order, machine, run_id)
            status = measure_next_block(
                ledger.load_head(run_id),
                ledger,
                Audience(tell_coordinator),
                machine,
                interruption=Interruption(),
                trust=True,
                examined=run_id in _EXAMINED,
                alone=not order.find_machine_class(machine),
            )
        if status is BlockStatus.NOT_POSSIBLE:
            raise PlatformUnusableError(
                f"{machine} cannot measure the run that its class shares", hint=DIFFERENT_CLASS_HINT
            )
        _EXAMINED.add(run_id)
        # Other machines measure all remaining blocks, but one of them may still be lost.
        if status is BlockStatus.LOST:
            time.sleep(_PAUSE_S)
        return count_progress(ledger, run_id, machine, shared=bool(order.find_machine_class(machine)))


@contextlib.contextmanager
def _claim_class(ledger: Ledger, order: FleetOrder, machine: str) -> Iterator[None]:
    """Prevent other machines of a class that shares a run from creating it inside the context."""
    kind = order.find_machine_class(machine)
    if not kind:
        yield
        return
    while True:
        with contextlib.suppress(TakenError), ledger.claim_run(f"{order.fleet} {kind}"):
            yield
            return
        time.sleep(_LOOK_S)


def tell_coordinator(text: str) -> None:
    """Print a message for the coordinator; the engine itself transmits nothing while a task runs."""
    lines = []
    for line in text.splitlines():
        if words := line.split():
            lines.append(" ".join(words))
    with contextlib.suppress(OSError):
        os.write(2, f"{MESSAGE_PREFIX}{'; '.join(lines)}\n".encode(errors="replace"))


def count_progress(ledger: Ledger, run_id: str, machine: str, *, shared: bool) -> MachineProgress:
    """Return the same as `read_progress`, but let the ledger count instead of loading all trials."""
    head, done = (
        ledger.load_head(run_id),
        trial_counts.count_trials(ledger, run_id, machine if shared else ""),
    )
    return MachineProgress(
        machine,
        run_id,
        head.state.value,
        done.blocks,
        done.trials,
        done.failed,
        done.lost,
        len(head.unusable),
    )


def read_progress(stored: StoredRun, machine: str) -> MachineProgress:
    """Return the progress of a machine's run; of a run that its class shares, only the machine's own trials."""
    mine = [trial for trial in stored.trials if find_machine(trial.facts) in {"", machine}]
    count = Counter(trial.status for trial in mine)
    return MachineProgress(
        machine, stored.id, stored.state.value, len({trial.block for trial in mine}), len(mine),
        count[TrialStatus.FAILED], count[TrialStatus.LOST], len(stored.unusable),
    )  # fmt: skip


def find_run(ledger: Ledger, order: FleetOrder, machine: str) -> str | None:
    """Return the id of the machine's run, or of the one that its class shares; None before it is created."""
    kind = order.find_machine_class(machine)
    whose = {CLASS_LABEL: kind} if kind else {MACHINE_LABEL: machine}
    return next(iter(find_runs_with_labels(ledger, {FLEET_LABEL: order.fleet, **whose})), None)


def _load_plan(order: FleetOrder) -> Plan:

    outline = override_outline(
        load_outline(order.plan, order.where, scale=order.scale), Overrides(**order.overrides)
    )
    plan = assemble_plan(outline, Caller.current())
    return replace(plan, context=replace(plan.context, fleet=order))


def _create_run(ledger: Ledger, order: FleetOrder, machine: str, plan: Plan) -> str:
    """Create a run of what can be measured here, with the labels of its fleet; return its id."""
    host = _identify_host()
    for run_id in find_runs_with_labels(ledger, {FLEET_LABEL: order.fleet}):
        _refuse_duplicate_machine(ledger.read_annotations(run_id).labels, machine, host)
    labels = {FLEET_LABEL: order.fleet}
    if order.find_machine_class(machine):
        labels[SHARED_HOST_PREFIX + machine] = host
    else:
        labels |= {MACHINE_LABEL: machine, HOST_LABEL: host}
    if kind := _find_kind(order, machine):
        labels[CLASS_LABEL] = kind
    # The labels are stored with the run at once: without them, a run left by a killed worker belongs to no fleet.
    return prepare_run(
        plan,
        ledger,
        Audience(tell_coordinator, tells_notes=False),
        RunOptions(said=Annotations(labels=labels)),
    ).id


def _join_shared_run(ledger: Ledger, order: FleetOrder, machine: str, run_id: str) -> None:
    """Record that this machine takes part in a run that its class shares.

    Raises `UsageError` if it already takes part under another name.
    """

    if order.find_machine_class(machine):
        host, labels = _identify_host(), ledger.read_annotations(run_id).labels
        _refuse_duplicate_machine(labels, machine, host)
        if labels.get(SHARED_HOST_PREFIX + machine) != host:
            ledger.annotate_run(run_id, Annotations(labels={SHARED_HOST_PREFIX + machine: host}))


def _find_kind(order: FleetOrder, machine: str) -> str:
    """Return the kind that the lab's file gives the machine; empty if it gives none."""
    for member in order.lab:
        if member["name"] == machine:
            kind: str = member["kind"]
            return kind
    return ""


def _refuse_duplicate_machine(labels: Mapping[str, str], machine: str, host: str) -> None:
    for key, value in labels.items():
        if key == HOST_LABEL:
            other = labels.get(MACHINE_LABEL, "")
        elif key.startswith(SHARED_HOST_PREFIX):
            other = key.removeprefix(SHARED_HOST_PREFIX)
        else:
            continue
        if value == host and other != machine:
            raise UsageError(
                f"{machine} is the same machine as {other}, under another name",
                hint="name each machine once in the lab's file, or its results would count as those of two machines",
            )


def _identify_host() -> str:
    """Return a digest of this machine's boot id and lock file, which identifies it under any name."""
    lock = exclusive.find_lock_file()
    if lock is None or not lock.exists():
        return secrets.token_hex(8)
    boot, file = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), lock.stat()
    return blake2b(f"{boot} {file.st_dev} {file.st_ino}".encode(), digest_size=8).hexdigest()
