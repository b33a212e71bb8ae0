"""The order that every machine of a fleet gets, the progress that it reports, and the fleets in a ledger."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from guestmark.core.context import FleetOrder
from guestmark.core.errors import UsageError
from guestmark.core.home import LATEST
from guestmark.fleet import lab
from guestmark.fleet.lab import LabMachine
from guestmark.ledger import find_default_ledger
from guestmark.ledger.attempts import find_runs_with_labels
from guestmark.ledger.store import Ledger
from guestmark.plan.load import load_outline
from guestmark.plan.outline import Overrides, override_outline

# Labels of a machine's run; two names of one machine have the same `HOST_LABEL`.
FLEET_LABEL, MACHINE_LABEL, CLASS_LABEL, HOST_LABEL = "fleet", "machine", "class", "host"
# The prefix, before the machine's name, of the host labels of machines that share a run.
SHARED_HOST_PREFIX = "host of "


class MachineProgress(msgspec.Struct, frozen=True):
    """The result of one block on one machine."""

    machine: str
    run: str = ""
    state: str = ""
    blocks: int = 0
    trials: int = 0
    failed: int = 0
    lost: int = 0
    # Platforms and cells of the plan that the machine cannot measure.
    left_out: int = 0
    error: str = ""
    hint: str = ""
    final: bool = False  # True if trying again cannot help
    # True if the error is that the ledger could not be used.
    ledger: bool = False


def make_order(
    text: str,
    where: str,
    scale: float,
    overrides: Mapping[str, Any],
    members: Sequence[LabMachine],
    *,
    whole: bool = False,
) -> FleetOrder:
    """Return an order for the plan `text`, read from `where`. Raises `UsageError` for mistakes in the plan."""
    override_outline(load_outline(text, where, scale=scale), Overrides(**overrides))
    # The name begins with the time in UTC, so that names sort by age.
    fleet = f"fleet-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    return FleetOrder(fleet, text, where, scale, dict(overrides), lab.dump_lab(tuple(members)), whole)


def load_order(ledger: Ledger, fleet: str) -> FleetOrder:
    """Return the order of an earlier fleet, as stored in any of its runs. Raises `UsageError` if none has it."""
    for run_id in find_runs_with_labels(ledger, {FLEET_LABEL: fleet}):
        if (found := ledger.load_run(run_id).plan.context.fleet) is not None:
            return found
    raise UsageError(f"no run of {fleet} contains its plan", hint="start a new one: guestmark fleet run")


def find_reachable_ledger(ledger: str | None, members: Sequence[LabMachine]) -> str:
    """Return the address by which machines reach the ledger. Raises `UsageError` for a file if machines are remote."""
    path = ledger or str(find_default_ledger())
    if "://" in path:
        return path
    if any(member.ssh for member in members):
        raise UsageError(
            "the machines of a lab need a ledger that all of them can reach",
            hint="use --ledger postgresql://… (see docs/guide/lab.md); guestmark ledger copy copies runs there",
        )
    return os.path.abspath(path)


def list_fleets(ledger: Ledger) -> list[str]:
    """Return the names of the fleets in a ledger, the newest last."""
    found: dict[str, None] = {}
    for run in ledger.list_runs():
        if FLEET_LABEL in run.labels:
            found[run.labels[FLEET_LABEL]] = None
    return list(found)


def find_fleet(ledger: Ledger, wanted: str) -> str:
    """Return the latest fleet, the one with that name, or the only one whose name contains it. Raises `UsageError`."""
    known = list_fleets(ledger)
    if wanted == LATEST and known:
        return known[-1]
    found = [name for name in known if name == wanted] or [name for name in known if wanted in name]
    if len(found) == 1:
        return found[0]
    number = "more than one fleet" if found else "no fleet"
    hint = "guestmark fleet run creates one"
    if known:
        hint = f"known: {', '.join(known[-5:])}"
    raise UsageError(f"there is {number} {wanted!r} in the ledger", hint=hint)


def list_fleet_runs(ledger: Ledger, fleet: str) -> list[tuple[str, str, str]]:
    """Return machine, class and id of each run of a fleet, sorted; the machine is empty if a class shares the run."""
    found = []
    for run in ledger.list_runs():
        labels = run.labels
        if labels.get(FLEET_LABEL) == fleet:
            found.append((labels.get(MACHINE_LABEL, ""), labels.get(CLASS_LABEL, ""), run.id))
    return sorted(found)
