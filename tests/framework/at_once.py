"""Runs the same action in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def failures(action: Callable[[], None], times: int) -> list[BaseException]:
    """Run an action in `times` threads at once, and return what it raised; empty if all of them succeeded."""
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
