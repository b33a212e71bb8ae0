"""What there is: kinds of platforms, kinds of workloads, factors. Each is described once, in its own package.

Packages are found by walking `guestmark.platforms` and `guestmark.workloads`; those of other distributions are entry
points of the group `guestmark`. A description is a module's `PLATFORMS` or `WORKLOADS`, a tuple. Importing one is
cheap: what runs is named as `module:attribute` and imported when it is needed.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from guestmark.core.factors import Factor
    from guestmark.core.platform_kind import PlatformKind, Program
    from guestmark.core.workload_kind import WorkloadKind


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Kind = TypeVar("Kind", bound=_Named)
ENTRY_POINTS = "guestmark"
_PLATFORMS, _WORKLOADS = "guestmark.platforms", "guestmark.workloads"


@functools.cache
def platform_kinds() -> Mapping[str, PlatformKind]:
    """All kinds of platforms by name, the host first, then in alphabetical order; reserved ones are among them."""
    kinds: list[PlatformKind] = [
        kind for module in _described(_PLATFORMS) for kind in getattr(module, "PLATFORMS", ())
    ]
    return _by_name(sorted(kinds, key=lambda kind: (kind.guest, kind.remote, kind.name)), "platform")


def platform_names() -> tuple[str, ...]:
    """The names of one layer that can be measured; what errors, help and completion offer."""
    return tuple(name for name, kind in platform_kinds().items() if kind.supported)


@functools.cache
def workload_kinds() -> Mapping[str, WorkloadKind]:
    """All kinds of workloads by name, `exec` first, then in alphabetical order."""
    kinds: list[WorkloadKind] = [
        kind for module in _described(_WORKLOADS) for kind in getattr(module, "WORKLOADS", ())
    ]
    return _by_name(sorted(kinds, key=lambda kind: (kind.name != "exec", kind.name)), "workload")


def workload_kind(name: str) -> WorkloadKind:
    """The kind of workload of that name. Raises `UsageError` with the nearest known one."""
    own = f"{_WORKLOADS}.{name.replace('-', '_')}"
    if own in _walked(
        _WORKLOADS
    ):  # mostly the package has the workload's name: the others need not be imported
        kinds: Iterable[WorkloadKind] = importlib.import_module(own).WORKLOADS
        for kind in kinds:
            if kind.name == name:
                return kind
    if name not in workload_kinds():
        from guestmark.core.nearest import unknown

        raise unknown("workload", name, workload_kinds())
    return workload_kinds()[name]


@functools.cache
def factors() -> Mapping[str, Factor]:
    """All factors by name: those of platforms, then those of workloads."""
    found: list[Factor] = []
    for platform in platform_kinds().values():
        found += [*platform.factors, *platform.outer_factors]
    for workload in workload_kinds().values():
        found += workload.factors
    return _by_name(found, "factor")


def programs(workloads: Iterable[str] | None = None) -> tuple[Program, ...]:
    """What platforms run on this host, and what these workloads do (None: every workload)."""
    kinds = workload_kinds()
    named = kinds.values() if workloads is None else [kinds[name] for name in workloads if name in kinds]
    found = [program for kind in platform_kinds().values() for program in kind.programs]
    found += [program for kind in named for program in kind.programs]
    return tuple(dict.fromkeys(found))


def load(path: str) -> Any:
    """What `module:attribute` names."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


@functools.cache
def _walked(package: str) -> tuple[str, ...]:
    found = importlib.import_module(package)
    return tuple(
        f"{package}.{module.name}" for module in pkgutil.iter_modules(found.__path__) if module.ispkg
    )


def _described(package: str) -> Iterator[ModuleType]:
    """The packages inside `package`, then what other distributions bring."""
    for name in _walked(package):
        yield importlib.import_module(name)
    yield from _brought()


@functools.cache
def _brought() -> tuple[ModuleType, ...]:
    from importlib.metadata import entry_points

    return tuple(entry.load() for entry in entry_points(group=ENTRY_POINTS))


def _by_name(kinds: Iterable[Kind], what: str) -> dict[str, Kind]:
    """Raises `ValueError` when two differ under one name."""
    found: dict[str, Kind] = {}
    for kind in kinds:
        if found.setdefault(kind.name, kind) is not kind:
            raise ValueError(f"{what} {kind.name!r} is described twice")
    return found
