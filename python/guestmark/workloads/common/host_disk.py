"""The disk under test on the host itself: a directory, or an image mounted through a loop device (`host_disk`)."""

from collections.abc import Mapping
from typing import Any

from guestmark.core.platform_spec import PlatformSpec
from guestmark.disks.spec import DEFAULTS

# What a loop device can be given like a guest's disk; the others are a hypervisor's.
ON_LOOP = frozenset({"filesystem", "mkfs", "mount", "size", "preallocation", "cache", "location"})


def decides(params: Mapping[str, Any], factor: str, platform: PlatformSpec) -> bool | None:
    """Whether a disk factor means anything on the host, as `WorkloadKind.decides`; None for everything else."""
    if factor in DEFAULTS and platform.is_this_host and params["disks"][0]["host"] == "loop":
        return factor in ON_LOOP
    return None
