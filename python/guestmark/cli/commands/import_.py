"""Declares `guestmark import`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.option import Argument, Option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Import runs from bundles and other ledgers, and results of other programs.

    The ids of the runs are printed, one per line. A run that is already there stays as it is. Everything is checked
    before it is stored, within limits of memory and time. Imported runs can be shown and compared; `resume` and
    `compare --confirm` run their commands only with --trust.

    Results of hyperfine, fio and the Phoronix Test Suite become runs of one session each, labelled `foreign`. They can
    be shown and compared, but never count as earlier runs.
    """

    sources: Annotated[
        list[str],
        Argument(
            "FILE...",
            "Bundles of `export --bundle`, ledgers (files or URLs), JSON of hyperfine and fio, "
            "Phoronix results.",
        ),
    ]
    tag: Annotated[
        list[str] | None, Option("--tag", "Give every run this tag. Repeatable.", metavar="TAG")
    ] = None
    trust: Annotated[
        bool,
        Option(
            "--trust",
            "Treat these runs as your own: they may be resumed, and count as earlier runs of this host.",
        ),
    ] = False
    ledger: options.Ledger = None
