"""The factors of guests, independent of the workload. Cheap to import."""

import os
import re
import shlex

from guestmark.core import placement
from guestmark.core.factor import Factor, Labelled
from guestmark.core.units import format_size, parse_size
from guestmark.foreign import images, qemus

_QEMU = "qemu-system-x86_64"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", re.ASCII)  # what can be a label
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,=+:-]*", re.ASCII)


def _memory(text: str) -> str:
    size = parse_size(text)
    if size < 32 * 1024**2:
        raise ValueError(f"{text!r} is too little memory to boot Linux (at least 32M)")
    if size % 1024**2:
        raise ValueError(f"{text!r} is not a whole number of MiB")
    return format_size(size)


def count(text: str) -> str:
    """A number of processors."""
    if not re.fullmatch(r"\s*[0-9]{1,4}\s*", text, re.ASCII) or int(text) < 1:
        raise ValueError(f"{text!r} is not a number of processors")
    return str(int(text))


def word(text: str) -> str:
    """A name that QEMU may know."""
    if not _WORD.fullmatch(text.strip()):
        raise ValueError(f"{text!r} cannot be a name in QEMU")
    return text.strip()


def _kernel(text: str) -> str:
    if not text.strip():
        raise ValueError("the kernel's path is empty")
    path = os.path.abspath(os.path.expanduser(text))
    if not os.path.isfile(path):
        raise ValueError(f"there is no kernel at {path!r}")
    return path


def _kernel_args(text: str) -> str:
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError(f"{text!r} contains control characters")
    return " ".join(text.split())


def _qemu_args(text: str) -> str:
    try:
        words = shlex.split(_kernel_args(text))
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if not words or not words[0].startswith("-"):
        raise ValueError(f"{text!r} does not begin with an option of QEMU, such as -device")
    return shlex.join(words)


def _outer(text: str) -> str:
    if text.strip() not in ("block", "trial"):
        raise ValueError(f"{text!r} is neither block nor trial")
    return text.strip()


def _program(text: str) -> str:
    """QEMU itself, a directory that holds it (a build, an installation, an unpacked package), or where it is from."""
    if qemus.is_elsewhere(text.strip()):
        return qemus.found(text.strip())
    path = os.path.abspath(os.path.expanduser(text.strip()))
    tried = [path, *(os.path.join(path, folder, _QEMU) for folder in ("", "bin", "usr/bin", "build"))]
    found = next((file for file in tried if os.path.isfile(file)), None)
    if not text.strip() or found is None:
        raise ValueError(f"there is no {_QEMU} at {path!r}")
    if not os.access(found, os.X_OK):
        raise ValueError(f"{found!r} cannot be executed")
    return found


def _file(text: str) -> str:
    path = os.path.abspath(os.path.expanduser(text.strip()))
    if not text.strip() or not os.path.isfile(path):
        raise ValueError(f"there is no file at {path!r}")
    return path


def _modules(text: str) -> str:
    path = os.path.abspath(os.path.expanduser(text.strip()))
    if not text.strip() or not os.path.isdir(os.path.join(path, "kernel")):
        raise ValueError(f"{path!r} is no directory of a kernel's modules: it has no kernel")
    return path


def _rootfs(text: str) -> str:
    """A directory, or what an image holds; that is called by the image's name."""
    path = os.path.abspath(os.path.expanduser(text.strip()))
    if not text.strip():
        raise ValueError("the path of the root filesystem is empty")
    name = ""
    if os.path.isfile(path) or text.strip().startswith(images.IMAGE):
        name = os.path.basename(text.strip().removeprefix(images.IMAGE))
        path = str(images.root(text.strip()))
    elif not os.path.isdir(path):
        raise ValueError(f"there is no directory and no image {path!r}")
    if not all(os.path.isdir(os.path.join(path, folder)) for folder in ("etc", "usr")):
        raise ValueError(f"{path!r} is no root filesystem: it has no etc or no usr")
    return Labelled(name, path) if _NAME.fullmatch(name) else path


MEMORY = Factor("memory", "the guest's memory, e.g. 512M or 2GiB", _memory, ("256M", "512M", "1G", "2G"))
SMP = Factor("smp", "the guest's number of processors", count, ("1", "2", "4"))
CPU = Factor(
    "cpu",
    "QEMU's processor model, e.g. max or host,-vmx; a feature QEMU cannot give is an error unless ,enforce=off",
    word,
    ("host", "max", "qemu64", "kvm64"),
)
MACHINE = Factor("machine", "QEMU's machine type", word, ("pc", "q35", "microvm"))
KERNEL = Factor(
    "kernel", "path of the guest's kernel; with a label: old:/boot/vmlinuz-6.1", _kernel, path=True
)
PROGRAM = Factor(
    "qemu",
    f"the {_QEMU} to use: the program, a directory such as a build or an unpacked package, apt:VERSION of the package "
    "sources, or image:NAME of a container image, also image:ARCHIVE.tar",
    _program,
    path=True,
)
FIRMWARE = Factor("bios", "path of the firmware that QEMU starts", _file, path=True)
MODULES = Factor(
    "modules",
    "the directory of the modules that belong to the guest's kernel, such as /lib/modules/VERSION",
    _modules,
    path=True,
)
ROOTFS = Factor(
    "rootfs",
    "what guests have as their root filesystem instead of the host's: a directory; a tar archive, a container image, a "
    "squashfs or an ext4 image, unpacked into the cache; or image:NAME of an image that podman or docker has",
    _rootfs,
    path=True,
)
OF_QEMU = (PROGRAM, FIRMWARE, MODULES, ROOTFS)
KERNEL_ARGS = Factor(
    "kernel_args",
    r"extra arguments for the guest's kernel, e.g. mitigations=off (write a comma inside as \,)",
    _kernel_args,
    ("mitigations=off",),
)
QEMU_ARGS = Factor(
    "qemu_args",
    r"anything else for QEMU's command line, recorded as given; what it does is not attested (write a comma as \,)",
    _qemu_args,
    (r"-device virtio-rng-pci",),
)
PLACEMENT = Factor(
    placement.NAME,
    "where on the host it runs: pinned (virtual processors, the emulator's other threads and guestmark itself apart as "
    r"far as there are processors), free (wherever the host's scheduler likes), or a list: cpus=2-3, cpus=1\,3",
    placement.level,
    (placement.PINNED, placement.FREE, "cpus=0"),
)
EVERY_GUEST = (MEMORY, KERNEL, KERNEL_ARGS, PLACEMENT)
# Of the guest around a nested one.
OUTER = Factor(
    "outer",
    "how often the outer guest of a nested platform is started: for each block or for each trial",
    _outer,
    ("block", "trial"),
)
OUTER_CPU = Factor(
    "outer_cpu",
    "the outer guest's processor model, e.g. max,svm=on; kvm inside it needs nested virtualization",
    word,
    (r"max\,svm=on",),
)
OUTER_SMP = Factor("outer_smp", "the outer guest's number of processors", count, ("1", "2"))
OUTER_GUEST = (OUTER, OUTER_CPU, OUTER_SMP)
