"""This machine itself, without a hypervisor."""

import os
from collections.abc import Mapping

from guestmark.core.platform_kind import PlatformKind
from guestmark.setting.location import LOCATION
from guestmark.setting.machine import PLACEMENT


def usable(_levels: Mapping[str, str]) -> int:
    """How many of this host's processors this process may use."""
    return len(os.sched_getaffinity(0))


PLATFORMS = (
    PlatformKind(
        "host",
        "this machine itself",
        "guestmark.platforms.host.platform:HostPlatform",
        guest=False,
        factors=(LOCATION, PLACEMENT),
        processors=usable,
        start_limit_s=10.0,
    ),
)
