"""Progress as plain lines on standard error: at most one for each block, and at most one a second.

Lines in a log are never cut; on a terminal that cannot redraw, a line keeps to the terminal's width. During a block
that takes longer than half a minute, a line every half minute says what is going on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from guestmark.core.model import Cell, Plan, Trial, TrialStatus
from guestmark.core.reminder import Reminder
from guestmark.core.units import format_count, format_duration
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.say import say

if TYPE_CHECKING:
    from guestmark.core.metric import Metric
    from guestmark.engine.progress import EndForecast, ProgressEstimate, TimeLeft
    from guestmark.stats.analysis import Analysis, CellResult

# Estimates in a line of a log; more would hide the failures before them.
_MOST_ESTIMATES = 12
_LONGEST_SILENCE_S = 30.0
# How the ends of a range are rounded: below this many seconds, to multiples of that many, shown in this unit.
_ROUGH = (
    (10.0, 1.0, 1.0, "s"),
    (95.0, 5.0, 1.0, "s"),
    (5400.0, 60.0, 60.0, "min"),
    (math.inf, 1800.0, 3600.0, "h"),
)
# Blocks that are shorter than this share a line.
_APART_S = 1.0


def describe_time_left(left: TimeLeft | None, limit_s: float) -> str:
    """Describes the time left: the forecast, or without one the time limit, at which the run stops."""
    if left is None:
        return f"no estimate yet; stops after {format_duration(limit_s)}"
    return f"{describe_forecast_time(left)} left"


def describe_forecast_time(left: TimeLeft) -> str:
    """Describes a forecast: one time if it is accurate within a factor of 1.5, else a range."""
    if left.is_narrow:
        return f"about {format_duration(math.sqrt(left.least_s * left.most_s))}"
    most, unit = _round_time(left.most_s, math.ceil)
    least, its_unit = _round_time(left.least_s, math.floor)
    if not least:
        return f"up to {most:g} {unit}"
    if unit == its_unit:
        return f"{least:g} to {most:g} {unit}"
    return f"{least:g} {its_unit} to {most:g} {unit}"


def _round_time(seconds: float, to_whole: Callable[[float], int]) -> tuple[float, str]:
    """Rounds a time as the end of a range to a few digits: the number and its unit."""
    _, step, size, unit = next(rough for rough in _ROUGH if seconds < rough[0])
    return to_whole(seconds / step) * step / size, unit


class PlainProgress:
    """An observer that prints plain lines. As a context manager it breaks every silence of `quiet_s` seconds."""

    wants_estimates = True

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        show_output: bool = False,
        quiet_s: float = _LONGEST_SILENCE_S,
        width: int | None = None,
        show_forecast: bool = False,
    ) -> None:
        self._width = width
        self._show_forecast = show_forecast
        self._show_output = show_output
        self._reminder = Reminder(self._remind, first_s=quiet_s, every_s=quiet_s)
        self._cells, self._in_block, self._block = 0, 0, 0
        self._cell, self._phase, self._since = "", "", 0.0
        self._clock = clock
        self._metric = ""
        self._limit_s = 0.0
        # Failures since the last line was printed.
        self._failures: list[str] = []
        self._known_failures = KnownFailures()
        self._next_line_at = 0.0
        self._forecast_shown = False

    def __enter__(self) -> PlainProgress:
        self._reminder.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A run may end in the middle of a block.
        self._print_failures()
        self._reminder.__exit__(kind, error, trace)

    def started(self, plan: Plan, blocks: int) -> None:
        """Prints how much there is to do."""
        self._cells, self._block = len(plan.cells), blocks
        self._metric = plan.metrics[0].name if plan.metrics else ""
        self._limit_s = plan.policy.time_limit_s
        self._next_line_at = self._clock()
        goal = "" if plan.policy.blocks else "at least "
        goal += format_count(plan.policy.blocks or plan.policy.min_blocks, "block")
        resumed = f", {blocks} done before" if blocks else ""
        self._print_line(f"{format_count(len(plan.cells), 'cell')}, {goal}{resumed}, seed {plan.policy.seed}")

    def trial_started(self, cell: Cell, block: int) -> None:
        """Remembers the cell for a reminder; the line of a block is printed when it ends."""
        if block != self._block:
            self._block, self._in_block = block, 0
        self._cell, self._phase, self._since = cell.id, "", time.monotonic()

    def phase(self, name: str) -> None:
        """Remembers the phase for a reminder."""
        self._phase = name

    def _remind(self, _elapsed_s: float) -> None:
        if not self._cell:
            return
        cells = f"{self._in_block} of {format_count(self._cells, 'cell')} done"
        now = f"{self._cell} {self._phase}".rstrip()
        took = format_duration(time.monotonic() - self._since)
        self._print_line(f"block {self._block + 1}, {cells}; {now}, {took} so far")

    def trial_ended(self, cell: Cell, trial: Trial) -> None:
        """Shows the trial's output if this was requested, and remembers a failure for the block's line."""
        self._in_block += 1
        if self._show_output:
            _write_line(describe_output(cell, trial))
        if trial.status is not TrialStatus.OK:
            self._failures.append(self._known_failures.describe(trial) or f"{cell.id} failed again")

    def block_ended(self, estimate: ProgressEstimate) -> None:
        """Prints failures, estimates so far and the time left, unless a line was printed less than a second ago."""
        now = self._clock()
        if now < self._next_line_at:
            return
        self._next_line_at = now + _APART_S
        head = f"guestmark: block {estimate.blocks}"
        if estimate.goal and estimate.is_goal_known:
            head += f" of {estimate.goal}"
        if estimate.is_going_on:
            head += f", {describe_time_left(estimate.left, self._limit_s)}"
        if self._show_forecast and estimate.foreseen is not None and not self._forecast_shown:
            self._forecast_shown = True
            self._print_line(describe_forecast(estimate.foreseen))
        # A resting cell is not being measured, so its estimate would only repeat itself.
        results = [result for result in estimate.analysis.cells if result.cell.id not in estimate.resting]
        estimates = self._format_estimates(results, estimate.analysis)
        if self._width is None:
            _write_line(_join_details(head, self._failures, estimates))
        else:
            _write_line(_fit_details(head, self._failures, estimates, self._width - 1))
        # The line has broken the silence.
        self._reminder.postpone()
        self._failures.clear()

    def note(self, text: str) -> None:
        """Prints the failures that have not been printed yet, then the remark, which may be about them."""
        self._print_failures()
        self._print_line(text)

    def _print_failures(self) -> None:
        if self._failures:
            head = f"guestmark: block {self._block + 1}"
            _write_line(_join_details(head, list(dict.fromkeys(self._failures)), ()))
            self._failures.clear()

    def _print_line(self, text: str) -> None:
        _write_line(f"guestmark: {text}")
        self._reminder.postpone()

    def _format_estimates(self, results: Sequence[CellResult], analysis: Analysis) -> list[str]:
        # Until cells can be compared, there are only means.
        for describe in (self._format_ratio, _format_mean):
            estimates = []
            for result in results:
                metric = analysis.find_primary_metric(result.cell.id)
                if metric is not None and (text := describe(result, metric)):
                    estimates.append(text)
            if estimates:
                return estimates
        return [f"{result.cell.id}: no figures yet" for result in results]

    def _format_ratio(self, result: CellResult, metric: Metric) -> str:
        comparison = result.comparison.get(metric.name)
        if comparison is None or comparison.ratio is None:
            return ""
        name = "" if metric.name == self._metric else f"{figures.name_metric(metric)} "
        return f"{result.cell.id} {name}{figures.format_ratio(comparison.ratio, comparison.ci)}"


def _format_mean(result: CellResult, metric: Metric) -> str:
    summary = result.summary.get(metric.name)
    if summary is None:
        return ""
    unit = figures.choose_table_unit(metric.unit, [summary.mean])
    return f"{result.cell.id} {metric.name.removesuffix('_s')} {summary.mean / unit.size:.4g} {unit.name}".rstrip()


class KnownFailures:
    """The failures that were printed, so that no reason is printed twice."""

    def __init__(self) -> None:
        self._first_cells: dict[str, str] = {}
        self._cells: set[tuple[str, str]] = set()

    def describe(self, trial: Trial) -> str:
        """Describes a failure with its reason, unless the reason was printed before.

        Returns nothing if this very cell has failed for that reason before.
        """
        if (trial.cell_id, trial.reason) in self._cells:
            return ""
        self._cells.add((trial.cell_id, trial.reason))
        if self._first_cells.setdefault(trial.reason, trial.cell_id) != trial.cell_id:
            return f"{trial.cell_id} failed, too"
        return f"{trial.cell_id} failed: {trial.reason}"


def describe_output(cell: Cell, trial: Trial) -> str:
    """Returns the last output of the trial's machine and command, below a line that names the trial."""
    return f"{cell.id}, block {trial.block + 1}:\n{trial.console.strip() or '(nothing printed)'}"


def describe_forecast(forecast: EndForecast) -> str:
    """Describes what a run will be able to show, and when."""
    rare_s = forecast.rare_left_s
    return Claim.FEWEST_FOR_FORECAST.format(
        precision=figures.describe_precision(forecast.half_width),
        left=describe_forecast_time(forecast.left),
        factor=f"{forecast.rare.factor:g}",
        often=forecast.rare.frequency_text,
        rare_left="more time than a run may take" if rare_s is None else format_duration(rare_s),
    )


def _join_details(head: str, failures: Sequence[str], estimates: Sequence[str]) -> str:
    """Returns the head with all failures and a limited number of estimates, none of them cut."""
    rest = len(estimates) - _MOST_ESTIMATES
    more = [f"and {rest} more"] if rest > 0 else []
    details = [*failures, *estimates[:_MOST_ESTIMATES], *more]
    return f"{head}: {'; '.join(details)}" if details else head


def _fit_details(head: str, failures: Iterable[str], estimates: Iterable[str], width: int) -> str:
    """Returns the head with as many details as fit on a line.

    If not even the first one fits, a failure loses its end, and an estimate the beginning of its cell's name.
    """
    line, separator = head, ": "
    details = [(failure, False) for failure in failures] + [(estimate, True) for estimate in estimates]
    for detail, is_estimate in details:
        longer = f"{line}{separator}{detail}"
        if cell_len(longer) <= width:
            line, separator = longer, "; "
        elif separator == "; ":
            return f"{line}; …" if cell_len(line) + 3 <= width else line
        elif is_estimate:
            # The figure stands at the end of an estimate.
            kept = width - cell_len(f"{line}: …")
            return f"{line}: …{detail[-kept:].lstrip()}" if kept > 0 else line
        else:
            return f"{set_cell_size(longer, width - 1).rstrip()}…"
    return line


def _write_line(line: str) -> None:
    say(line, prefix="")
