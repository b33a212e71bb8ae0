"""What must not be: `tcg wall_s > +5%`, a limit to a cell's ratio to its baseline."""

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from guestmark.core.errors import UsageError, unknown
from guestmark.core.model import Cell, Plan

_FORM = "write CELL METRIC > +5%, e.g. 'tcg wall_s > +5%', 'kernel=new > +2%' or 'throughput < -3%'"
_GATE = re.compile(r"(?P<what>[^<>]*)(?P<sign>[<>])(?P<limit>[^<>]*)", re.DOTALL)
_LIMIT = re.compile(r"(?P<sign>[+-]?)(?P<number>[0-9]+(\.[0-9]+)?)\s*%|[x×]\s*(?P<factor>[0-9]+(\.[0-9]+)?)")


@dataclass(frozen=True, slots=True)
class Gate:
    """The ratio to the baseline must not be above `limit` (with `above`), or below it.

    `words` select cells: a platform, a workload's key, `FACTOR=LEVEL`; none: every cell but the baseline. An empty
    `metric` is the primary one of each table.
    """

    text: str  # as typed
    words: tuple[str, ...]
    metric: str
    limit: float
    above: bool

    def selects(self, cell: Cell) -> bool:
        """Whether it is about the cell; never a baseline, or a copy that shows the noise."""
        if cell.baseline or cell.null_of is not None:
            return False
        return " ".join(self.words) == cell.id or all(word in _names(cell) for word in self.words)


def parse_gates(texts: Iterable[str], cells: Collection[Cell], metrics: Collection[str]) -> tuple[Gate, ...]:
    """The gates of `--fail-if`, in order. Raises `UsageError` for one that no cell or metric of the plan fits."""
    return tuple(_parse(text, cells, metrics) for text in texts)


def gates_of(plan: Plan) -> tuple[Gate, ...]:
    """The gates that a plan was run with."""
    return parse_gates(plan.context.gates, plan.cells, {metric.name for metric in plan.metrics})


def with_gates(plan: Plan, texts: Sequence[str]) -> Plan:
    """The plan with these gates beside those it has. Raises `UsageError` for gates that nothing in the plan fits."""
    if not texts:
        return plan
    every = tuple(dict.fromkeys([*plan.context.gates, *texts]))
    parse_gates(every, plan.cells, {metric.name for metric in plan.metrics})
    return replace(plan, context=replace(plan.context, gates=every))


def _parse(text: str, cells: Collection[Cell], metrics: Collection[str]) -> Gate:
    found = _GATE.fullmatch(text)
    limit = _LIMIT.fullmatch(found["limit"].strip()) if found else None
    if found is None or limit is None:
        raise UsageError(f"--fail-if {text!r} is not a limit", hint=_FORM)
    words = found["what"].split()
    above = found["sign"] == ">"
    metric = words.pop() if words and words[-1] in metrics else ""
    gate = Gate(text.strip(), tuple(words), metric, _ratio(limit, above=above), above)
    if gate.limit <= 0 or not math.isfinite(gate.limit):
        raise UsageError(f"--fail-if {text!r}: a ratio cannot be negative", hint=_FORM)
    if all(cell.baseline or cell.null_of is not None for cell in cells):
        raise UsageError(
            f"--fail-if {text!r}: there is only one cell, so nothing to compare it with",
            hint="name two platforms with --on, or compare two programs: guestmark ab -- ./old --- ./new",
        )
    if not any(gate.selects(cell) for cell in cells):
        raise _unmatched(text, gate, cells, metrics)
    return gate


def _ratio(limit: re.Match[str], *, above: bool) -> float:
    if limit["factor"] is not None:
        return float(limit["factor"])
    share = float(limit["number"]) / 100
    # `< 5%` can only mean a loss of 5 %, as `> 5%` means a growth.
    falls = limit["sign"] == "-" or (not limit["sign"] and not above)
    return 1 - share if falls else 1 + share


def _unmatched(text: str, gate: Gate, cells: Collection[Cell], metrics: Collection[str]) -> UsageError:
    names = sorted({name for cell in cells for name in _names(cell)})
    stray = [word for word in gate.words if word not in names]
    if stray:
        error = unknown("cell or metric", stray[-1], [*names, *metrics])
        return UsageError(f"--fail-if {text!r}: {error.message}", hint=error.hint)
    if any(cell.baseline and set(gate.words) <= _names(cell) for cell in cells):
        return UsageError(
            f"--fail-if {text!r}: that is the baseline, to which the others are compared",
            hint="name another cell, or another --baseline",
        )
    return UsageError(f"--fail-if {text!r}: no cell matches", hint="run --list shows the cells")


def _names(cell: Cell) -> set[str]:
    levels = {f"{name}={level}" for known in (cell.factors, cell.labels) for name, level in known.items()}
    return {str(cell.platform), cell.workload.key or cell.workload.name, *levels}
