"""Progress redrawn on a terminal: the running trial, how far the run is, and the estimates so far."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.live import Live as RichLive
from rich.segment import Segment, Segments
from rich.text import Text

from guestmark.cli.console import Console
from guestmark.cli.plain_progress import KnownFailures, describe_forecast, describe_output, describe_time_left
from guestmark.core.model import Cell, Plan, Trial, TrialStatus
from guestmark.core.units import format_duration
from guestmark.page.text import make_inert
from guestmark.report.render.terminal import draw_results

if TYPE_CHECKING:
    from guestmark.engine.progress import ProgressEstimate

# The display must not disturb what it shows: it is drawn when something happens and, for the clock, once a second.
_REFRESH_PER_SECOND = 1.0


class LiveProgress:
    """An observer that draws on standard error; a context manager, because the terminal must be restored."""

    wants_estimates = True

    def __init__(
        self, console: Console | None = None, *, show_output: bool = False, show_forecast: bool = False
    ) -> None:
        self._show_output = show_output
        self._show_forecast = show_forecast
        self._console = console or Console(stderr=True)
        self._plan: Plan | None = None
        self._cell = ""
        self._phase = ""
        self._since = time.monotonic()
        self._block = 0
        self._failed = 0
        self._known_failures = KnownFailures()
        self._in_block = 0
        self._estimate: ProgressEstimate | None = None
        self._estimated_at = 0.0
        self._table: Segments | None = None
        self._live = RichLive(
            get_renderable=self._draw,
            console=self._console,
            refresh_per_second=_REFRESH_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def started(self, plan: Plan, blocks: int) -> None:
        """Remembers what there is to do."""
        self._plan, self._block = plan, blocks

    def trial_started(self, cell: Cell, block: int) -> None:
        """Remembers the cell that is running; the display shows it."""
        if block != self._block:
            self._block, self._in_block = block, 0
        self._cell, self._since = cell.id, time.monotonic()

    def phase(self, name: str) -> None:
        """Shows the phase of the trial."""
        self._phase = name
        self._live.refresh()

    def trial_ended(self, cell: Cell, trial: Trial) -> None:
        """Counts the trial, and prints a failure above the display unless the cell has failed in this way before."""
        self._in_block += 1
        if self._show_output:
            self._console.print(Text(describe_output(cell, trial)), soft_wrap=True)
        if trial.status is not TrialStatus.OK:
            self._failed += 1
            if failure := self._known_failures.describe(trial):
                self.note(f"block {trial.block + 1}: {failure}")

    def block_ended(self, estimate: ProgressEstimate) -> None:
        """Shows the new estimates."""
        self._estimate, self._estimated_at = estimate, time.monotonic()
        if estimate.analysis.trials:
            # Laid out once per block, because the time for it would be taken from the measurement every second.
            table = draw_results(estimate.analysis, self._console.width)
            lines = self._console.render_lines(table, pad=False)
            # The status below must stay in sight.
            room = max(self._console.height - 4, 1)
            visible = lines
            if len(lines) > room:
                visible = [*lines[: room - 1], [Segment("…")]]
            segments: list[Segment] = []
            for line in visible:
                segments += (*line, Segment.line())
            self._table = Segments(segments)
        self._live.refresh()

    def note(self, text: str) -> None:
        """Prints a remark that stays on the screen."""
        self._console.print(Text(f"guestmark: {make_inert(text, lines=True)}"), soft_wrap=True)

    def _draw(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._table:
            parts.append(self._table)
        if self._show_forecast and self._estimate and self._estimate.foreseen:
            parts.append(Text(describe_forecast(self._estimate.foreseen), no_wrap=True, overflow="ellipsis"))
        return Group(*parts, self._render_status())

    def _render_status(self) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        goal = None
        if self._estimate:
            goal = self._estimate.goal if self._estimate.is_goal_known else None
        elif self._plan:
            goal = self._plan.policy.blocks
        text.append(f"block {self._block + 1}", style="bold")
        if goal:
            about = "" if self._plan and self._plan.policy.blocks else "about "
            text.append(f" of {about}{max(goal, self._block + 1)}")
        # First what lasts: a narrow terminal cuts off the end of the line, so the step that soon ends comes last.
        if self._estimate and self._plan and self._estimate.is_going_on:
            left = self._estimate.left
            if left is not None:
                left = left.after(time.monotonic() - self._estimated_at)
            text.append(f", {describe_time_left(left, self._plan.policy.time_limit_s)}")
        if self._failed:
            text.append(f" · {self._failed} failed", style="red")
        if self._plan:
            text.append(f" · {self._in_block} of {len(self._plan.cells)} cells done")
        if self._cell:
            text.append(" · ")
            text.append(make_inert(self._cell), style="cyan")
            text.append(f" {self._phase} ({format_duration(time.monotonic() - self._since)})")
        return text
