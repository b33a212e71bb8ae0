"""The same thing done by several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def failures(action: Callable[[], None], times: int) -> list[BaseException]:
    """What was raised by an action that `times` threads do at once; empty when all of them succeeded."""
    found: list[BaseException] = []

    def attempt() -> None:
        try:
            action()
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
