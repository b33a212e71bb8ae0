"""What is said of a run on the command line: `--name`, `--note`, `--label NAME=VALUE`, `--tag`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.core.errors import UsageError
from guestmark.ledger.intake import RESERVED, WORD

if TYPE_CHECKING:
    from guestmark.ledger.remarks import Remarks


Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="What to call the run; it can be given as RUN.")
]
Note = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="A sentence about the run.")]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="NAME=VALUE",
        help='A label of the run, e.g. --label commit="$(git rev-parse HEAD)". Repeatable.',
    ),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag of the run. Repeatable.")]


def remarks(
    name: str | None, note: str | None, labels: Iterable[str] | None, tags: Iterable[str] | None
) -> Remarks:
    """What these options say. Raises `UsageError` for names that could not be typed again."""
    from guestmark.ledger.remarks import Remarks

    if name is not None and (not WORD.fullmatch(name) or name in RESERVED):
        raise UsageError(
            f"--name {name!r} cannot be a run's name", hint="letters, digits and .:/_-, e.g. before-upgrade"
        )
    for tag in tags or ():
        if not WORD.fullmatch(tag):
            raise UsageError(f"--tag {tag!r} cannot be a tag", hint="letters, digits and .:/_-")
    return Remarks(
        name=name or "",
        notes=(note.strip(),) if note and note.strip() else (),
        labels=dict(_label(text) for text in labels or ()),
        tags=tuple(tags or ()),
    )


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not WORD.fullmatch(name) or not value.strip():
        raise UsageError(f"--label {text!r} is not NAME=VALUE", hint="e.g. --label commit=1a2b3c")
    return name, value.strip()
