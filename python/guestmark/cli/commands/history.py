"""Declares `guestmark history`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.home import LATEST
from guestmark.core.option import Argument, Candidates, Option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Follow the ratios of a run's cells over all runs of this host with the same question, and find changes.

    Apache Otava finds the change points, on log ratios to the baseline of each run. A checkout installs it on first
    use. A change point is only a suspicion. Each comes with the commands that show what differs around it and that
    measure both sides side by side.
    """

    run: Annotated[
        str,
        Argument(
            "[RUN]",
            "The run whose cells to follow: its id, the beginning or end of its id, its name, or `last`.",
            candidates=Candidates.RUNS,
        ),
    ] = LATEST
    cell: Annotated[str | None, Option("--cell", "Follow only this cell.", metavar="CELL")] = None
    by: Annotated[
        str, Option("--by", "Name runs by this label (--label commit=…) if they have it.", metavar="LABEL")
    ] = "commit"
    max_p: Annotated[
        float,
        Option("--max-p", "The p value at which Otava reports a change point.", minimum=1e-9, maximum=0.5),
    ] = 0.0005
    csv: Annotated[
        str | None,
        Option(
            "--csv", "Write the series to FILE in the format of Apache Otava's own command.", metavar="FILE"
        ),
    ] = None
    json: options.Json = None
    markdown: options.Markdown = None
    html: options.Html = None
    ledger: options.Ledger = None
