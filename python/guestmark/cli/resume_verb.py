"""`guestmark resume`: goes on where a run stopped, with the same seed in the same order."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.core.home import LATEST


def command(
    run: options.Run = LATEST,
    *,
    blocks: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Continue until there are this many blocks.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Continue until all ratios are known to this.")
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Continue for at most this time (default: as long as before)."),
    ] = None,
    trust: options.Trust = False,
    published: options.Published = False,
    details: options.Details = False,
    keep: options.Keep = False,
    wait: options.Wait = True,
    quiet_host: options.QuietHost = False,
    junit: options.Junit = None,
    json: options.Json = None,
    csv: options.Csv = None,
    markdown: options.Markdown = None,
    html: options.Html = None,
    ledger: options.Ledger = None,
    quiet: options.Quiet = False,
) -> None:
    """Continue a run exactly where it stopped, or extend a complete one.

    An imported run, or one in another user's ledger, needs --trust.
    """
    from guestmark.cli import session
    from guestmark.core.errors import UsageError
    from guestmark.core.units import parse_fraction
    from guestmark.engine.stored_run import ExtensionRequest

    if blocks is not None and (precision or time_limit):
        raise UsageError(
            "--blocks already fixes how long to measure", hint="leave out --precision and --time-limit"
        )
    further = ExtensionRequest(
        blocks,
        options.value("--precision", parse_fraction, precision),
        options.positive_duration("--time-limit", time_limit),
    )
    outputs = session.Outputs(
        json=json, csv=csv, markdown=markdown, html=html, quiet=quiet, published=published, keep=keep, junit=junit,
        wait=wait, details=details, quiet_host=quiet_host,
    )  # fmt: skip
    raise typer.Exit(session.resume(run, ledger, outputs, further, trust=trust))
