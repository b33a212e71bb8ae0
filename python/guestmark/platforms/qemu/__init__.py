"""QEMU with KVM, and QEMU that emulates the processor (TCG)."""

from guestmark.core.factor import Machine
from guestmark.core.platform_kind import PlatformKind
from guestmark.platforms.descriptions import NestedPlatformClass, PlatformClass, count_guest_processors
from guestmark.platforms.qemu.accelerators import KVM, TCG, Accelerator
from guestmark.platforms.qemu.programs import PROGRAMS
from guestmark.setting.filesystem import Filesystem


def load_platform_class() -> PlatformClass:
    """Imports the class that starts QEMU guests."""
    from guestmark.platforms.qemu.platform import QemuPlatform

    return QemuPlatform


def load_nested_class() -> NestedPlatformClass:
    """Imports the class that starts guests inside a QEMU guest."""
    from guestmark.platforms.qemu.nested.platform import NestedPlatform

    return NestedPlatform


def _describe_accelerator(accelerator: Accelerator, text: str) -> PlatformKind:
    return PlatformKind(
        accelerator.name,
        text,
        load_platform_class,
        holds_guests=True,
        needs_kvm=not accelerator.emulates,
        emulates=accelerator.emulates,
        load_nested_class=load_nested_class,
        takes_arch=True,
        boots_firmware=True,
        shares=(Filesystem.VIRTIOFS, Filesystem.NINE_P),
        machine=Machine.QEMU,
        outer=Machine.OUTER,
        processors=count_guest_processors,
        programs=PROGRAMS,
        counter=accelerator.counter,
        start_limit_s=accelerator.start_limit_s,
    )


PLATFORMS = (
    _describe_accelerator(KVM, "QEMU with KVM, the processor's virtualization"),
    _describe_accelerator(TCG, "QEMU that emulates the processor (TCG)"),
)
