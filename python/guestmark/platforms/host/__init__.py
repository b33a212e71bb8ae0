"""This machine itself, without a hypervisor."""

import os
from collections.abc import Mapping
from typing import Any

from guestmark.core.factor import Factor
from guestmark.core.platform_kind import PlatformKind
from guestmark.setting.location import LOCATION
from guestmark.setting.machine import PLACEMENT


def usable(_levels: Mapping[str, str]) -> int:
    """How many of this host's processors this process may use."""
    return len(os.sched_getaffinity(0))


def host_like(name: str, text: str, load: str, *factors: Factor, **more: Any) -> PlatformKind:
    """The description of a platform on this host's kernel (`platforms.host_like`), with `more` fields of its own."""
    return PlatformKind(
        name,
        text,
        load,
        guest=False,
        factors=(*factors, PLACEMENT),
        processors=usable,
        start_limit_s=10.0,
        **more,
    )


PLATFORMS = (
    host_like(
        "host", "this machine itself", "guestmark.platforms.host_like:HostPlatform", LOCATION, first=True
    ),
)
