"""The factors of guests: memory, processors, kernel, firmware, hypervisor, and the host processors they run on."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from guestmark.core import placement
from guestmark.core.architectures import Architecture, find_host_architecture
from guestmark.core.discovery import list_settings
from guestmark.core.factor import Labelled, Machine, Setting, one_of
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import Backing, Inside, Vmm
from guestmark.core.units import format_size, parse_size
from guestmark.foreign import images, qemus
from guestmark.setting.base import Check, has_control_characters, pass_words_at

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", re.ASCII)  # labels of images
_QEMU_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,=+:-]*", re.ASCII)
_KERNELS_SHOWN = 4  # in an error that lists kernels
# The memory that a guest's kernel may keep for itself (its image, page structures, reserved ranges): a share of the
# memory or a number of bytes, whichever is more. The attestation accepts that much less than was requested.
_KERNEL_MEMORY_SHARE = 0.15
_KERNEL_MEMORY_BYTES = 128 << 20
L = TypeVar("L")
# A command of QEMU's monitor, with its arguments.
MonitorCommand = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class StartedGuest:
    """A running guest, as an attestation sees it."""

    inside: Inside
    # What the hypervisor's monitor reports; None without a monitor.
    vmm: Vmm | None = None
    # The path of its hypervisor's executable; empty if it cannot be read.
    program: str = ""
    # Whether the hypervisor loaded a saved machine; None without a monitor.
    restored: bool | None = None
    # How this host backs its memory; None unless a factor of memory is set.
    backing: Backing | None = None


def _make_no_arguments(_level: Any) -> Sequence[Any]:
    return ()


def _attest_nothing(_level: Any, _guest: StartedGuest) -> Iterable[Check]:
    return ()


def _make_no_qemu_arguments(_level: Any, _architecture: Architecture) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSetting(Setting[L]):
    """A factor of guests. Each function is called with a level and returns complete arguments; any may be omitted."""

    qemu: Callable[[L, Architecture], Sequence[str]] = _make_no_qemu_arguments
    uml: Callable[[L], Sequence[str]] = _make_no_arguments
    kernel: Callable[[L], Sequence[str]] = _make_no_arguments  # of the guest's kernel
    # Options of the QEMU object that holds the guest's memory.
    backing: Callable[[L], Sequence[str]] = _make_no_arguments
    # Options of `guestmark-agent confine`, which then executes QEMU.
    process: Callable[[L], Sequence[str]] = _make_no_arguments
    # Commands that are sent to QEMU's monitor once the guest's agent answers.
    monitor: Callable[[L], Sequence[MonitorCommand]] = _make_no_arguments
    # Modules that the guest's kernel needs.
    modules: tuple[str, ...] = ()
    attest: Callable[[L, StartedGuest], Iterable[Check]] = _attest_nothing


def iterate_guest_levels(levels: Levels) -> Iterator[tuple[MachineSetting[Any], Any]]:
    """Yield each factor of guests that has a level here, with that level."""
    for factor in list_settings():
        if isinstance(factor, MachineSetting) and factor in levels:
            yield factor, levels[factor]


def list_kernel_command_line_words(levels: Levels) -> list[str]:
    """Return the arguments that levels add to the kernel's command line."""
    return collect_guest_options(levels, lambda factor: factor.kernel)


def collect_guest_options(
    levels: Levels, of: Callable[[MachineSetting[Any]], Callable[[Any], Sequence[str]]]
) -> list[str]:
    """Return the arguments for a guest's levels; `of` selects the function of each factor that returns them."""
    words: list[str] = []
    for factor, level in iterate_guest_levels(levels):
        words += of(factor)(level)
    return words


def attest_levels(levels: Levels, guest: StartedGuest) -> Iterator[Check]:
    """Yield every comparison that the levels allow on a running guest."""
    for factor, level in iterate_guest_levels(levels):
        yield from factor.attest(level, guest)


def _parse_memory(text: str) -> str:
    size = parse_size(text)
    if size < 32 * 1024**2:
        raise ValueError(f"{text!r} is too little memory to boot Linux (at least 32M)")
    if size % 1024**2:
        raise ValueError(f"{text!r} is not a whole number of MiB")
    return format_size(size)


def _parse_cpu_count(text: str) -> str:
    """Return a number of processors in canonical spelling."""
    if not re.fullmatch(r"\s*[0-9]{1,4}\s*", text, re.ASCII) or int(text) < 1:
        raise ValueError(f"{text!r} is not a number of processors")
    return str(int(text))


def _parse_qemu_name(text: str) -> str:
    """Return the text as a name for QEMU, such as a processor model; QEMU itself checks whether it exists."""
    if not _QEMU_NAME.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a valid name for QEMU")
    return text.strip()


def _parse_kernel(text: str) -> str:
    if not text.strip():
        raise ValueError("the kernel's path is empty")
    # The level is stored with the run, which may be resumed from another directory, so the path is made absolute.
    path = os.path.abspath(os.path.expanduser(text))
    if not os.path.isfile(path):
        from guestmark.appliance.kernel import list_images

        here = ", ".join(map(str, list_images()[:_KERNELS_SHOWN])) or "none"
        raise ValueError(f"there is no kernel at {path!r}; kernels on this host: {here}")
    return path


def _parse_kernel_args(text: str) -> str:
    if has_control_characters(text):
        raise ValueError(f"{text!r} contains control characters")
    return " ".join(text.split())


def _parse_qemu_args(text: str) -> str:
    try:
        words = shlex.split(_parse_kernel_args(text))
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if not words or not words[0].startswith("-"):
        raise ValueError(f"{text!r} does not begin with a QEMU option, such as -device")
    return shlex.join(words)


def _parse_qemu(text: str) -> str:
    """Return the path of the QEMU to use.

    `text` is the program itself, a directory that contains it (a build, an installation, an unpacked package), or the
    source to download it from.
    """
    if qemus.is_elsewhere(text.strip()):
        return qemus.find_qemu(text.strip())
    path = os.path.abspath(os.path.expanduser(text.strip()))
    name = find_host_architecture().emulator.name
    tried = [path, *(os.path.join(path, folder, name) for folder in ("", "bin", "usr/bin", "build"))]
    for file in tried:
        if text.strip() and os.path.isfile(file):
            return _parse_executable(file)
    raise ValueError(f"there is no {name} at {path!r}")


def _parse_executable(text: str) -> str:
    path = _parse_file(text)
    if not os.access(path, os.X_OK):
        raise ValueError(f"{path!r} cannot be executed")
    return path


def _parse_file(text: str) -> str:
    path = os.path.abspath(os.path.expanduser(text.strip()))
    if not text.strip() or not os.path.isfile(path):
        raise ValueError(f"there is no file at {path!r}")
    return path


def _parse_module_directory(text: str) -> str:
    path = os.path.abspath(os.path.expanduser(text.strip()))
    if not text.strip() or not os.path.isdir(os.path.join(path, "kernel")):
        raise ValueError(f"{path!r} is not a kernel's module directory: it has no kernel/")
    return path


def _parse_rootfs(text: str) -> str:
    """Return the directory of a root filesystem, labelled with the image's name if it is an unpacked image."""
    path = os.path.abspath(os.path.expanduser(text.strip()))
    if not text.strip():
        raise ValueError("the path of the root filesystem is empty")
    name = ""
    if os.path.isfile(path) or text.strip().startswith(images.IMAGE):
        # The image's name tells users more than the path in the cache.
        name = os.path.basename(text.strip().removeprefix(images.IMAGE))
        path = str(images.unpack_root(text.strip()))
    elif not os.path.isdir(path):
        raise ValueError(f"there is no directory or image {path!r}")
    if not all(os.path.isdir(os.path.join(path, folder)) for folder in ("etc", "usr")):
        raise ValueError(f"{path!r} is not a root filesystem: etc or usr is missing")
    return _label_path(path, name)


def _label_path(path: str, name: str) -> str:
    if _LABEL.fullmatch(name):
        return Labelled(name, path)
    return path


def _parse_image(text: str) -> str:
    """Return the path of a disk image, labelled with its file's name."""
    path = os.path.abspath(os.path.expanduser(text.strip()))
    if not text.strip() or not os.path.isfile(path):
        raise ValueError(f"there is no disk image at {text.strip()!r}")
    return _label_path(path, os.path.basename(path))


def _attest_memory(asked: int, guest: StartedGuest) -> Iterator[Check]:
    if guest.vmm is not None:
        yield Check("the memory (hypervisor)", asked, guest.vmm.memory_bytes)
    kept = max(_KERNEL_MEMORY_SHARE * asked, _KERNEL_MEMORY_BYTES)
    inside = guest.inside.memory_bytes
    # The memory that the guest reports excludes what its balloon has taken.
    if guest.backing is not None and guest.backing.left_bytes is not None:
        asked = guest.backing.left_bytes
    if not asked - kept <= inside <= asked * 1.01:
        yield Check("the memory (guest)", f"{asked} bytes less what the kernel reserves", f"{inside} bytes")


MEMORY = MachineSetting(
    "memory",
    "the guest's memory, e.g. 512M or 2GiB",
    _parse_memory,
    ("256M", "512M", "1G", "2G"),
    read=parse_size,
    machines=Machine.GUEST,
    qemu=lambda size, _architecture: ("-m", format_size(size)),
    uml=lambda size: (f"mem={format_size(size)}",),
    attest=_attest_memory,
)


def _attest_processors(asked: int, guest: StartedGuest) -> Iterator[Check]:
    if guest.vmm is not None:
        yield Check("the number of processors (hypervisor)", asked, guest.vmm.processors)
    yield Check("the number of processors (guest)", asked, guest.inside.processors)


SMP = MachineSetting(
    "smp",
    "number of the guest's processors",
    _parse_cpu_count,
    ("1", "2", "4"),
    read=int,
    machines=Machine.QEMU | Machine.VMM,
    qemu=lambda number, _architecture: ("-smp", str(number)),
    attest=_attest_processors,
)


def _make_cpu_arguments(model: str, architecture: Architecture) -> Sequence[str]:
    """Return the processor model with `enforce=on`, as QEMU otherwise only warns about features it cannot provide."""
    if architecture.checks_cpu and "enforce" not in model:
        return "-cpu", f"{model},enforce=on"
    return "-cpu", model


def _attest_cpu(model: str, guest: StartedGuest) -> Iterator[Check]:
    # `enforce` checks the features after the comma, so only the model's name is compared.
    if guest.vmm is not None:
        yield Check("the processor model", model.partition(",")[0], guest.vmm.cpu)


CPU = MachineSetting(
    "cpu",
    "QEMU's processor model, e.g. max or host,-vmx; a feature QEMU cannot provide is an error unless ,enforce=off",
    _parse_qemu_name,
    ("host", "max", "qemu64", "kvm64"),
    read=str,
    machines=Machine.QEMU,
    qemu=_make_cpu_arguments,
    attest=_attest_cpu,
)
MACHINE = MachineSetting(
    "machine",
    "QEMU's machine type",
    _parse_qemu_name,
    ("pc", "q35", "microvm"),
    read=str,
    machines=Machine.QEMU,
    qemu=lambda kind, _architecture: ("-machine", kind),
)
KERNEL = MachineSetting(
    "kernel",
    "path of the guest's kernel; with a label: old:/boot/vmlinuz-6.1",
    _parse_kernel,
    path=True,
    read=str,
    machines=Machine.GUEST,
)


def _attest_program(program: str, guest: StartedGuest) -> Iterator[Check]:
    """Compare the hypervisor's executable, unless `program` is a script, which may execute any other program."""
    if guest.program:
        with open(program, "rb") as file:
            if file.read(4) == b"\x7fELF":
                yield Check("the hypervisor", os.path.realpath(program), guest.program)


PROGRAM = MachineSetting(
    "qemu",
    "the QEMU to use: the program, a directory such as a build or an unpacked package, apt:VERSION from the package "
    "sources, or image:NAME of a container image, also image:ARCHIVE.tar",
    _parse_qemu,
    path=True,
    read=str,
    machines=Machine.QEMU,
    attest=_attest_program,
)
VMM = MachineSetting(
    "vmm",
    "path of the firecracker or cloud-hypervisor program, if it is not in PATH",
    _parse_executable,
    path=True,
    read=str,
    machines=Machine.VMM,
    attest=_attest_program,
)
FIRMWARE = MachineSetting(
    "bios",
    "path of the firmware for QEMU",
    _parse_file,
    path=True,
    read=str,
    machines=Machine.QEMU,
    qemu=lambda path, _architecture: ("-bios", path),
)
MODULES = MachineSetting(
    "modules",
    "the directory of the modules that belong to the guest's kernel, such as /lib/modules/VERSION",
    _parse_module_directory,
    path=True,
    read=str,
    machines=Machine.QEMU | Machine.VMM,
)
IMAGE = MachineSetting(
    "image",
    "the disk image (qcow2, raw, vmdk or vhdx) that guests boot, with its own boot loader and kernel; it provides the "
    "programs, and its file is never modified",
    _parse_image,
    path=True,
    read=str,
    machines=Machine.QEMU,
)
ROOTFS = MachineSetting(
    "rootfs",
    "the guests' root filesystem instead of the host's: a directory; a tar archive, a container image, a "
    "squashfs or an ext4 image, unpacked into the cache; or image:NAME of an image that podman or docker has",
    _parse_rootfs,
    path=True,
    read=str,
    machines=Machine.QEMU,
)
KERNEL_ARGS = MachineSetting(
    "kernel_args",
    r"extra arguments for the guest's kernel, e.g. mitigations=off (write a comma inside as \,)",
    _parse_kernel_args,
    ("mitigations=off",),
    read=str.split,
    machines=Machine.GUEST,
    kernel=tuple,
)
QEMU_ARGS = MachineSetting(
    "qemu_args",
    r"further arguments for QEMU, recorded as given; their effect is not attested (write a comma as \,)",
    _parse_qemu_args,
    (r"-device virtio-rng-pci",),
    read=shlex.split,
    machines=Machine.QEMU,
)


# A kernel argument that makes the agent wait before it mounts the root: a machine with a mounted root cannot be saved.
WAIT_ARGUMENT = "guestmark.template=1"


class Start(StrEnum):
    """How a guest reaches the point where its agent answers."""

    COLD = "cold"
    RESTORED = "restored"


def _attest_start(asked: Start, guest: StartedGuest) -> Iterator[Check]:
    if guest.restored is None:
        return
    found = Start.COLD
    if guest.restored:
        found = Start.RESTORED
    yield Check("the start", asked, found)


START = MachineSetting(
    "start",
    "how guests start: they boot (cold), or continue from a guest that was saved for the block (restored)",
    one_of(*Start),
    tuple(Start),
    read=Start,
    default=Start.COLD,
    machines=Machine.QEMU,
    kernel=pass_words_at(Start.RESTORED, WAIT_ARGUMENT),
    attest=_attest_start,
)
PLACEMENT = Setting(
    placement.NAME,
    "where on the host the guest runs: pinned (virtual processors, the emulator's other threads and guestmark itself "
    "on separate processors, if there are enough), free (wherever the host's scheduler likes), or a list: cpus=2-3, "
    r"cpus=1\,3",
    placement.parse_placement,
    (placement.PINNED, placement.FREE, "cpus=0"),
    read=str,
    machines=Machine.GUEST,
)


class Outer(StrEnum):
    """How often the guest around a nested one is started."""

    BLOCK = "block"
    TRIAL = "trial"


OUTER = Setting(
    "outer",
    "how often the outer guest of a nested platform is started: once per block or once per trial",
    one_of(*Outer),
    tuple(Outer),
    read=Outer,
    machines=Machine.OUTER,
)
OUTER_CPU = Setting(
    "outer_cpu",
    "the outer guest's processor model, e.g. max,svm=on; kvm inside it needs nested virtualization",
    _parse_qemu_name,
    (r"max\,svm=on",),
    read=str,
    machines=Machine.OUTER,
)
OUTER_SMP = Setting(
    "outer_smp",
    "number of the outer guest's processors",
    _parse_cpu_count,
    ("1", "2"),
    read=int,
    machines=Machine.OUTER,
)
