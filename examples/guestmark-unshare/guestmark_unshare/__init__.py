"""The platform `unshare`: this host's kernel, in namespaces of its own."""

import os
from collections.abc import Mapping

from guestmark.core.platform_kind import PlatformKind, Program
from guestmark.setting.machine import PLACEMENT


def _usable(_levels: Mapping[str, str]) -> int:
    return len(os.sched_getaffinity(0))


PLATFORMS = (
    PlatformKind(
        "unshare",
        "namespaces of this host",
        "guestmark_unshare.platform:UnsharePlatform",
        guest=False,
        factors=(PLACEMENT,),
        processors=_usable,
        programs=(Program("unshare", "util-linux"),),
        start_limit_s=10.0,
    ),
)
