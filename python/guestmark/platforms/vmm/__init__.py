"""Firecracker and Cloud Hypervisor: small hypervisors on KVM, without firmware and with few devices."""

from guestmark.core.factor import Factor, Machine
from guestmark.core.platform_kind import PlatformKind, Program
from guestmark.platforms.descriptions import PlatformClass, count_guest_processors
from guestmark.platforms.vmm.programs import CLOUD_HYPERVISOR, FIRECRACKER
from guestmark.setting.drive import AIO, BUS, CACHE, Aio, Bus, CacheMode
from guestmark.setting.image import FORMAT, Format
from guestmark.setting.network import MTU, NETWORK, NIC_QUEUES, NIC_RING, OFFLOADS


def load_platform_class() -> PlatformClass:
    """Imports the class that starts guests in these hypervisors."""
    from guestmark.platforms.vmm.platform import VmmPlatform

    return VmmPlatform


def _describe_hypervisor(program: Program, aio: Aio, text: str, *factors: Factor) -> PlatformKind:
    return PlatformKind(
        program.name,
        text,
        load_platform_class,
        needs_kvm=True,
        machine=Machine.VMM,
        factors=(NETWORK, MTU, *factors),
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
    _describe_hypervisor(
        CLOUD_HYPERVISOR, Aio.IO_URING, "Cloud Hypervisor, with KVM", NIC_QUEUES, NIC_RING, OFFLOADS
    ),
    # By default its disks make one system call for each request, in the device thread. Its card has one queue of a
    # fixed size, and offloads that cannot be switched off.
    _describe_hypervisor(FIRECRACKER, Aio.THREADS, "Firecracker, with KVM"),
)
