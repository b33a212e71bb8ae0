"""The console for tables: Rich's, without markup. It ends as other programs do when its reader exits."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Any, NoReturn

from rich.console import Console as RichConsole
from rich.segment import Segment
from rich.text import Text

from guestmark.cli.style import Style
from guestmark.page.text import make_inert

_PAGER = "less"
# Exit statuses of a shell if a program is not executable, or not found.
_NOT_RUN = {126, 127}


class Console(RichConsole):
    """Standard output, or `file`, for plain text.

    Square brackets and `:names:` mean nothing, and control characters that a terminal would obey are spelled out.
    """

    def __init__(
        self,
        *,
        stderr: bool = False,
        file: IO[str] | None = None,
        width: int | None = None,
        style: Style = Style.AUTO,
    ) -> None:
        coloured = style.has_colours()
        super().__init__(
            highlight=False,
            markup=False,
            emoji=False,
            stderr=stderr,
            file=file,
            width=width,
            no_color=None if coloured is None else not coloured,
            color_system="standard" if coloured else "auto",
            # Only what is redrawn on standard error needs a terminal where there is none.
            force_terminal=True if coloured or (stderr and style.is_redrawn(by_default=False)) else None,
        )

    def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
        """Renders as Rich does, but lets only Rich's own control codes reach the terminal."""
        for segment in super().render(*args, **options):
            text, style, control = segment
            yield segment if control else Segment(make_inert(text, lines=True), style)

    def on_broken_pipe(self) -> NoReturn:
        """Raises `BrokenPipeError`, which `error_report` does not report as an error; Rich would exit with status 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def show_in_pager(text: str, console: Console) -> None:
    """Writes rendered text to the console, through a pager if it does not fit on the terminal.

    `GUESTMARK_PAGER` or `PAGER` names the pager; the default is `less`, and an empty name means none.
    """
    pager = os.environ.get("GUESTMARK_PAGER", os.environ.get("PAGER", _PAGER))
    if (
        pager.strip()
        and console.is_terminal
        and console.file is sys.stdout
        and text.count("\n") >= console.height
    ):
        # The same as in git: less shows colours, and exits at once if everything fits on the screen.
        environment = {**os.environ, "LESS": os.environ.get("LESS", "FRX")}
        with contextlib.suppress(OSError, ValueError), _leave_interrupts_to_child():
            done = subprocess.run(shlex.split(pager), input=text, text=True, env=environment, check=False)
            if done.returncode not in _NOT_RUN:
                return
    console.file.write(text)
    console.file.flush()


@contextlib.contextmanager
def _leave_interrupts_to_child() -> Iterator[None]:
    """Ignore Ctrl-C for a while, as the child on the same terminal does something with it: less stops a search.

    If the pager were killed, the terminal would stay as it had set it. A handler, unlike SIG_IGN, is not inherited.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def make_inert_text(text: str, style: str = "") -> Text:
    """Makes a table's text of text from outside: one line, in which control characters are spelled out."""
    return Text(make_inert(text), style)
