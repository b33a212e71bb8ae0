"""Firecracker and Cloud Hypervisor: small hypervisors on KVM, without firmware and with few devices."""

from collections.abc import Mapping

from guestmark.core.factor import Machine
from guestmark.core.platform_kind import PlatformKind, Program
from guestmark.setting.drive import AIO, BUS, CACHE, Aio, Bus, CacheMode
from guestmark.setting.image import FORMAT, Format
from guestmark.setting.machine import SMP

FIRECRACKER = Program("firecracker", "")
CLOUD_HYPERVISOR = Program("cloud-hypervisor", "")


def _processors(levels: Mapping[str, str]) -> int:
    return SMP.of(levels) or 1


def _kind(program: Program, aio: Aio, text: str) -> PlatformKind:
    return PlatformKind(
        program.name,
        text,
        "guestmark.platforms.vmm.platform:VmmPlatform",
        needs_kvm=True,
        machine=Machine.VMM,
        disk={
            FORMAT.name: Format.RAW,
            CACHE.name: CacheMode.WRITEBACK,
            AIO.name: aio,
            BUS.name: Bus.VIRTIO_BLK,
        },
        processors=_processors,
        programs=(program,),
        counter="kvm_exits",
        start_limit_s=60.0,
    )


PLATFORMS = (
    _kind(CLOUD_HYPERVISOR, Aio.IO_URING, "Cloud Hypervisor, with the processor's help"),
    # Its default, a system call for each request, in the thread of its devices.
    _kind(FIRECRACKER, Aio.THREADS, "Firecracker, with the processor's help"),
)
