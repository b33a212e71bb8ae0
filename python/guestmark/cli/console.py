"""Where tables are printed: Rich's console, but for what it does when its reader goes away."""

from __future__ import annotations

from typing import NoReturn

from rich.console import Console as RichConsole

from guestmark.cli.faults import PipeClosed


class Console(RichConsole):
    """Standard output. A reader that has gone ends the program as everywhere else, not with Rich's status 1."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> NoReturn:
        """Raises `PipeClosed`."""
        raise PipeClosed
