"""A trial inside an outer guest, as in `tcg/kvm`: all of it happens there, and its findings come back.

For workloads that need more of a machine than its agent (its firmware, its start, its end). The outer guest shares the
host's root, so guestmark is there too; it runs there with the same code as here, one layer less to go.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guestmark.errors import GuestmarkError, MachineError
from guestmark.plan.model import Better, Cell, Measurement, Metric, Plan, Policy, WorkloadSpec

if TYPE_CHECKING:
    from guestmark.platforms.guest import Guest

_AROUND_S = 400.0  # for the starts inside, beyond the limit of what is measured
_CLOCKS_APART = 0.02  # share by which the outer guest's clock may differ from the host's
_KEPT_VARIABLES = (
    "HOME", "PATH", "XDG_CACHE_HOME", "GUESTMARK_AGENT", "GUESTMARK_CAPTURE", "GUESTMARK_ROMS", "LANG",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Findings:
    """What a trial inside came to; times are those of the outer guest's clock."""

    measurements: tuple[Measurement, ...]
    phases: Mapping[str, float]
    facts: Mapping[str, Any]
    attestation: Mapping[str, Any]
    command_line: tuple[str, ...]
    warnings: list[str] = field(default_factory=list)


def run_inside(guest: Guest, plan: Plan, cell: Cell) -> Findings:
    """Carries out `cell`'s trial on the rest of its platform inside `guest`, the outermost layer.

    Raises `MachineError` with the reason, the console and the phases so far, from inside.
    """
    limit_s = plan.policy.trial_limit_s
    outer, _, inner = cell.platform.partition("/")
    order = {
        "platform": inner,
        "factors": dict(cell.factors),
        "workload": cell.workload.name,
        "params": dict(cell.workload.params),
        "limit_s": limit_s,
        "caller": {name: plan.context[name] for name in _CALLER if name in plan.context},
    }
    source = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path.insert(0, {source!r}); from guestmark.workloads.inside import main; main()"
    done = guest.agent.exec(
        [sys.executable, "-I", "-c", code],
        env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
        stdin=json.dumps(order).encode(),
        timeout_s=limit_s + _AROUND_S,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout.decode().strip().splitlines()[-1])
    except (ValueError, IndexError):
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise MachineError(f"the trial inside {outer} failed: {said[0]}", console=guest.console()) from None
    if "error" in answer:
        raise MachineError(
            f"inside {outer}: {answer['error']}",
            hint=answer["hint"],
            console=answer["console"],
            phases=answer["phases"],
        )
    measurements = tuple(
        Measurement(Metric(one["name"], one["unit"], Better(one["better"])), one["value"], (one["value"],))
        for one in answer.pop("measurements")
    )
    findings = Findings(measurements, command_line=tuple(answer.pop("command_line")), **answer)
    if abs(done.wall_s - done.guest_wall_s) > _CLOCKS_APART * done.wall_s + done.wall_error_s:
        findings.warnings.append(
            f"the trial took {done.wall_s:.2f} s on the host's clock and {done.guest_wall_s:.2f} s on that of the "
            f"outer guest, which measured it"
        )
    return findings


_CALLER = ("cwd", "env", "uid", "gid", "groups")


def main() -> None:
    """In the outer guest: reads what to do (JSON) and prints what came of it, one line of JSON."""
    order: dict[str, Any] = json.load(sys.stdin)
    spec = WorkloadSpec(order["workload"], order["params"])
    cell = Cell("inner", spec, order["platform"], order["factors"], baseline=True)
    policy = Policy(blocks=1, trial_limit_s=order["limit_s"])
    try:
        answer = _trial(Plan("inner", (cell,), policy, (), order["caller"]), cell)
    except GuestmarkError as error:
        console, phases = (error.console, error.phases) if isinstance(error, MachineError) else ("", {})
        answer = {"error": error.message, "hint": error.hint, "console": console, "phases": dict(phases)}
    sys.stdout.write(json.dumps(answer) + "\n")


def _trial(plan: Plan, cell: Cell) -> dict[str, Any]:
    from guestmark.platforms import registry
    from guestmark.workloads import base

    workload = base.create(plan, cell)
    with base.start_machine(workload, registry.get(cell.platform), cell) as machine:
        attestation = dict(machine.attest())
        workload.prepare(machine)
        try:
            measured = workload.run(machine)
        finally:
            workload.cleanup(machine)
        return {
            "measurements": [{**asdict(one.metric), "value": one.value} for one in measured],
            "phases": dict(machine.phases),
            "facts": dict(workload.facts),
            "attestation": attestation,
            "command_line": list(machine.command_line),
            "warnings": workload.warnings,
        }
