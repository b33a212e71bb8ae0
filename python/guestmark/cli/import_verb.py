"""`guestmark import`: runs from bundles and from other ledgers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options
from guestmark.core.errors import LedgerError
from guestmark.core.units import counted
from guestmark.page.say import say

if TYPE_CHECKING:
    from guestmark.ledger.bundle import Packed

_LARGEST = 1 << 30  # bytes of a bundle


def command(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Bundles of `export --bundle`, and ledgers (files or URLs)."),
    ],
    *,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Give every run this tag. Repeatable.")
    ] = None,
    ledger: options.Ledger = None,
) -> None:
    """Take over runs from bundles and from other ledgers.

    A run that is there already stays as it is. Bundles are checked before anything is stored.
    """
    from guestmark.cli import remarking
    from guestmark.ledger import open_ledger, past
    from guestmark.ledger.shelf import Shelf

    tags = remarking.remarks(None, None, None, tag).tags
    found = [(source, _runs(source)) for source in sources]
    with open_ledger(ledger) as opened:
        shelf = Shelf(opened)
        for source, runs in found:
            new, known = 0, 0
            for packed in runs:
                run_id = shelf.add(packed.run, packed.said)
                if run_id is None:
                    known += 1
                    continue
                new += 1
                if tags:
                    opened.annotate(run_id, remarking.remarks(None, None, None, tags))
                stored = opened.load_run(run_id)
                past.remember(opened, stored, past.judged(opened, stored))
            there = f", {known} there already" if known else ""
            say(f"{source}: {counted(new, 'new run')}{there}")


def _runs(source: str) -> Iterable[Packed]:
    """The runs of a source: those of a bundle, all checked, or those of a ledger, one after another."""
    from guestmark.ledger.bundle import unpack

    if "://" in source:
        return _of_ledger(source)
    file = Path(source)
    try:
        with file.open("rb") as stream:
            head = stream.read(16)
            if head == b"SQLite format 3\0":
                return _of_ledger(source)
            data = head + stream.read(_LARGEST)
    except OSError as error:
        raise LedgerError(
            f"{source} cannot be read: {error.strerror or error}", hint="give a readable file"
        ) from error
    return unpack(data, source)


def _of_ledger(source: str) -> Iterator[Packed]:
    from guestmark.ledger import open_ledger
    from guestmark.ledger.bundle import Packed

    with open_ledger(source, writable=False) as other:
        for overview in other.runs():
            try:
                run = other.load_run(overview.id)
            except LedgerError as error:
                say(f"{source}: run {overview.id} is left out: {error.message}")
                continue
            yield Packed(run, other.remarks(overview.id))
