"""Where tables are printed: Rich's console, but for markup, and for what it does when its reader goes away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any, NoReturn

from rich.console import Console as RichConsole
from rich.segment import Segment
from rich.text import Text

from guestmark.cli.faults import PipeClosed
from guestmark.page.text import inert


class Console(RichConsole):
    """Standard output, or `file`. What is printed is text: square brackets and `:names:` in it mean nothing, and what
    a terminal would obey is spelled out.

    A reader that has gone ends the program as everywhere else, not with Rich's status 1.
    """

    def __init__(
        self, *, stderr: bool = False, file: IO[str] | None = None, width: int | None = None
    ) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, stderr=stderr, file=file, width=width)

    def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
        """See Rich; whatever made the segments, only Rich's own control codes reach the terminal."""
        for segment in super().render(*args, **options):
            text, style, control = segment
            yield segment if control else Segment(inert(text, lines=True), style)

    def on_broken_pipe(self) -> NoReturn:
        """Raises `PipeClosed`."""
        raise PipeClosed


def shown(text: str, style: str = "") -> Text:
    """Text from outside as a cell of a table: one line, as wide as it will be shown."""
    return Text(inert(text), style)
