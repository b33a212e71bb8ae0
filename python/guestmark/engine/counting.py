"""What the hypervisor counted while a workload ran: read right before and right after each measured iteration."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from guestmark.core.errors import GuestmarkError

if TYPE_CHECKING:
    from guestmark.platforms.base import Machine


class Counting:
    """Sums of differences. If a reading fails (the guest was shut down), its iteration is left out."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._before: Mapping[str, float] = {}
        self._totals: dict[str, float] = {}
        self._iterations = 0

    def begin(self) -> None:
        """Reads the counters before an iteration."""
        self._before = self._read()

    def end(self) -> None:
        """Reads the counters after the iteration."""
        after = self._read()
        went_on = {name: after[name] - value for name, value in self._before.items() if name in after}
        if went_on:
            self._iterations += 1
            for name, value in went_on.items():
                self._totals[name] = self._totals.get(name, 0.0) + value

    def each(self) -> dict[str, float]:
        """Averages over the iterations, by the names of `platforms.counters`; empty where nothing can be counted."""
        return {name: value / self._iterations for name, value in self._totals.items()}

    def _read(self) -> Mapping[str, float]:
        with contextlib.suppress(GuestmarkError):
            return self._machine.counters()
        return {}
