"""How much more precise a run would get with more time, and the command that spends it."""

from guestmark.core.model import RunState
from guestmark.core.units import format_count, format_duration
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Command, Node, Paragraph
from guestmark.page.text import line
from guestmark.report.commands import format_resume_command
from guestmark.stats.analysis import Analysis
from guestmark.stats.stopping import forecast_more_time

# If more cells than this are imprecise, only the least precise one is named.
_MOST_NAMED = 4


def make_nodes(analysis: Analysis, run: StoredRun) -> list[Node]:
    """Return how precise the ratios of a run that has ended are, and how precise after more blocks.

    Empty if they are precise enough, or if that many blocks would not help.
    """
    forecast = forecast_more_time(analysis.plan, analysis)
    if forecast is None or not run.id or run.state not in {RunState.COMPLETE, RunState.STOPPED}:
        return []
    cells = tuple(cell for cell in forecast.cells if cell.then <= figures.UNKNOWN)
    if not cells:
        return []
    if len(cells) > _MOST_NAMED:
        cells = (max(cells, key=lambda cell: cell.half_width),)
    now = ", ".join(f"{cell.cell}: {figures.describe_precision(cell.half_width)}" for cell in cells)
    then = ", ".join(figures.describe_precision(cell.then, about="about ") for cell in cells)
    others = f" (the least precise of {len(forecast.cells)})" if len(forecast.cells) > len(cells) else ""
    blocks, gives = format_count(forecast.blocks, "more block"), Claim.MORE_TIME.format(then=then)
    cost = f"{blocks} (about {format_duration(forecast.seconds)})"
    return [
        Paragraph(line(f"{now} now{others}; {cost} {gives}")),
        Command("Run them", format_resume_command(run, f"--blocks {analysis.blocks + forecast.blocks}")),
    ]
