"""Draws the pictures of the README from a real run, which is kept beside them.

`python -m tools.pictures` draws them again; with RUN it takes another run of the ledger first. A test compares the
pictures with what this makes, so they show what the program prints today.
"""

from __future__ import annotations

import io
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path

from rich.color import ColorSystem
from rich.console import Console as Recorder
from rich.text import Text

from guestmark.cli.console import Console
from guestmark.ledger import open_ledger
from guestmark.ledger.bundle import PackedRun, pack_runs, strip_private_data, unpack_runs
from guestmark.ledger.model import StoredRun
from guestmark.ledger.run_annotations import NO_ANNOTATIONS
from guestmark.page.nodes import Chart
from guestmark.report.render import charts, terminal
from guestmark.report.sections.results import make_nodes
from guestmark.report.short_report import make_short_report
from guestmark.stats.analysis import Analysis, analyse_run

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "_static"
RUN, TERMINAL, CHART = FOLDER / "readme-run.gmk", FOLDER / "terminal.svg", FOLDER / "chart.svg"
_COLUMNS = 84
_STYLE = Path(charts.__file__).parent / "templates" / "style.css"
# Rich's own frame loads a font from another host.
_FRAME = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{{alt}}">
<style>.{unique_id}-matrix{{font:{char_height}px ui-monospace,Menlo,Consolas,monospace;line-height:{line_height}px}}
{styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>{lines}</defs>
<rect width="{width}" height="{height}" rx="8" fill="#10141a"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def analyse_stored_run(run: StoredRun) -> Analysis:
    """Analyse a run of the ledger."""
    return analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)


def render_screen(run: StoredRun) -> str:
    """Render what a terminal shows of the run, with its colours."""
    console = Console(file=io.StringIO(), width=_COLUMNS)
    # A file is no terminal, for which Rich would leave out colours.
    console._color_system = ColorSystem.TRUECOLOR
    page = make_short_report(run, analyse_stored_run(run), width=_COLUMNS, latest=True)
    cells = [cell for cell in run.plan.cells if cell.null_of is None]
    on = ",".join(dict.fromkeys(str(cell.platform) for cell in cells))
    typed = f"./guestmark exec --on {on} -- {cells[0].workload.label}"
    return f"$ {typed}\n\n{terminal.draw_page(page, console)}".rstrip("\n")


def draw_terminal(run: StoredRun) -> str:
    """Draw the screen as a picture, without a font from elsewhere."""
    recorder = Recorder(
        record=True, file=io.StringIO(), width=_COLUMNS, force_terminal=True, color_system="truecolor"
    )
    recorder.print(Text.from_ansi(render_screen(run)))
    made = recorder.export_svg(title="", code_format=_FRAME, unique_id="guestmark")
    return made.replace("{alt}", "A run in a terminal: the table of its results and how to see more")


def draw_chart(run: StoredRun) -> str:
    """Draw the first chart of the run's page, with that page's colours by day and by night."""
    (workload,) = analyse_stored_run(run).workloads
    chart = next(node for node in make_nodes(workload, run) if isinstance(node, Chart))
    colours = "".join(
        re.findall(r"(?::root|@media \(prefers-color-scheme:dark\)){.*?}+\n", _STYLE.read_text(), re.S)[:2]
    )
    drawn = str(charts.render_svg(chart))
    return (
        drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
            ">", f"><style>{colours}svg{{background:var(--paper)}}</style>", 1
        )
        + "\n"
    )


def load_kept_run() -> StoredRun:
    """Load the run that is kept beside the pictures."""
    (packed,) = unpack_runs(RUN.read_bytes(), str(RUN))
    return packed.run


def main() -> int:
    """Draw both pictures, of another run of the ledger if one is named."""
    if len(sys.argv) > 1:
        with open_ledger(None, writable=False) as ledger:
            run = ledger.load_run(sys.argv[1])
        for private in (socket.gethostname(), str(ROOT)):
            run = strip_private_data(run, host_name=private)
        run = replace(run, trials=tuple(replace(trial, command_line=()) for trial in run.trials))
        RUN.write_bytes(pack_runs([PackedRun(run, NO_ANNOTATIONS)], ""))
    TERMINAL.write_text(draw_terminal(load_kept_run()))
    CHART.write_text(draw_chart(load_kept_run()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
