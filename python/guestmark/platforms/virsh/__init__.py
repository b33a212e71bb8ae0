"""A libvirt domain, controlled by `virsh`."""

from guestmark.core.platform_kind import PlatformKind, Program
from guestmark.platforms.descriptions import NestedPlatformClass, PlatformClass
from guestmark.platforms.virsh.factors import FACTORS


def load_platform_class() -> PlatformClass:
    """Imports the class that starts the domain."""
    from guestmark.platforms.virsh.platform import VirshPlatform

    return VirshPlatform


def load_nested_class() -> NestedPlatformClass:
    """Imports the class that starts guests on the domain, which is then a machine like any other over ssh."""
    from guestmark.platforms.ssh.guests import RemoteGuestPlatform

    return RemoteGuestPlatform


PLATFORMS = (
    PlatformKind(
        "virsh",
        "a libvirt domain, fresh for each trial",
        load_platform_class,
        holds_guests=True,
        load_nested_class=load_nested_class,
        guest=False,
        remote=True,
        on_this_host=True,
        destination="DOMAIN",
        factors=FACTORS,
        outer_factors=FACTORS,
        programs=(Program("virsh", "libvirt-clients"),),
    ),
)
