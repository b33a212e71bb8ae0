"""Gates: limits that fail a run, such as `tcg wall_s > +5%` on a ratio to the baseline, or `tcg lost` on power cuts."""

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from guestmark.core.errors import UsageError, make_unknown_name_error
from guestmark.core.model import Cell, Plan
from guestmark.core.workload_kind import index_workload_kinds

_FORM = "write CELL METRIC > +5%, e.g. 'tcg wall_s > +5%' or 'throughput < -3%'; for power cuts: lost, part or unproven"
_DURABILITY = re.compile(
    r"(?P<what>(?:.*?\s)??)(?:durability\s*=\s*)?(?P<word>lost|part|unproven)", re.DOTALL
)
_GATE = re.compile(r"(?P<what>[^<>]*)(?P<sign>[<>])(?P<limit>[^<>]*)", re.DOTALL)
_LIMIT = re.compile(r"(?P<sign>[+-]?)(?P<number>[0-9]+(\.[0-9]+)?)\s*%|[x×]\s*(?P<factor>[0-9]+(\.[0-9]+)?)")


class Loss(StrEnum):
    """What a gate about power cuts refuses, the most tolerant first: each also refuses what those before it refuse."""

    # A crash state lacks what was acknowledged, or flushes are dropped.
    LOST = "lost"
    # Something that was never synced was left on the disk.
    UNSYNCED_PART = "part"
    UNPROVEN = "unproven"  # anything but `proven`


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate on the ratio to the baseline: it fails if the ratio is above `limit` (with `above`) or below it.

    `words` select cells by platform, workload key or `FACTOR=LEVEL`; without words it applies to every cell but the
    baseline. An empty `metric` is the primary one of each table. With `loss` the gate is about power cuts, also of
    baselines, and has no limit.
    """

    text: str  # as typed
    words: tuple[str, ...]
    metric: str
    limit: float
    above: bool
    loss: Loss | None = None

    def selects_cell(self, cell: Cell) -> bool:
        """Return whether the gate applies to the cell; never to a null cell, nor, without `loss`, to a baseline."""
        if cell.null_of is not None or (cell.baseline and self.loss is None):
            return False
        return " ".join(self.words) == cell.id or all(word in _list_cell_names(cell) for word in self.words)


def parse_gates(texts: Iterable[str], cells: Collection[Cell], metrics: Collection[str]) -> tuple[Gate, ...]:
    """Return the gates of `--fail-if`, in order. Raises `UsageError` for one that applies to nothing in the plan."""
    return tuple(_parse_gate(text, cells, metrics) for text in texts)


def read_plan_gates(plan: Plan) -> tuple[Gate, ...]:
    """Return the gates that a plan was run with."""
    return _parse_for_plan(plan.context.gates, plan)


def _parse_for_plan(texts: Iterable[str], plan: Plan) -> tuple[Gate, ...]:
    return parse_gates(texts, plan.cells, {metric.name for metric in plan.metrics})


def add_gates(plan: Plan, texts: Sequence[str]) -> Plan:
    """Return the plan with these gates added. Raises `UsageError` for gates that apply to nothing in the plan."""
    if not texts:
        return plan
    every = tuple(dict.fromkeys([*plan.context.gates, *texts]))
    _parse_for_plan(every, plan)
    return replace(plan, context=replace(plan.context, gates=every))


def is_power_cut_gate(text: str) -> bool:
    """Return whether a gate as typed is about power cuts."""
    return _DURABILITY.fullmatch(text.strip()) is not None


def parse_limits(texts: Iterable[str], cells: Collection[Cell], metrics: Collection[str]) -> tuple[Gate, ...]:
    """Parse gates where only ratios can be judged. Raises `UsageError` for a gate about power cuts."""
    gates = parse_gates(texts, cells, metrics)
    for gate in gates:
        if gate.loss is not None:
            raise UsageError(
                f"--fail-if {gate.text!r} applies to the power cuts of a single run",
                hint=f"use guestmark gate RUN --fail-if {gate.text!r}",
            )
    return gates


def check_power_is_cut(plan: Plan, *, proving: bool) -> None:
    """Raises `UsageError` for a gate about power cuts on cells whose power is not cut in this run."""
    if proving or plan.context.prove:
        return
    kinds = index_workload_kinds()
    for gate in read_plan_gates(plan):
        if gate.loss is None:
            continue
        for cell in plan.cells:
            if gate.selects_cell(cell) and not kinds[cell.workload.name].proves:
                raise UsageError(
                    f"--fail-if {gate.text!r}: this run cuts no power",
                    hint="add --prove, or use guestmark powercut",
                )


def _parse_gate(text: str, cells: Collection[Cell], metrics: Collection[str]) -> Gate:
    if lost := _DURABILITY.fullmatch(text.strip()):
        gate = Gate(text.strip(), tuple(lost["what"].split()), "", 0.0, True, Loss(lost["word"]))
        if not any(gate.selects_cell(cell) for cell in cells):
            raise _describe_unmatched(text, gate, cells, metrics)
        return gate
    found = _GATE.fullmatch(text)
    limit = _LIMIT.fullmatch(found["limit"].strip()) if found else None
    if found is None or limit is None:
        raise UsageError(f"--fail-if {text!r} is not a limit", hint=_FORM)
    words = found["what"].split()
    above = found["sign"] == ">"
    metric = words.pop() if words and words[-1] in metrics else ""
    gate = Gate(text.strip(), tuple(words), metric, _parse_ratio(limit, above=above), above)
    if gate.limit <= 0 or not math.isfinite(gate.limit):
        raise UsageError(f"--fail-if {text!r}: a ratio cannot be negative", hint=_FORM)
    if all(cell.baseline or cell.null_of is not None for cell in cells):
        raise UsageError(
            f"--fail-if {text!r}: there is only one cell, so there is nothing to compare it with",
            hint="name two platforms with --on, or compare two programs: guestmark ab -- ./old --- ./new",
        )
    if not any(gate.selects_cell(cell) for cell in cells):
        raise _describe_unmatched(text, gate, cells, metrics)
    return gate


def _parse_ratio(limit: re.Match[str], *, above: bool) -> float:
    if limit["factor"] is not None:
        return float(limit["factor"])
    share = float(limit["number"]) / 100
    # `< 5%` can only mean a loss of 5 %, as `> 5%` means a growth.
    falls = limit["sign"] == "-" or (not limit["sign"] and not above)
    return 1 - share if falls else 1 + share


def _describe_unmatched(
    text: str, gate: Gate, cells: Collection[Cell], metrics: Collection[str]
) -> UsageError:
    names: set[str] = set()
    for cell in cells:
        names |= _list_cell_names(cell)
    stray = [word for word in gate.words if word not in names]
    if stray:
        error = make_unknown_name_error("cell or metric", stray[-1], [*sorted(names), *metrics])
        return UsageError(f"--fail-if {text!r}: {error.message}", hint=error.hint)
    if any(cell.baseline and set(gate.words) <= _list_cell_names(cell) for cell in cells):
        return UsageError(
            f"--fail-if {text!r}: this is the baseline that the other cells are compared with",
            hint="name another cell, or choose another --baseline",
        )
    return UsageError(f"--fail-if {text!r}: no cell matches", hint="--list shows the cells of the plan")


def _list_cell_names(cell: Cell) -> set[str]:
    names = {str(cell.platform), cell.workload.key or cell.workload.name}
    for levels in (cell.factors, cell.labels):
        names.update(f"{factor}={level}" for factor, level in levels.items())
    return names
