"""Calls that go on beside each other, for which nobody waits once the program is interrupted.

An executor of the standard library waits for its threads, even while the interpreter ends: Ctrl-C would be answered
when the slowest has come to its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def start_call(call: Callable[[], T]) -> Future[T]:
    """The call's result, which is on its way. What the thread holds ends with the process."""
    future: Future[T] = Future()

    def fulfil() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            # Whoever asks for the result gets it.
            future.set_exception(error)

    Thread(target=fulfil, daemon=True).start()
    return future


def run_together(calls: Iterable[Callable[[], T]]) -> list[T]:
    """The results of calls that begin at once, in their order. Raises what the first of them raised."""
    return [future.result() for future in [start_call(call) for call in calls]]


@contextmanager
def answer_interrupt(tell: Callable[[str], None]) -> Iterator[None]:
    """Before anything is measured: Ctrl-C is answered at once, and ends the program."""
    try:
        yield
    except KeyboardInterrupt:
        tell("stopped, as asked; nothing was measured")
        raise
