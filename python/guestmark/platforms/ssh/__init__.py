"""Another machine, over the system's ssh."""

from guestmark.core.platform_kind import PlatformKind

PLATFORMS = (
    PlatformKind(
        "ssh",
        "another machine, whatever it runs on",
        "guestmark.platforms.ssh.platform:SshPlatform",
        holds_guests=True,
        guest=False,
        remote=True,
        takes_destination=True,
    ),
)
