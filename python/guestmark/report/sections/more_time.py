"""What more time would buy, and the command that spends it."""

from guestmark.core.model import RunState
from guestmark.core.units import counted, format_duration
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Command, Node, Paragraph
from guestmark.page.text import line
from guestmark.report.commands import resume_command
from guestmark.stats.analysis import Analysis
from guestmark.stats.stopping import forecast_more_time

_NAMED = 4  # cells named one by one; of more, the one that is known worst speaks for all


def nodes(analysis: Analysis, run: StoredRun) -> list[Node]:
    """How well the ratios of a run that has ended are known, and how well after more blocks.

    Empty if they are known well enough, or if that many blocks would not help.
    """
    found = forecast_more_time(analysis.plan, analysis)
    if found is None or not run.id or run.state not in {RunState.COMPLETE, RunState.STOPPED}:
        return []
    cells = tuple(cell for cell in found.cells if cell.then <= figures.UNKNOWN)
    if not cells:
        return []
    if len(cells) > _NAMED:
        cells = (max(cells, key=lambda cell: cell.half_width),)
    now = ", ".join(f"{cell.cell}: {figures.known_to(cell.half_width)}" for cell in cells)
    then = ", ".join(figures.known_to(cell.then, about="about ") for cell in cells)
    others = f" (the least known of {len(found.cells)})" if len(found.cells) > len(cells) else ""
    blocks, gives = counted(found.blocks, "more block"), Claim.MORE_TIME.format(then=then)
    return [
        Paragraph(line(f"{now} now{others}; {blocks} (about {format_duration(found.seconds)}) {gives}")),
        Command("For that", command(run, analysis.blocks + found.blocks)),
    ]


def command(run: StoredRun, blocks: int) -> str:
    """The command that takes a run on to this many blocks in all."""
    return resume_command(run, f"--blocks {blocks}")
