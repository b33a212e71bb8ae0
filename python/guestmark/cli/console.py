"""Where tables are printed: Rich's console, but for markup, and for what it does when its reader goes away."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from typing import IO, Any, NoReturn

from rich.console import Console as RichConsole
from rich.segment import Segment
from rich.text import Text

from guestmark.cli.faults import PipeClosed
from guestmark.cli.style import Style
from guestmark.page.text import inert

_PAGER = "less"
_NOT_RUN = {126, 127}


class Console(RichConsole):
    """Standard output, or `file`. What is printed is text: square brackets and `:names:` in it mean nothing, and what
    a terminal would obey is spelled out.

    A reader that has gone ends the program as everywhere else, not with Rich's status 1.
    """

    def __init__(
        self,
        *,
        stderr: bool = False,
        file: IO[str] | None = None,
        width: int | None = None,
        style: Style = Style.AUTO,
    ) -> None:
        coloured = style.coloured()
        super().__init__(
            highlight=False,
            markup=False,
            emoji=False,
            stderr=stderr,
            file=file,
            width=width,
            no_color=None if coloured is None else not coloured,
            color_system="standard" if coloured else "auto",
            force_terminal=True if coloured or style.live(usual=False) else None,
        )

    def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
        """See Rich; whatever made the segments, only Rich's own control codes reach the terminal."""
        for segment in super().render(*args, **options):
            text, style, control = segment
            yield segment if control else Segment(inert(text, lines=True), style)

    def on_broken_pipe(self) -> NoReturn:
        """Raises `PipeClosed`."""
        raise PipeClosed


def paged(text: str, console: Console) -> None:
    """Writes what is ready for the console; through a pager where that is a terminal on which it has no room.

    `GUESTMARK_PAGER` and `PAGER` name the pager, `less` else; an empty name means none.
    """
    pager = os.environ.get("GUESTMARK_PAGER", os.environ.get("PAGER", _PAGER))
    if (
        pager.strip()
        and console.is_terminal
        and console.file is sys.stdout
        and text.count("\n") >= console.height
    ):
        command = shlex.split(pager)
        # As git: less ends by itself where all has room, and colours are shown.
        environment = {**os.environ, "LESS": os.environ.get("LESS", "FRX")}
        with contextlib.suppress(OSError):
            done = subprocess.run(command, input=text, text=True, env=environment, check=False)
            if done.returncode not in _NOT_RUN:
                return
    console.file.write(text)
    console.file.flush()


def shown(text: str, style: str = "") -> Text:
    """Text from outside as a cell of a table: one line, as wide as it will be shown."""
    return Text(inert(text), style)
