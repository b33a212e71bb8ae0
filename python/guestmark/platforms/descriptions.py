"""Functions for platform descriptions. The imports are few, as naming a platform imports every description."""

import os
from collections.abc import Callable
from typing import Any, TypeAlias

from guestmark.core.factor import Factor
from guestmark.core.levels import Levels
from guestmark.core.platform_kind import PlatformKind
from guestmark.core.platform_spec import Layer, PlatformSpec
from guestmark.platforms.base import Platform
from guestmark.setting.machine import PLACEMENT, SMP

# The type that a description's loaders return: a class, or a function that returns an instance.
PlatformClass: TypeAlias = Callable[[Layer], Platform]
NestedPlatformClass: TypeAlias = Callable[[PlatformSpec], Platform]


def count_guest_processors(levels: Levels) -> int:
    """Returns the number of virtual processors of a guest with these factor levels."""
    return levels.get(SMP) or 1


def count_usable_processors(_levels: Levels) -> int:
    """Returns how many of this host's processors this process may use."""
    return len(os.sched_getaffinity(0))


def describe_host_like(
    name: str, text: str, load_class: Callable[[], PlatformClass], *factors: Factor, **more: Any
) -> PlatformKind:
    """Describes a platform on this host's kernel, whose class derives from `platforms.host_like.HostLike`.

    `more` are further fields of `PlatformKind`.
    """
    return PlatformKind(
        name,
        text,
        load_class,
        guest=False,
        factors=(*factors, PLACEMENT),
        processors=count_usable_processors,
        start_limit_s=10.0,
        **more,
    )
