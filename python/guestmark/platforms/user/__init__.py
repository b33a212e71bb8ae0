"""Programs of another architecture on this host's own kernel: qemu-user emulates the program and nothing else."""

from guestmark.platforms.descriptions import PlatformClass, describe_host_like


def load_platform_class() -> PlatformClass:
    """Imports the class that runs programs of another architecture."""
    from guestmark.platforms.user.platform import UserPlatform

    return UserPlatform


PLATFORMS = (
    describe_host_like(
        "user",
        "a program of another architecture on this host's kernel (qemu-user)",
        load_platform_class,
        takes_arch=True,
        needs_arch=True,
        only_programs=True,
    ),
)
