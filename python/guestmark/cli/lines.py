"""Progress without a terminal: at most one plain line on standard error for each block, and one a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from guestmark.core.model import Cell, Plan, Trial, TrialStatus
from guestmark.core.units import counted, format_duration
from guestmark.page.say import say

if TYPE_CHECKING:
    from guestmark.engine.progress import Estimate, Foreseen
    from guestmark.stats.analysis import CellResult

_WIDTH = 79  # columns of a line about a block: a log that is 80 wide does not wrap it
_APART_S = 1.0  # blocks that pass more quickly than this share a line


def left(seconds: float | None, limit_s: float) -> str:
    """What is said of the time left: the forecast, or without one when the run stops in any case."""
    if seconds is None:
        return f"no estimate yet; stops after {format_duration(limit_s)}"
    return f"about {format_duration(seconds)} left"


class Lines:
    """An observer that prints plain lines."""

    wants_estimates = True

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, show_output: bool = False) -> None:
        self._show_output = show_output
        self._clock = clock
        self._metric = ""
        self._unit = ""
        self._limit_s = 0.0
        self._failures: list[str] = []  # since the last line
        self._next = 0.0
        self._foreseen = False  # whether it was said what to expect

    def started(self, plan: Plan, blocks: int) -> None:
        """How much there is to do."""
        self._metric, self._unit = plan.metrics[0].name, plan.metrics[0].unit
        self._limit_s = plan.policy.time_limit_s
        self._next = self._clock()
        least = "" if plan.policy.blocks else "at least "
        goal = least + counted(plan.policy.blocks or plan.policy.min_blocks, "block")
        resumed = f", {blocks} done before" if blocks else ""
        _line(f"{counted(len(plan.cells), 'cell')}, {goal}{resumed}, seed {plan.policy.seed}")

    def trial_started(self, cell: Cell, block: int) -> None:
        """Nothing: the line comes when the block ends."""

    def phase(self, name: str) -> None:
        """Nothing."""

    def trial_ended(self, cell: Cell, trial: Trial) -> None:
        """Shows what was printed if that was asked for, and remembers a failure for the block's line."""
        if self._show_output:
            _write(printed(cell, trial))
        if trial.status is not TrialStatus.OK:
            self._failures.append(f"{cell.id} failed: {trial.reason}")

    def block_ended(self, estimate: Estimate) -> None:
        """What failed, the estimates so far and the time left; nothing when the last line is too fresh."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _APART_S
        head = f"guestmark: block {estimate.blocks}"
        head += f" of {estimate.goal}" if estimate.goal else ""
        head += f", {left(estimate.left_s, self._limit_s)}" if estimate.left_s or not estimate.goal else ""
        if estimate.foreseen is not None and not self._foreseen:
            self._foreseen = True
            _line(ahead(estimate.foreseen))
        results = estimate.analysis.cells
        shown = [text for text in map(self._estimate, results) if text]
        if not shown:  # nothing is compared yet
            shown = [text for text in map(self._mean, results) if text]
        _write(_fitted(head, self._failures, shown))
        self._failures.clear()

    def note(self, text: str) -> None:
        """The remark."""
        _line(text)

    def _estimate(self, result: CellResult) -> str:
        from guestmark.page import figures

        comparison = result.comparison.get(self._metric)
        if comparison is None or comparison.ratio is None:
            return ""
        return f"{result.cell.id} {figures.ratio(comparison.ratio, comparison.ci)}"

    def _mean(self, result: CellResult) -> str:
        from guestmark.page.figures import table_unit

        summary = result.summary.get(self._metric)
        if summary is None:
            return ""
        unit = table_unit(self._unit, [summary.mean])
        name = self._metric.removesuffix("_s")
        return f"{result.cell.id} {name} {summary.mean / unit.size:.4g} {unit.name}".rstrip()


def printed(cell: Cell, trial: Trial) -> str:
    """What the trial's machine and command printed last, below a line that names it."""
    return f"{cell.id}, block {trial.block + 1}:\n{trial.console.strip() or '(nothing printed)'}"


def ahead(foreseen: Foreseen) -> str:
    """What a run will know, and when."""
    from guestmark.page import figures
    from guestmark.page.claims import Claim

    rare_s = foreseen.rare_left_s
    return Claim.FORESEEN.format(
        precision=figures.known_to(foreseen.half_width),
        left=format_duration(foreseen.left_s),
        factor=f"{foreseen.rare.factor:g}",
        often=foreseen.rare.often,
        rare_left="more time than a run may take" if rare_s is None else format_duration(rare_s),
    )


def _fitted(head: str, failures: Iterable[str], estimates: Iterable[str]) -> str:
    """The head and as many details as fit on a line.

    Of a single one that is too long, a failure loses its end, and an estimate the beginning of its cell's name.
    """
    from rich.cells import cell_len, set_cell_size

    line, separator = head, ": "
    for detail, is_estimate in [*((each, False) for each in failures), *((each, True) for each in estimates)]:
        longer = f"{line}{separator}{detail}"
        if cell_len(longer) <= _WIDTH:
            line, separator = longer, "; "
        elif separator == "; ":
            return f"{line}; …" if cell_len(line) + 3 <= _WIDTH else line
        elif is_estimate:
            kept = _WIDTH - cell_len(f"{line}: …")
            return f"{line}: …{detail[-kept:].lstrip()}" if kept > 0 else line
        else:
            return f"{set_cell_size(longer, _WIDTH - 1).rstrip()}…"
    return line


def _line(text: str) -> None:
    _write(f"guestmark: {text}")


def _write(line: str) -> None:
    say(line, prefix="")
