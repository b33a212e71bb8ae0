"""Firecracker and Cloud Hypervisor: small hypervisors on KVM, without firmware and with few devices."""

from guestmark.core.factor import Machine
from guestmark.core.platform_kind import PlatformKind, Program
from guestmark.platforms.descriptions import PlatformClass, count_guest_processors
from guestmark.platforms.vmm.programs import CLOUD_HYPERVISOR, FIRECRACKER
from guestmark.setting.drive import AIO, BUS, CACHE, Aio, Bus, CacheMode
from guestmark.setting.image import FORMAT, Format


def load_platform_class() -> PlatformClass:
    """Imports the class that starts guests in these hypervisors."""
    from guestmark.platforms.vmm.platform import VmmPlatform

    return VmmPlatform


def _describe_hypervisor(program: Program, aio: Aio, text: str) -> PlatformKind:
    return PlatformKind(
        program.name,
        text,
        load_platform_class,
        needs_kvm=True,
        machine=Machine.VMM,
        disk={
            FORMAT.name: Format.RAW,
            CACHE.name: CacheMode.WRITEBACK,
            AIO.name: aio,
            BUS.name: Bus.VIRTIO_BLK,
        },
        processors=count_guest_processors,
        programs=(program,),
        counter="kvm_exits",
        start_limit_s=60.0,
    )


PLATFORMS = (
    _describe_hypervisor(CLOUD_HYPERVISOR, Aio.IO_URING, "Cloud Hypervisor, with KVM"),
    # Firecracker's default: one system call for each request, in its device thread.
    _describe_hypervisor(FIRECRACKER, Aio.THREADS, "Firecracker, with KVM"),
)
