"""The disk under test on the host itself: a directory, or an image mounted through a loop device (`host_disk`)."""

from collections.abc import Mapping
from typing import Any

from guestmark.core.platform_spec import PlatformSpec
from guestmark.setting.base import On, is_disk_setting


def decides(params: Mapping[str, Any], factor: str, platform: PlatformSpec) -> bool | None:
    """Whether a disk factor means anything on the host, as `WorkloadKind.decides`; None for everything else."""
    disks = params.get("disks")
    if is_disk_setting(factor) and platform.is_this_host and disks and disks[0]["host"] == "loop":
        return is_disk_setting(factor, On.LOOP)
    return None
