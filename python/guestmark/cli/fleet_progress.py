"""Progress of a fleet's machines: redrawn on a terminal, otherwise printed now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from guestmark.core.units import format_count
from guestmark.fleet.coordinator import Fleet, MachineState
from guestmark.page.say import erase_lines, redraw_lines, say

# The time between lines if nothing can be redrawn.
_EVERY_S = 30.0


class FleetProgress:
    """Shows progress on standard error."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._redraws = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._last_line_at = time.monotonic()
        self._shown_lines = 0

    def update(self, fleet: Fleet) -> None:
        """Shows what each machine is doing; called twice a second."""
        if self._quiet:
            return
        now, states = time.monotonic(), list(fleet.states.values())
        if self._redraws:
            # If a line wrapped, only the first of its two lines would be overwritten.
            columns, rows = os.get_terminal_size(2)
            lines = [line[: columns - 1] for line in render_states(states, max(2, rows - 2))]
            redraw_lines(lines, self._shown_lines)
            self._shown_lines = len(lines)
        elif now - self._last_line_at >= _EVERY_S:
            self._last_line_at = now
            trials = sum(state.progress.trials for state in states)
            machines = format_count(len(states), "machine")
            say(f"{format_count(trials, 'trial')} so far; {_count_ended(states)} of {machines} done")

    def note(self, text: str) -> None:
        """Prints a remark, above the machines where these are shown."""
        if self._shown_lines:
            erase_lines(self._shown_lines)
            self._shown_lines = 0
        say(text)


def render_states(states: Sequence[MachineState], most_lines: int) -> list[str]:
    """Renders a line for each machine. If there are too many, only those at work have one; the rest are counted."""
    if len(states) <= most_lines:
        return [_render_state(state) for state in states]
    busy_first = sorted(states, key=lambda state: state.is_over)
    shown, others = busy_first[: most_lines - 1], busy_first[most_lines - 1 :]
    rest = f"and {format_count(len(others), 'machine')} more, {_count_ended(others)} of them done"
    return [*map(_render_state, shown), rest]


def _count_ended(states: Sequence[MachineState]) -> int:
    return sum(state.is_over for state in states)


def _render_state(state: MachineState) -> str:
    progress = state.progress
    doing = state.gave_up
    if not doing:
        doing = progress.state if state.has_ended else _describe_activity(state)
    counts = f"{format_count(progress.blocks, 'block'):>11}  {format_count(progress.trials, 'trial'):>12}"
    for count, word in ((progress.failed, "failed"), (progress.lost, "lost")):
        if count:
            counts += f"  {count} {word}"
    return f"{state.member.name:20.20} {counts}  {doing}"


def _describe_activity(state: MachineState) -> str:
    """Describes what a machine is doing whose run has not ended."""
    if state.link is None:
        return "not connected"
    return "measuring" if state.answered else "being set up"
