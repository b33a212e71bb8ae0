"""Ratios and times of stored runs, as cells and texts for tables over several runs."""

from datetime import datetime

from guestmark.page import figures
from guestmark.page.tables import Cell, make_figure_cell
from guestmark.stats.across_runs import PastRatio


def format_past_ratio(run: PastRatio) -> tuple[str, ...]:
    """Return a run's ratio and its interval in pieces for a table."""
    return figures.format_ratio_pieces(run.ratio, (run.low, run.high))


def make_past_ratio_cell(run: PastRatio | None) -> Cell:
    """Return a run's ratio with its interval; an empty cell of figures without one."""
    return make_figure_cell("", "") if run is None else make_figure_cell(*format_past_ratio(run))


def format_moment(created_at: float) -> str:
    """Return a Unix time as local date and time, to the minute."""
    return datetime.fromtimestamp(created_at).astimezone().strftime("%Y-%m-%d %H:%M")
