"""Lists the available and missing parts for machines of each architecture."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from guestmark.core.architectures import ARCHITECTURES, Architecture, Source
from guestmark.core.errors import GuestmarkError
from guestmark.core.platform_kind import Program
from guestmark.foreign import agents, kernels, parts, roots
from guestmark.foreign.packages import served

# What it takes the first time, on two processors and a fast network; seconds.
_AGENT_S, _FETCH_S, _KERNEL_S = 90, 30, 330


@dataclass(frozen=True, slots=True)
class State:
    """One architecture on this host. `made` are its parts by name, `missing` what has to be installed first."""

    architecture: Architecture
    made: dict[str, bool]
    missing: list[Program]
    fault: str = ""  # a part that is damaged, or for which there is no source

    @property
    def platform(self) -> str:
        """Its platform's name."""
        return "tcg" if self.architecture.is_host else f"tcg@{self.architecture.name}"

    @property
    def first_use_s(self) -> int:
        """About how long the first use takes; 0 when everything has been made."""
        built = self.architecture.kernel is Source.BUILT
        cost = {"agent": _AGENT_S, "kernel": _KERNEL_S if built else _FETCH_S, "root": _FETCH_S}
        return sum(cost[name] for name, there in self.made.items() if not there)


def survey() -> list[State]:
    """All architectures, the host's own first. Nothing is started, made or fetched."""
    rows = sorted(ARCHITECTURES.values(), key=lambda row: (not row.is_host, row.name))
    known = served()
    return [_state(row, known) for row in rows]


def _state(row: Architecture, known: frozenset[str] | None) -> State:
    programs = [row.emulator, *([row.firmware] if row.firmware else [])]
    missing = [program for program in programs[:1] if shutil.which(program.name) is None]
    if row.is_host:
        return State(row, {}, missing)
    try:
        made = {"agent": agents.find(row) is not None, "kernel": kernels.find(row) is not None}
        if row.root:
            made["root"] = roots.find(row) is not None
        fault = ""
        absent = known is not None and row.name not in known
        if row.kernel is Source.DISTRIBUTION and not made["kernel"] and absent:
            fault = f"this system's package sources have nothing for {row.name}; a newer release may"
        return State(row, made, [*missing, *parts.missing(row)], fault)
    except GuestmarkError as error:
        return State(row, {}, missing, error.message)
