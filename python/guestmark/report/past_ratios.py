"""Ratios of stored runs, and moments, as cells and texts of tables over several runs."""

from datetime import datetime

from guestmark.page import figures
from guestmark.page.tables import Cell, figure_cell
from guestmark.stats.across_runs import PastRatio


def past_ratio_pieces(run: PastRatio) -> tuple[str, ...]:
    """Return a run's ratio and its interval in pieces for a table."""
    return figures.ratio_pieces(run.ratio, (run.low, run.high))


def past_ratio_cell(run: PastRatio | None) -> Cell:
    """Return a run's ratio with its interval; an empty cell of figures without one."""
    return figure_cell("", "") if run is None else figure_cell(*past_ratio_pieces(run))


def format_moment(created_at: float) -> str:
    """Return Unix time as date and time of day where the reader is, to the minute."""
    return datetime.fromtimestamp(created_at).astimezone().strftime("%Y-%m-%d %H:%M")
