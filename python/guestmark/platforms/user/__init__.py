"""Programs of another architecture on this host's own kernel: qemu-user emulates the program and nothing else."""

from guestmark.core.platform_kind import PlatformKind
from guestmark.platforms.host import usable
from guestmark.setting.machine import PLACEMENT

PLATFORMS = (
    PlatformKind(
        "user",
        "a program of another architecture on this host's kernel (qemu-user)",
        "guestmark.platforms.user.platform:UserPlatform",
        guest=False,
        takes_arch=True,
        needs_arch=True,
        only_programs=True,
        factors=(PLACEMENT,),
        processors=usable,
        start_limit_s=10.0,
    ),
)
