"""What happens on a machine of a fleet: one block at a time of its own run in the lab's ledger."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import replace
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from guestmark.core.context import FleetOrder
from guestmark.core.errors import GuestmarkError, PlatformUnusableError, UsageError
from guestmark.core.model import TrialStatus
from guestmark.fleet.order import FLEET, HOST, KIND, MACHINE, Progress

if TYPE_CHECKING:
    from guestmark.core.model import Plan
    from guestmark.ledger.model import StoredRun
    from guestmark.ledger.store import Ledger

TOLD = "guestmark-fleet: "  # before a line that a worker prints for whoever keeps the fleet going
NAME, LEDGER = "GUESTMARK_FLEET_MACHINE", "GUESTMARK_LEDGER"
TEMPORARY = "GUESTMARK_FLEET_TMPDIR"  # where what is measured has its temporary files, unless where the engine has them


class Mark(StrEnum):
    """Lines that a worker prints about itself, which nobody has to read."""

    READY = "ready"  # everything is there that the engine's worker needs
    BEGUN = "block begun"
    DONE = "block done"


_PAUSE_S = 1.0  # after what may help itself, such as a server that restarts


def one_block(order: bytes) -> bytes:
    """Runs the next block of this machine's run, which is begun when there is none: `FleetOrder` in, `Progress` out.

    It is called by the engine, as many times as the engine likes: what a run has is known by the ledger alone.
    """
    machine = os.environ[NAME]
    if temporary := os.environ.pop(TEMPORARY, None):
        os.environ["TMPDIR"], tempfile.tempdir = temporary, None
    tell(Mark.BEGUN)
    try:
        done = _one_block(msgspec.json.decode(order, type=FleetOrder), machine)
    except GuestmarkError as error:
        final = isinstance(error, UsageError | PlatformUnusableError)
        done = Progress(machine, error=error.message, hint=error.hint, final=final)
        time.sleep(0 if final else _PAUSE_S)
    except Exception as error:  # a fault of ours must not be the engine's to interpret
        time.sleep(_PAUSE_S)
        done = Progress(
            machine, error=f"{type(error).__name__}: {error}", hint=traceback.format_exc()[-2000:]
        )
    tell(Mark.DONE)
    return msgspec.json.encode(done)


def _one_block(order: FleetOrder, machine: str) -> Progress:
    from guestmark.engine.interrupt import Interruption
    from guestmark.engine.run import Audience, block, exclusively
    from guestmark.fleet import watch
    from guestmark.ledger import open_ledger
    from guestmark.platforms import affinity

    affinity.take_along(watch.others())
    with open_ledger(os.environ[LEDGER]) as ledger:
        ledger.patience.notice = tell
        run_id = run_of(ledger, order.fleet, machine)
        plan = _plan(order) if run_id is None else ledger.load_run(run_id).plan
        with exclusively(plan, tell, name=f"{plan.name} ({order.fleet})"):
            run_id = run_id or run_of(ledger, order.fleet, machine)  # of a worker that was waited for
            if run_id is None:
                run_id = _begun(ledger, order, machine, plan)
            block(
                ledger.load_run(run_id), ledger, Audience(tell), machine,
                interruption=Interruption(), trust=True, examined=True,
            )  # fmt: skip
        return progress_of(ledger.load_run(run_id), machine)


def tell(text: str) -> None:
    """For the person who watches the fleet: the engine's workers have no other way to say something meanwhile."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    with contextlib.suppress(OSError):
        os.write(2, f"{TOLD}{'; '.join(line for line in lines if line)}\n".encode(errors="replace"))


def progress_of(stored: StoredRun, machine: str) -> Progress:
    """How far a machine's run is."""
    count = Counter(trial.status for trial in stored.trials)
    return Progress(
        machine, stored.id, stored.state.value, stored.blocks, len(stored.trials),
        count[TrialStatus.FAILED], count[TrialStatus.LOST], len(stored.unusable),
    )  # fmt: skip


def run_of(ledger: Ledger, fleet: str, machine: str) -> str | None:
    """The id of the machine's run; None before it has begun."""
    from guestmark.ledger.attempts import runs_with

    return next(iter(runs_with(ledger, {FLEET: fleet, MACHINE: machine})), None)


def _plan(order: FleetOrder) -> Plan:
    from guestmark.core.context import Caller
    from guestmark.plan.load import load
    from guestmark.plan.outline import Overrides, assemble, override

    outline = override(load(order.plan, order.where, scale=order.scale), Overrides(**order.overrides))
    plan = assemble(outline, Caller.current())
    return replace(plan, context=replace(plan.context, fleet=order))


def _begun(ledger: Ledger, order: FleetOrder, machine: str, plan: Plan) -> str:
    """The id of a new run of what can be measured here, with everything that says what it belongs to."""
    from guestmark.engine.run import Audience, prepare
    from guestmark.ledger.attempts import runs_with
    from guestmark.ledger.remarks import Remarks

    host = _host()
    if twice := next(iter(runs_with(ledger, {FLEET: order.fleet, HOST: host})), None):
        other = ledger.remarks(twice).labels.get(MACHINE, twice)
        raise UsageError(
            f"{machine} is the same machine as {other}, under another name",
            hint="name each machine once in the lab's file; results of both would be taken for two machines'",
        )
    kind = next((each["kind"] for each in order.lab if each["name"] == machine), "")
    labels = {FLEET: order.fleet, MACHINE: machine, HOST: host, **({KIND: kind} if kind else {})}
    # At once with all that belongs to it: one that a killed worker had left without its labels would be nobody's.
    return prepare(plan, ledger, Audience(tell, remarks=False), said=Remarks(labels=labels)).id


def _host() -> str:
    """Tells this machine from others, whatever they are called: what is locked here, of the system that runs here."""
    from guestmark.platforms import exclusive

    lock = exclusive.lock_file()
    if lock is None or not lock.exists():
        return secrets.token_hex(8)
    boot, file = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), lock.stat()
    return blake2b(f"{boot} {file.st_dev} {file.st_ino}".encode(), digest_size=8).hexdigest()
