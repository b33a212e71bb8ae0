"""The architectures that guests can have: one row for each, with everything that differs between them.

Other code reads the row and never compares names of architectures. This module is cheap to import.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from guestmark.core.errors import make_unknown_name_error
from guestmark.core.platform_kind import Program


class Source(StrEnum):
    """Where a part of an architecture, such as its kernel, comes from."""

    DISTRIBUTION = "the distribution's package"
    BUILT = "built from the distribution's sources"


class Bus(StrEnum):
    """The bus of virtio devices; the value is the suffix of their names in QEMU."""

    PCI = "pci"
    CCW = "ccw"
    MMIO = "device"


@dataclass(frozen=True, slots=True)
class Uefi:
    """The UEFI firmware of an architecture: `files` are the paths of its code and of a template of its variables.

    Each distribution has other paths.
    """

    package: str  # Debian's
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture. Names of devices and processors are QEMU's.

    `kernel_command_line` has parameters that shorten the boot and have no effect afterwards;
    `emulated_kernel_command_line` has those for TCG only.
    """

    name: str  # Debian's, as in tcg@NAME
    machine_name: str  # that of `uname -m`
    emulator: Program  # of whole machines
    machine: str
    # The default processor of an emulated machine.
    cpu: str
    target: str  # Rust's name
    # The C compiler that builds programs for it.
    cross: Program
    other_names: tuple[str, ...] = ()
    # The suffix of processor types as QEMU's monitor names them.
    cpu_suffix: str = ""
    memory: str = "1G"
    console: str = "ttyS0"
    console_device: tuple[str, ...] = ("-serial", "chardev:console")
    bus: Bus = Bus.PCI
    # The PCI bus for devices, if that is not the machine's first one.
    pci_bus: str = ""
    # Whether its devices use the interface from before virtio 1.
    legacy_virtio: bool = False
    # Whether `enforce` makes its processors refuse a feature that QEMU cannot provide.
    checks_cpu: bool = False
    several_processors: bool = True
    page_size: int = 4096
    kernel_command_line: str = ""
    emulated_kernel_command_line: str = ""
    kernel: Source = Source.DISTRIBUTION
    # The metapackage of the distribution's kernel.
    kernel_package: str = ""
    # The name of the architecture in the kernel's own build (`ARCH=`).
    kernel_arch: str = ""
    # The target of that build, which is also the path of its result.
    kernel_image: str = ""
    # Bytes of which a kernel image has one at the given offset.
    kernel_marks: tuple[tuple[int, bytes], ...] = ()
    # Whether an image names its release, and is unpacked here so that it can be entered directly.
    kernel_unpacked: bool = False
    # Whether User-Mode Linux exists for it.
    user_mode_linux: bool = False
    # Whether the distribution has packages from which a root can be built.
    root: bool = True
    user_emulator: str = ""  # of single programs
    # The machine type of a guest that starts guests with KVM; empty for the usual one.
    outer_machine: str = ""
    # The processor of an emulated machine that starts guests with KVM; empty for `cpu`.
    outer_cpu: str = ""
    # Whether QEMU has the VM generation ID device for it.
    generation_id: bool = False
    # Whether QEMU boots kernels through a ROM, which becomes part of a saved machine.
    boots_by_rom: bool = False
    big_endian: bool = False
    # The device to which the firmware prints.
    firmware_log: str = ""
    # The kernel argument that prints from the first line on.
    early_console: str = ""
    # The UEFI firmware that boots disks.
    uefi: Uefi | None = None
    # Whether the emulator has firmware of its own that boots disks.
    boots_disks: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All names under which it is accepted."""
        return (self.name, self.machine_name, *self.other_names)

    @property
    def cross_prefix(self) -> str:
        """The prefix of its compiler's programs, such as `sparc64-linux-gnu-`."""
        return self.cross.name.removesuffix("gcc")

    @property
    def is_host(self) -> bool:
        """Whether it is this host's own."""
        return self is find_host_architecture()


# A kernel that its own EFI stub unpacks; QEMU can unpack it too.
_EFI_UNPACKED = (4, b"zimg")
# The offset of e_machine in an ELF header.
_ELF_MACHINE = 18

# All devices are on the first PCI bus, or behind bridges that are found from it. Kernels look for others on 256 buses,
# and on processors of AMD's early families twice for AGP bridges on each of their 65536 places: every look is an exit.
_NO_PCI_SEARCH = "pci=noearly,lastbus=0"
_NO_CIPHER_TESTS = "cryptomgr.notests=1"


def _list_rhel_emulators(machine_name: str) -> tuple[str, ...]:
    """Return the path of RHEL's only QEMU, which is not in PATH and emulates only the host's own architecture."""
    return ("/usr/libexec/qemu-kvm",) if platform.machine() == machine_name else ()


X86_64 = Architecture(
    name="x86_64",
    machine_name="x86_64",
    other_names=("amd64", "x86-64"),
    emulator=Program("qemu-system-x86_64", "qemu-system-x86", _list_rhel_emulators("x86_64")),
    machine="q35",
    # Kernels copy and clear memory byte by byte, with string instructions, where the processor calls that fast (ERMS,
    # FSRM). Emulated, each byte is a turn of a loop. Without the claim they take eight bytes a turn, and moving data
    # through a guest is twice as fast.
    cpu="max,erms=off,fsrm=off",
    outer_cpu="max,erms=off,fsrm=off,svm=on",
    generation_id=True,
    boots_by_rom=True,
    cpu_suffix="-x86_64-cpu",
    checks_cpu=True,
    target="x86_64-unknown-linux-gnu",
    cross=Program("x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"),
    kernel_command_line=f"tsc=reliable no_timer_check {_NO_CIPHER_TESTS} {_NO_PCI_SEARCH}",
    kernel_marks=((0x202, b"HdrS"),),
    kernel_unpacked=True,
    user_mode_linux=True,
    # No rewriting of lock prefixes in the kernel's text.
    emulated_kernel_command_line="noreplace-smp",
    kernel_package="linux-image-amd64",
    user_emulator="qemu-x86_64",
    firmware_log="isa-debugcon,iobase=0x402",
    early_console="earlyprintk=ttyS0",
    uefi=Uefi(
        "ovmf",
        (
            ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
            ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
            ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
            ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
        ),
    ),
    boots_disks=True,
)

ARM64 = Architecture(
    name="arm64",
    machine_name="aarch64",
    emulator=Program("qemu-system-aarch64", "qemu-system-arm", _list_rhel_emulators("aarch64")),
    machine="virt,gic-version=3",
    # Pointer authentication by the architecture's own cipher takes most of an emulated processor's time.
    cpu="max,pauth-impdef=on",
    cpu_suffix="-arm-cpu",
    target="aarch64-unknown-linux-gnu",
    cross=Program("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    console="ttyAMA0",
    kernel_command_line=_NO_CIPHER_TESTS,
    kernel_marks=((56, b"ARM\x64"), _EFI_UNPACKED),
    kernel_package="linux-image-arm64",
    early_console="earlycon=pl011,mmio32,0x9000000",
    user_emulator="qemu-aarch64",
    uefi=Uefi(
        "qemu-efi-aarch64",
        (
            ("/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd"),
            (
                "/usr/share/edk2/aarch64/QEMU_EFI-silent-pflash.raw",
                "/usr/share/edk2/aarch64/vars-template-pflash.raw",
            ),
        ),
    ),
    outer_machine="virt,gic-version=3,virtualization=on",
)

ARMHF = Architecture(
    name="armhf",
    machine_name="armv7l",
    other_names=("arm", "armv7"),
    emulator=Program("qemu-system-arm", "qemu-system-arm"),
    # Memory above 4 GiB could not be reached: Debian's kernel for it has no large addresses.
    machine="virt,highmem=off",
    cpu="cortex-a15",
    cpu_suffix="-arm-cpu",
    target="armv7-unknown-linux-gnueabihf",
    cross=Program("arm-linux-gnueabihf-gcc", "gcc-arm-linux-gnueabihf"),
    console="ttyAMA0",
    kernel_command_line=_NO_CIPHER_TESTS,
    kernel_marks=((36, b"\x18\x28\x6f\x01"),),
    kernel_package="linux-image-armmp",
    user_emulator="qemu-arm",
    uefi=Uefi("qemu-efi-arm", (("/usr/share/AAVMF/AAVMF32_CODE.fd", "/usr/share/AAVMF/AAVMF32_VARS.fd"),)),
)

PPC64EL = Architecture(
    name="ppc64el",
    machine_name="ppc64le",
    other_names=("powerpc64le",),
    emulator=Program("qemu-system-ppc64", "qemu-system-ppc"),
    # TCG's processors lack these capabilities, and the machine would only warn about it.
    machine="pseries,cap-cfpc=broken,cap-sbbc=broken,cap-ibs=broken,cap-ccf-assist=off",
    cpu="power9_v2.0",
    cpu_suffix="-powerpc64-cpu",
    target="powerpc64le-unknown-linux-gnu",
    cross=Program("powerpc64le-linux-gnu-gcc", "gcc-powerpc64le-linux-gnu"),
    console="hvc0",
    page_size=65536,
    kernel_command_line=_NO_CIPHER_TESTS,
    kernel_marks=((_ELF_MACHINE, b"\x15\x00"),),
    kernel_package="linux-image-powerpc64le",
    user_emulator="qemu-ppc64le",
    boots_disks=True,
)

RISCV64 = Architecture(
    name="riscv64",
    machine_name="riscv64",
    # Its machines do not start without the firmware of another package.
    emulator=Program("qemu-system-riscv64", "qemu-system-riscv64 opensbi"),
    machine="virt",
    cpu="rv64",
    cpu_suffix="-riscv-cpu",
    target="riscv64gc-unknown-linux-gnu",
    cross=Program("riscv64-linux-gnu-gcc", "gcc-riscv64-linux-gnu"),
    kernel_command_line=_NO_CIPHER_TESTS,
    kernel_marks=((56, b"RSC\x05"), _EFI_UNPACKED),
    kernel_package="linux-image-riscv64",
    user_emulator="qemu-riscv64",
    uefi=Uefi(
        "qemu-efi-riscv64",
        (
            (
                "/usr/share/qemu-efi-riscv64/RISCV_VIRT_CODE.fd",
                "/usr/share/qemu-efi-riscv64/RISCV_VIRT_VARS.fd",
            ),
        ),
    ),
)

S390X = Architecture(
    name="s390x",
    machine_name="s390x",
    emulator=Program("qemu-system-s390x", "qemu-system-s390x"),
    machine="s390-ccw-virtio",
    cpu="max",
    cpu_suffix="-s390x-cpu",
    target="s390x-unknown-linux-gnu",
    cross=Program("s390x-linux-gnu-gcc", "gcc-s390x-linux-gnu"),
    console_device=("-device", "sclpconsole,chardev=console"),
    bus=Bus.CCW,
    kernel_command_line=_NO_CIPHER_TESTS,
    kernel_marks=((0x10008, b"S390EP"),),
    kernel_package="linux-image-s390x",
    user_emulator="qemu-s390x",
    boots_disks=True,
    big_endian=True,
)

SPARC64 = Architecture(
    name="sparc64",
    machine_name="sparc64",
    emulator=Program("qemu-system-sparc64", "qemu-system-sparc"),
    machine="sun4u",
    cpu="TI-UltraSparc-IIi",
    cpu_suffix="-sparc64-cpu",
    target="sparc64-unknown-linux-gnu",
    cross=Program("sparc64-linux-gnu-gcc", "gcc-sparc64-linux-gnu"),
    memory="512M",
    # PciA has a slot for on-board devices only.
    pci_bus="pciB",
    legacy_virtio=True,
    several_processors=False,
    page_size=8192,
    kernel=Source.BUILT,
    kernel_arch="sparc64",
    kernel_image="arch/sparc/boot/image",
    kernel_marks=((_ELF_MACHINE, b"\x00\x2b"),),
    # Its packages are in Debian's ports, not in a release.
    root=False,
    big_endian=True,
)

ARCHITECTURES: Mapping[str, Architecture] = {
    row.name: row for row in (X86_64, ARM64, ARMHF, PPC64EL, RISCV64, S390X, SPARC64)
}


def find_architecture(name: str) -> Architecture:
    """Return the architecture of that name, as in `uname -m` or in the distribution.

    Raises `UsageError` with the nearest known name.
    """
    for row in ARCHITECTURES.values():
        if name.lower() in row.names:
            return row
    raise make_unknown_name_error("architecture", name, ARCHITECTURES)


@functools.cache
def find_host_architecture() -> Architecture:
    """Return this host's architecture. Raises `UsageError` if the table does not have it."""
    return find_architecture(platform.machine())
