"""Another machine, over the system's ssh."""

from guestmark.core.platform_kind import PlatformKind
from guestmark.platforms.ssh.destination import FRESHNESS, advice

PLATFORMS = (
    PlatformKind(
        "ssh",
        "another machine, whatever it runs on",
        "guestmark.platforms.ssh.platform:SshPlatform",
        holds_guests=True,
        inside="guestmark.platforms.ssh.guests:RemoteGuestPlatform",
        guest=False,
        remote=True,
        destination="DEST",
        example_destination="user@example.org",
        advice=advice,
        factors=FRESHNESS,
        outer_factors=FRESHNESS,
    ),
)
