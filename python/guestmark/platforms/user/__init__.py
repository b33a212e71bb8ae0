"""Programs of another architecture on this host's own kernel: qemu-user emulates the program and nothing else."""

from guestmark.core.platform_kind import PlatformKind
from guestmark.platforms import factors
from guestmark.platforms.host import usable

PLATFORMS = (
    PlatformKind(
        "user",
        "a program of another architecture on this host's kernel (qemu-user)",
        "guestmark.platforms.user.platform:UserPlatform",
        guest=False,
        takes_arch=True,
        needs_arch=True,
        only_programs=True,
        factors=(factors.PLACEMENT,),
        processors=usable,
        start_limit_s=10.0,
    ),
)
