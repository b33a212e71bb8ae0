"""Another machine, over the system's ssh."""

from guestmark.core.levels import Levels
from guestmark.core.platform_kind import PlatformKind
from guestmark.platforms.descriptions import NestedPlatformClass, PlatformClass
from guestmark.platforms.ssh.destination import explain_bad_destination
from guestmark.platforms.ssh.freshness import FRESHNESS
from guestmark.setting.network import EXISTING_NETWORK_FACTORS, NETWORK, explain_only_existing


def explain_refused_levels(_dest: str, levels: Levels) -> str:
    """Return why the machine cannot have these levels; empty if it can."""
    return explain_only_existing(levels[NETWORK])


def load_platform_class() -> PlatformClass:
    """Imports the class that reaches the machine."""
    from guestmark.platforms.ssh.platform import SshPlatform

    return SshPlatform


def load_nested_class() -> NestedPlatformClass:
    """Imports the class that starts guests on the machine."""
    from guestmark.platforms.ssh.guests import RemoteGuestPlatform

    return RemoteGuestPlatform


PLATFORMS = (
    PlatformKind(
        "ssh",
        "another machine, reached over ssh",
        load_platform_class,
        holds_guests=True,
        load_nested_class=load_nested_class,
        guest=False,
        remote=True,
        destination="DEST",
        example_destination="user@example.org",
        advice=explain_bad_destination,
        objection=explain_refused_levels,
        factors=(*FRESHNESS, *EXISTING_NETWORK_FACTORS),
        outer_factors=FRESHNESS,
    ),
)
