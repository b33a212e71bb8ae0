"""`guestmark resume`: goes on where a run stopped, with the same seed in the same order."""

from __future__ import annotations

import typer

from guestmark.cli import options


def command(
    run: options.Run,
    *,
    keep: options.Keep = False,
    json: options.Json = None,
    csv: options.Csv = None,
    markdown: options.Markdown = None,
    html: options.Html = None,
    ledger: options.Ledger = None,
    quiet: options.Quiet = False,
) -> None:
    """Continue a run exactly where it stopped."""
    from guestmark.cli import session

    outputs = session.Outputs(json=json, csv=csv, markdown=markdown, html=html, quiet=quiet, keep=keep)
    raise typer.Exit(session.resume(run, ledger, outputs))
