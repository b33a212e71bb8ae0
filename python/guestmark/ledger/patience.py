"""Doing something with a database until it is done, however often the server restarts meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 600.0
_FIRST_S, _LONGEST_S = 0.2, 5.0
_SAY_AFTER_S = 2.0


class Patience:
    """How long a server may be away; `notice` is told when it is and when it is back."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.patience_s = patience_s
        self.notice: Callable[[str], None] = lambda _text: None

    def until_done(self, action: Callable[[], T], transient: Callable[[BaseException], bool]) -> T:
        """Calls `action` again as long as what it raises is transient; then raises that.

        An action may have taken effect although it raised: it has to notice that itself.
        """
        begin, pause, said = time.monotonic(), _FIRST_S, False
        while True:
            try:
                done = action()
            except Exception as error:
                waited = time.monotonic() - begin
                if not transient(error) or waited + pause > self.patience_s:
                    raise
                if not said and waited >= _SAY_AFTER_S:
                    said = True
                    self.notice(
                        "the ledger's server does not answer; waiting for it, "
                        f"{self.patience_s / 60:.0f} minutes at most"
                    )
            else:
                if said:
                    self.notice("the ledger's server is back")
                return done
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)
