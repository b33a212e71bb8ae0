"""User-Mode Linux: a kernel as an ordinary process."""

from guestmark.core.factor import Machine
from guestmark.core.platform_kind import PlatformKind, Program
from guestmark.disks import factors as disks
from guestmark.disks import shares
from guestmark.platforms import factors

PLATFORMS = (
    PlatformKind(
        "uml",
        "User-Mode Linux, a kernel as a process",
        "guestmark.platforms.uml.platform:UmlPlatform",
        machine=Machine.UML,
        factors=(*factors.EVERY_GUEST, *disks.EVERY_GUEST, disks.UML_DISK),
        # Its kernel opens raw images itself, through the page cache; over vhost-user the storage daemon does likewise.
        disk={"format": "raw", "cache": "writeback", "aio": "threads", "bus": "ubd"},
        bus_factor=disks.UML_DISK.name,
        shares=(shares.HOSTFS,),
        programs=(
            Program("linux.uml", "user-mode-linux"),
            Program("qemu-storage-daemon", "qemu-system-common"),
        ),
        counter="uml_stops",
        start_limit_s=30.0,
    ),
)
