"""`guestmark show`: the options of what `shown` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options, shown
from guestmark.cli.session import Outputs
from guestmark.core.home import LATEST
from guestmark.page.say import say, tell

if TYPE_CHECKING:
    from guestmark.ledger.model import StoredRun
    from guestmark.stats.analysis import Analysis


def command(
    run: options.Run = LATEST,
    *,
    console_of: Annotated[
        str | None,
        typer.Option(
            "--console",
            metavar="CELL",
            help="Show what this cell's machine and command printed, in its last failed trial or else its last.",
        ),
    ] = None,
    environment: Annotated[
        bool,
        typer.Option("--environment", help="Show all that is known of the host and the guests, too."),
    ] = False,
    browser: Annotated[bool, typer.Option("--open", help="Open the run's page in a browser.")] = False,
    details: options.Details = False,
    published: options.Published = False,
    baseline: options.Baseline = None,
    json: options.Json = None,
    csv: options.Csv = None,
    markdown: options.Markdown = None,
    html: options.Html = None,
    ledger: options.Ledger = None,
) -> None:
    """Show the result of a run."""
    outputs = Outputs(
        json=json,
        csv=csv,
        markdown=markdown,
        html=html,
        published=published,
        environment=environment,
        details=details,
    )
    if console_of is not None:
        outputs.check()
        _console(shown.load(run, ledger), console_of)
    elif browser:
        outputs.check()
        _open(*shown.judged(run, ledger, baseline))
    else:
        shown.run(run, outputs, ledger, baseline)


def _open(stored: StoredRun, analysis: Analysis) -> None:
    """Writes the run's page beside the ledger, where only its owner writes, and hands it to the desktop's browser."""
    import webbrowser

    from guestmark.core.home import default_path
    from guestmark.report import formats
    from guestmark.report.export_format import Format

    folder = default_path().parent / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{stored.id}.html"
    formats.write(file, formats.render(stored, Format.HTML, analysis))
    tell(str(file))
    if not webbrowser.open(file.as_uri()):
        say("no browser was found; open that file in one")


def _console(stored: StoredRun, wanted: str) -> None:
    """The console, with everything spelled out that the terminal would obey."""
    from guestmark.cli.session import writing_to_stdout
    from guestmark.core.errors import unknown
    from guestmark.core.model import TrialStatus

    ids = [cell.id for cell in stored.plan.cells]
    if wanted not in ids:
        raise unknown("cell", wanted, ids)
    mine = [trial for trial in stored.trials if trial.cell_id == wanted]
    failed = [trial for trial in mine if trial.status is not TrialStatus.OK]
    shown = (failed or mine)[-1:]
    with writing_to_stdout():
        for trial in shown:
            if trial.console.strip():
                tell(trial.console)
    if not shown:
        say(f"{wanted} has no trial in run {stored.id}")
        return
    from guestmark.agent.wire import StandardOutput
    from guestmark.workloads.exec.command import command_of

    cell = stored.plan.cells[ids.index(wanted)]
    command = command_of(cell)
    if command is not None and command.output is StandardOutput.NULL:
        say("standard output went to /dev/null; exec --show-output keeps it")
    elif not shown[0].console.strip():
        say("nothing was printed")
