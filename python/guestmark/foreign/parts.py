"""All parts of a foreign machine together: found, or made."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.appliance.kernel import Kernel
from guestmark.core.architectures import ARCHITECTURES, Architecture, Source
from guestmark.core.errors import GuestmarkError, PlatformUnusableError
from guestmark.core.platform_kind import Program
from guestmark.foreign import agents, kernels, roots
from guestmark.foreign.packages import served
from guestmark.foreign.progress import Progress
from guestmark.foreign.roots import Root

SILENT = Progress()


@dataclass(frozen=True, slots=True)
class Parts:
    """The files that a foreign machine boots; `root` is None where the distribution has no packages for it."""

    agent: Path
    kernel: Kernel
    root: Root | None


def find(architecture: Architecture, packages: Iterable[str] = ()) -> Parts | None:
    """The parts if all of them have been made."""
    agent, kernel = agents.find(architecture), kernels.find(architecture)
    root = roots.find(architecture, packages) if architecture.root else None
    if agent is None or kernel is None or (architecture.root and root is None):
        return None
    return Parts(agent, kernel, root)


def get(architecture: Architecture, packages: Iterable[str] = (), progress: Progress = SILENT) -> Parts:
    """The parts; those that are not there yet are made. What has to be installed for that is said before any is made.

    Raises `PlatformUnusableError` naming the packages, `GuestmarkError` when something fails.
    """
    wanted = tuple(packages)
    if there := find(architecture, wanted):
        return there
    check(architecture)
    agent = agents.find(architecture) or agents.make(architecture, progress)
    kernel = kernels.find(architecture) or kernels.make(architecture, progress)
    return Parts(agent, kernel, root(architecture, wanted, progress) if architecture.root else None)


def agent(architecture: Architecture, progress: Progress = SILENT) -> Path:
    """The agent alone, made if need be. Raises `PlatformUnusableError` naming what has to be installed."""
    if found := agents.find(architecture):
        return found
    _check(architecture, agents.missing(architecture))
    return agents.make(architecture, progress)


def root(architecture: Architecture, packages: Iterable[str] = (), progress: Progress = SILENT) -> Root:
    """The root alone, made if need be. Raises `GuestmarkError`."""
    wanted = tuple(packages)
    return roots.find(architecture, wanted) or roots.make(architecture, wanted, progress)


def missing(architecture: Architecture) -> list[Program]:
    """The packages needed to build the parts that are still missing."""
    found = []
    if agents.find(architecture) is None:
        found += agents.missing(architecture)
    if kernels.find(architecture) is None:
        found += kernels.missing(architecture)
    return list(dict.fromkeys(found))


def check(architecture: Architecture, besides: Sequence[Program] = ()) -> None:
    """Raises `PlatformUnusableError` with everything that has to be installed first, `besides` too, in one line."""
    _check(architecture, [*besides, *missing(architecture)])


def _check(architecture: Architecture, found: Sequence[Program]) -> None:
    if found:
        names = ", ".join(dict.fromkeys(program.name for program in found))
        packages = " ".join(dict.fromkeys(program.package for program in found))
        raise PlatformUnusableError(
            f"machines of {architecture.name} need programs that are not installed here: {names}",
            hint=f"as root: apt-get install {packages}; or carry what they make here: guestmark prepare --help",
        )


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
    lacking = [program for program in programs[:1] if shutil.which(program.name) is None]
    if row.is_host:
        return State(row, {}, lacking)
    try:
        made = {"agent": agents.find(row) is not None, "kernel": kernels.find(row) is not None}
        if row.root:
            made["root"] = roots.find(row) is not None
        fault = ""
        absent = known is not None and row.name not in known
        if row.kernel is Source.DISTRIBUTION and not made["kernel"] and absent:
            fault = f"this system's package sources have nothing for {row.name}; a newer release may"
        return State(row, made, [*lacking, *missing(row)], fault)
    except GuestmarkError as error:
        return State(row, {}, lacking, error.message)
