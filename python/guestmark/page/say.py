"""The only functions that write sentences to a terminal; control characters in them are spelled out.

Almost every sentence contains text from outside: names of files and hosts, output of guests, notes in a ledger, reasons
of failures. The modules of `cli` write to standard streams only through this module and `cli.console`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from guestmark.core.redaction import redact_text
from guestmark.page.text import escape_json, make_inert


def say(text: str, *, prefix: str = "guestmark: ") -> None:
    """Write a remark, of one line or several, to standard error. Errors are ignored if standard error is closed."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{make_inert(redact_text(f'{prefix}{text}'), lines=True)}\n")
        sys.stderr.flush()


def tell(text: str) -> None:
    """Write text to standard output, ending with a line feed. Raises `OSError`."""
    shown = make_inert(redact_text(text).replace("\r\n", "\n"), lines=True)
    sys.stdout.write(shown if shown.endswith("\n") else f"{shown}\n")


def tell_json(text: str) -> None:
    """Write a JSON document to standard output; control and invisible characters are escaped. Raises `OSError`."""
    sys.stdout.write(f"{escape_json(redact_text(text))}\n")


def redraw_lines(lines: Sequence[str], above: int) -> None:
    """Write lines to the terminal on standard error, overwriting the last `above` lines."""
    # ANSI: move up, then clear each line before it is written.
    up = f"\x1b[{above}A" if above else ""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(up + "".join(f"\r\x1b[K{make_inert(line)}\n" for line in lines))
        sys.stderr.flush()


def erase_lines(above: int) -> None:
    """Remove the lines that `redraw_lines` wrote last."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"\x1b[{above}A\r\x1b[J")
        sys.stderr.flush()
