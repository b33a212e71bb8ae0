"""The registry of platforms, workloads and factors. Each is described once, in its own package.

Packages are found by walking `guestmark.platforms` and `guestmark.workloads`; those of other distributions are entry
points of the group `guestmark`. A description is a module's `PLATFORMS` or `WORKLOADS`, a tuple. Importing one is
cheap: the code that runs is named as `module:attribute` and imported when needed.
"""

import functools
from collections.abc import Iterable, Mapping

from guestmark.core.discovery import by_name, load
from guestmark.core.factor import Factor
from guestmark.core.platform_kind import Program, platform_kinds, platform_names
from guestmark.core.workload_kind import workload_kind, workload_kinds

__all__ = [
    "factors",
    "load",
    "platform_kinds",
    "platform_names",
    "programs",
    "workload_kind",
    "workload_kinds",
]


@functools.cache
def factors() -> Mapping[str, Factor]:
    """All factors by name: those of platforms, then those of workloads."""
    found: list[Factor] = []
    for platform in platform_kinds().values():
        found += [*platform.accepted, *platform.accepted_inside]
    for workload in workload_kinds().values():
        found += workload.factors
    return by_name(found, "factor")


def programs(workloads: Iterable[str] | None = None) -> tuple[Program, ...]:
    """The programs that platforms and these workloads (None: all) run on this host."""
    kinds = workload_kinds()
    named = kinds.values() if workloads is None else [kinds[name] for name in workloads if name in kinds]
    found = [program for kind in platform_kinds().values() for program in kind.programs]
    found += [program for kind in named for program in kind.programs]
    return tuple(dict.fromkeys(found))
