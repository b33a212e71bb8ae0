"""Programs of another architecture on this host's own kernel: qemu-user emulates the program and nothing else."""

from guestmark.platforms.host import host_like

PLATFORMS = (
    host_like(
        "user",
        "a program of another architecture on this host's kernel (qemu-user)",
        "guestmark.platforms.user.platform:UserPlatform",
        takes_arch=True,
        needs_arch=True,
        only_programs=True,
    ),
)
