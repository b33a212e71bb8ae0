"""All parts of a foreign machine together: found, or made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.appliance.kernel import Kernel
from guestmark.core.architectures import Architecture
from guestmark.core.errors import PlatformUnusableError
from guestmark.core.platform_kind import Program
from guestmark.foreign import agents, kernels, roots
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
