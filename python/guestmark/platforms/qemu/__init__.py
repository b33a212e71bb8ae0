"""QEMU with KVM, and QEMU that emulates the processor (TCG)."""

from collections.abc import Mapping

from guestmark.core.architectures import host_architecture
from guestmark.core.factor import Machine
from guestmark.core.platform_kind import PlatformKind, Program
from guestmark.platforms.qemu.accelerators import KVM, TCG, Accelerator
from guestmark.setting.filesystem import Filesystem
from guestmark.setting.machine import SMP

DAEMONS = ("/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", "/usr/lib/virtiofsd")
_PROGRAMS = (
    host_architecture().emulator,
    Program("qemu-img", "qemu-utils"),
    Program("virtiofsd", "virtiofsd", DAEMONS),
)


def _processors(levels: Mapping[str, str]) -> int:
    return SMP.of(levels) or 1


def _kind(accelerator: Accelerator, text: str) -> PlatformKind:
    return PlatformKind(
        accelerator.name,
        text,
        "guestmark.platforms.qemu.platform:QemuPlatform",
        holds_guests=True,
        needs_kvm=not accelerator.emulates,
        inside="guestmark.platforms.nested.platform:NestedPlatform",
        takes_arch=True,
        boots_firmware=True,
        shares=(Filesystem.VIRTIOFS, Filesystem.NINE_P),
        machine=Machine.QEMU,
        outer=Machine.OUTER,
        processors=_processors,
        programs=_PROGRAMS,
        counter=accelerator.counter,
        start_limit_s=accelerator.start_limit_s,
    )


PLATFORMS = (
    _kind(KVM, "QEMU with the processor's help"),
    _kind(TCG, "QEMU that emulates the processor"),
)
