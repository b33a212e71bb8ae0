"""Finds the descriptions of platforms, workloads and factors by walking packages.

Extensions register modules with the same attributes as entry points of the group `guestmark`. Factors need no list:
every `Factor` in a module of `guestmark.setting`, or of such an entry point, is found.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Protocol, TypeVar

from guestmark.core.factor import Factor, Machine


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Kind = TypeVar("Kind", bound=_Named)
ENTRY_POINTS = "guestmark"
_SETTINGS = "guestmark.setting"


@functools.cache
def list_packages(package: str) -> tuple[str, ...]:
    """Return the names of the packages directly inside `package`."""
    found = importlib.import_module(package)
    return tuple(
        f"{package}.{module.name}" for module in pkgutil.iter_modules(found.__path__) if module.ispkg
    )


def import_descriptions(package: str) -> Iterator[ModuleType]:
    """Yield the packages inside `package`, then the modules of other distributions."""
    for name in list_packages(package):
        yield importlib.import_module(name)
    yield from _import_extensions()


@functools.cache
def _import_extensions() -> tuple[ModuleType, ...]:
    from importlib.metadata import entry_points

    return tuple(entry.load() for entry in entry_points(group=ENTRY_POINTS))


@functools.cache
def list_settings() -> tuple[Factor, ...]:
    """Return the factors that declare which machines take them, in the order of their definition."""
    package = importlib.import_module(_SETTINGS)
    modules: list[ModuleType] = []
    for info in pkgutil.iter_modules(package.__path__):
        modules.append(importlib.import_module(f"{_SETTINGS}.{info.name}"))
    modules += _import_extensions()
    settings: dict[Factor, None] = {}
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Factor) and value.machines:
                settings[value] = None
    return tuple(settings)


@functools.cache
def list_settings_for(machines: Machine) -> tuple[Factor, ...]:
    """Return the factors that at least one of these kinds of machines takes."""
    return tuple(factor for factor in list_settings() if factor.machines & machines)


def index_by_name(kinds: Iterable[Kind], what: str) -> dict[str, Kind]:
    """Return the kinds by name. Raises `ValueError` if two different ones have the same name."""
    found: dict[str, Kind] = {}
    for kind in kinds:
        if found.setdefault(kind.name, kind) is not kind:
            raise ValueError(f"{what} {kind.name!r} is defined twice")
    return found
