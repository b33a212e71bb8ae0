"""Progress without a terminal: at most one plain line on standard error for each block, and one a second.

Nothing in a log is cut; on a terminal that cannot draw a display anew, a line keeps to its width. A block that takes
longer than half a minute says every half minute what it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from guestmark.core.model import Cell, Plan, Trial, TrialStatus
from guestmark.core.reminder import Reminder
from guestmark.core.units import counted, format_duration
from guestmark.page.say import say

if TYPE_CHECKING:
    from guestmark.engine.progress import Forecast, ProgressEstimate
    from guestmark.stats.analysis import CellResult

_MOST = 12  # estimates in a line of a log
_QUIET_S = 30.0  # after which it is said what goes on
_APART_S = 1.0  # blocks that pass more quickly than this share a line


def left(seconds: float | None, limit_s: float) -> str:
    """What is said of the time left: the forecast, or without one when the run stops in any case."""
    if seconds is None:
        return f"no estimate yet; stops after {format_duration(limit_s)}"
    return f"about {format_duration(seconds)} left"


class Lines:
    """An observer that prints plain lines; a context manager, inside which no silence is longer than `quiet_s`."""

    wants_estimates = True

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        show_output: bool = False,
        quiet_s: float = _QUIET_S,
        width: int | None = None,
        planning: bool = False,
    ) -> None:
        self._width = width
        self._planning = planning  # whether it is said what will be known, and when
        self._show_output = show_output
        self._reminder = Reminder(self._remind, first_s=quiet_s, every_s=quiet_s)
        self._cells, self._in_block, self._block = 0, 0, 0
        self._cell, self._phase, self._since = "", "", 0.0
        self._clock = clock
        self._metric = ""
        self._unit = ""
        self._limit_s = 0.0
        self._failures: list[str] = []  # since the last line
        self._next = 0.0
        self._foreseen = False  # whether it was said what to expect

    def __enter__(self) -> Lines:
        self._reminder.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reminder.__exit__(kind, error, trace)

    def started(self, plan: Plan, blocks: int) -> None:
        """How much there is to do."""
        self._cells, self._block = len(plan.cells), blocks
        self._metric, self._unit = plan.metrics[0].name, plan.metrics[0].unit
        self._limit_s = plan.policy.time_limit_s
        self._next = self._clock()
        least = "" if plan.policy.blocks else "at least "
        goal = least + counted(plan.policy.blocks or plan.policy.min_blocks, "block")
        resumed = f", {blocks} done before" if blocks else ""
        self._line(f"{counted(len(plan.cells), 'cell')}, {goal}{resumed}, seed {plan.policy.seed}")

    def trial_started(self, cell: Cell, block: int) -> None:
        """What would be said of a long block; its line comes when it ends."""
        if block != self._block:
            self._block, self._in_block = block, 0
        self._cell, self._phase, self._since = cell.id, "", time.monotonic()

    def phase(self, name: str) -> None:
        """Likewise."""
        self._phase = name

    def _remind(self, _elapsed_s: float) -> None:
        if not self._cell:
            return
        cells = f"{self._in_block} of {counted(self._cells, 'cell')} done"
        now = f"{self._cell} {self._phase}".rstrip()
        took = format_duration(time.monotonic() - self._since)
        self._line(f"block {self._block + 1}, {cells}; {now}, {took} so far")

    def trial_ended(self, cell: Cell, trial: Trial) -> None:
        """Shows what was printed if that was asked for, and remembers a failure for the block's line."""
        self._in_block += 1
        if self._show_output:
            _write(printed(cell, trial))
        if trial.status is not TrialStatus.OK:
            self._failures.append(f"{cell.id} failed: {trial.reason}")

    def block_ended(self, estimate: ProgressEstimate) -> None:
        """What failed, the estimates so far and the time left; nothing when the last line is too fresh."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _APART_S
        head = f"guestmark: block {estimate.blocks}"
        head += f" of {estimate.goal}" if estimate.goal else ""
        head += f", {left(estimate.left_s, self._limit_s)}" if estimate.left_s or not estimate.goal else ""
        if self._planning and estimate.foreseen is not None and not self._foreseen:
            self._foreseen = True
            self._line(ahead(estimate.foreseen))
        results = estimate.analysis.cells
        shown = [text for text in map(self._estimate, results) if text]
        if not shown:  # nothing is compared yet
            shown = [text for text in map(self._mean, results) if text]
        _write(
            _whole(head, self._failures, shown)
            if self._width is None
            else _fitted(head, self._failures, shown, self._width - 1)
        )
        self._reminder.postpone()
        self._failures.clear()

    def note(self, text: str) -> None:
        """The remark."""
        self._line(text)

    def _line(self, text: str) -> None:
        _write(f"guestmark: {text}")
        self._reminder.postpone()

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


def ahead(foreseen: Forecast) -> str:
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


def _whole(head: str, failures: Sequence[str], estimates: Sequence[str]) -> str:
    """The head with all failures, and estimates up to a number; each of them is whole."""
    rest = len(estimates) - _MOST
    more = [f"and {rest} more"] if rest > 0 else []
    details = [*failures, *estimates[:_MOST], *more]
    return f"{head}: {'; '.join(details)}" if details else head


def _fitted(head: str, failures: Iterable[str], estimates: Iterable[str], width: int) -> str:
    """The head and as many details as fit on a line.

    Of a single one that is too long, a failure loses its end, and an estimate the beginning of its cell's name.
    """
    from rich.cells import cell_len, set_cell_size

    line, separator = head, ": "
    for detail, is_estimate in [*((each, False) for each in failures), *((each, True) for each in estimates)]:
        longer = f"{line}{separator}{detail}"
        if cell_len(longer) <= width:
            line, separator = longer, "; "
        elif separator == "; ":
            return f"{line}; …" if cell_len(line) + 3 <= width else line
        elif is_estimate:
            kept = width - cell_len(f"{line}: …")
            return f"{line}: …{detail[-kept:].lstrip()}" if kept > 0 else line
        else:
            return f"{set_cell_size(longer, width - 1).rstrip()}…"
    return line


def _write(line: str) -> None:
    say(line, prefix="")
