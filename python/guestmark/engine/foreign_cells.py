"""Cells on machines of other architectures: what they can never do, and making what they boot."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast

from guestmark.core.architectures import Architecture
from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.core.model import Cell, LeftOut
from guestmark.core.platform_spec import PlatformSpec, parse_platform
from guestmark.core.workload_kind import agent_is_enough, packages_of, workload_kind, workload_kinds
from guestmark.foreign.parts import SILENT
from guestmark.foreign.progress import Progress
from guestmark.platforms import registry


def unmade_parts(cells: Iterable[Cell], progress: Progress = SILENT) -> tuple[LeftOut, ...]:
    """Makes what machines of other architectures boot; the cells for which that is not possible.

    Raises `UsageError` for a platform this version cannot make.
    """
    groups: dict[str, dict[tuple[str, ...], list[Cell]]] = {}
    for cell in cells:
        if cell.platform.foreign and cell.null_of is None:
            groups.setdefault(str(cell.platform), {}).setdefault(packages_of(cell), []).append(cell)
    return tuple(left_out for name, theirs in groups.items() for left_out in _unmade(name, theirs, progress))


def _unmade(name: str, cells: Mapping[tuple[str, ...], list[Cell]], progress: Progress) -> Iterable[LeftOut]:
    """One entry for the platform where all its cells fail alike, else one for each cell that does."""
    found = []
    for packages, theirs in cells.items():
        try:
            make_parts(parse_platform(name), packages, progress)
        except UsageError:
            raise
        except GuestmarkError as error:
            found += [LeftOut(name, error.message, error.hint, cell=cell.id) for cell in theirs]
    alike = len({(entry.reason, entry.hint) for entry in found}) == 1
    return [replace(found[0], cell="")] if alike and len(found) == sum(map(len, cells.values())) else found


def make_parts(spec: PlatformSpec, packages: Sequence[str], progress: Progress) -> None:
    """Makes what machines of a foreign platform boot. Raises `GuestmarkError`."""
    cast("NeedsParts", registry.get(spec)).make_parts(packages, progress)


class NeedsParts(Protocol):
    """A platform of another architecture."""

    def make_parts(self, packages: Sequence[str], progress: Progress) -> None:
        """Makes what its machines boot. Raises `GuestmarkError`."""


def misplaced_cells(cells: Iterable[Cell]) -> tuple[LeftOut, ...]:
    """The cells that need programs on machines that can have none, or measure the agent where it is the host's own."""
    return tuple(
        LeftOut(str(cell.platform), reason, hint, cell=cell.id)
        for cell in cells
        if cell.null_of is None and cell.platform.foreign
        for reason, hint in _misplaced(cell, cell.platform.foreign)
    )


def _misplaced(cell: Cell, row: Architecture) -> Iterator[tuple[str, str]]:
    kind = workload_kind(cell.workload.name)
    if not row.several_processors and cell.platform.processors(cell.factors) > 1 and cell.platform.is_guest:
        yield f"a machine of {row.name} has one processor", "give it no more: --set smp=1"
    elif kind.needs_root(kind.read(cell.workload.params)) and not row.root:
        able = ", ".join(
            sorted(name for name, each in workload_kinds().items() if each.needs_root is agent_is_enough)
        )
        yield (
            f"no release of Debian has packages of {row.name}, so there are no programs to run",
            f"its agent alone can do: boot, {able}",
        )
    elif not kind.needs_root(kind.read(cell.workload.params)) and cell.platform.inner.described.only_programs:
        yield (
            f"{kind.name} is done by guestmark's agent, which is not emulated there",
            f"measure it on host, or on tcg@{row.name}",
        )
