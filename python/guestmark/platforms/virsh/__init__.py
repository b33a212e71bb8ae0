"""A domain of libvirt, by `virsh`."""

from guestmark.core.platform_kind import PlatformKind, Program
from guestmark.platforms.ssh.destination import READY
from guestmark.platforms.virsh.factors import SNAPSHOT, SSH

_FACTORS = (SNAPSHOT, SSH, READY)

PLATFORMS = (
    PlatformKind(
        "virsh",
        "a domain of libvirt, fresh for each trial",
        "guestmark.platforms.virsh.platform:VirshPlatform",
        holds_guests=True,
        inside="guestmark.platforms.ssh.guests:RemoteGuestPlatform",
        guest=False,
        remote=True,
        on_this_host=True,
        destination="DOMAIN",
        factors=_FACTORS,
        outer_factors=_FACTORS,
        programs=(Program("virsh", "libvirt-clients"),),
    ),
)
