"""Runs calls in parallel; an interrupted program does not wait for them.

An executor of the standard library waits for its threads even while the interpreter exits, so Ctrl-C would take effect
only when the slowest call has reached its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def start_call(call: Callable[[], T]) -> Future[T]:
    """Start the call in a thread and return its future result. The thread does not keep the process running."""
    future: Future[T] = Future()

    def fulfil() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            # The caller gets it when it asks for the result.
            future.set_exception(error)

    Thread(target=fulfil, daemon=True).start()
    return future


def run_together(calls: Iterable[Callable[[], T]]) -> list[T]:
    """Run the calls in parallel and return their results in order. Raises what the first failing call raised."""
    futures = [start_call(call) for call in calls]
    return [future.result() for future in futures]


@contextmanager
def report_interrupt(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell the user that Ctrl-C has ended the program; used before anything is measured."""
    try:
        yield
    except KeyboardInterrupt:
        tell("interrupted; nothing was measured")
        raise
