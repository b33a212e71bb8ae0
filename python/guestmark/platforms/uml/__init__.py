"""User-Mode Linux: a kernel as an ordinary process."""

from guestmark.core.factor import Machine
from guestmark.core.platform_kind import PlatformKind, Program
from guestmark.platforms.descriptions import PlatformClass
from guestmark.setting.drive import AIO, BUS, CACHE, UML_DISK, Aio, Bus, CacheMode
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.image import FORMAT, Format


def load_platform_class() -> PlatformClass:
    """Imports the class that starts User-Mode Linux guests."""
    from guestmark.platforms.uml.platform import UmlPlatform

    return UmlPlatform


PLATFORMS = (
    PlatformKind(
        "uml",
        "User-Mode Linux, a kernel as a process",
        load_platform_class,
        machine=Machine.UML,
        # UML's kernel opens raw images itself, through the page cache, as does the storage daemon for vhost-user.
        disk={
            FORMAT.name: Format.RAW,
            CACHE.name: CacheMode.WRITEBACK,
            AIO.name: Aio.THREADS,
            BUS.name: Bus.UBD,
        },
        bus_factor=UML_DISK.name,
        shares=(Filesystem.HOSTFS,),
        programs=(
            Program("linux.uml", "user-mode-linux"),
            Program("qemu-storage-daemon", "qemu-system-common"),
        ),
        counter="uml_stops",
        start_limit_s=30.0,
    ),
)
