"""Declares `guestmark export`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.option import Argument, Candidates, Option
from guestmark.report.export_format import Format


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write a run as JSON, CSV, Parquet, Markdown or HTML, or runs as a bundle to share.

    A bundle is one file that holds whole runs with all trials, without the names of host and user.
    """

    runs: Annotated[
        list[str] | None,
        Argument(
            "[RUN...]",
            "A run's id, the beginning or end of its id, its name, or `last` (default); several for a bundle.",
            candidates=Candidates.RUNS,
        ),
    ] = None
    format: Annotated[
        Format | None, Option("--format -f", "Format (default: by FILE's suffix, or json without one).")
    ] = None
    output: Annotated[
        str, Option("--output -o", "Where to write the run (- for standard output).", metavar="FILE")
    ] = "-"
    bundle: Annotated[
        str | None,
        Option(
            "--bundle",
            "Write a bundle to share: a page for any browser, which `guestmark import` can also read.",
            metavar="FILE.gmk.html",
        ),
    ] = None
    host_name: Annotated[
        bool, Option("--host-name", "Keep the names of the host and the user in the bundle.")
    ] = False
    consoles: Annotated[bool, Option("--consoles", "Include the machines' console output in the bundle.")] = (
        False
    )
    ledger: options.Ledger = None
