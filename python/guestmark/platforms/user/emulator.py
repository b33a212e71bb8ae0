"""qemu-user in a root of its own: the command that makes it, and what the kernel is told to know programs by."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from guestmark.core.errors import MachineError

INSIDE = "/run/guestmark"  # where agent and emulator are in the root
_PT_INTERP = 3
_KNOWN_BY = "usr/bin/true"
_NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private")
# The root with a layer in memory over it, this host's /proc, /dev and /sys, and the two programs; then the agent.
_SETUP = f"""
set -e
m=$1 root=$2 emulator=$3 format=$4 agent=$5; shift 5
mount -t tmpfs -o mode=755 guestmark "$m"
mkdir "$m/upper" "$m/work" "$m/root"
mount -t overlay -o "lowerdir=$root,upperdir=$m/upper,workdir=$m/work" overlay "$m/root"
for each in proc dev sys; do mount --rbind "/$each" "$m/root/$each"; done
mount -t tmpfs -o mode=755 run "$m/root/run"
mkdir "$m/root{INSIDE}"
for each in agent emulator; do touch "$m/root{INSIDE}/$each"; done
mount --bind "$agent" "$m/root{INSIDE}/agent"
mount --bind "$emulator" "$m/root{INSIDE}/emulator"
if mount -t binfmt_misc none "$m/root/proc/sys/fs/binfmt_misc" 2>/dev/null; then
    printf '%s' ":guestmark:M::$format:$m/root{INSIDE}/emulator:PF" >"$m/root/proc/sys/fs/binfmt_misc/register" || :
fi
exec chroot "$m/root" {INSIDE}/agent "$@"
"""


def around(scratch: Path, root: Path, program: str) -> list[str]:
    """The command that becomes the agent given behind it, in a root in which `program` emulates; needs no privileges.

    `scratch` is an empty directory to mount things on, where nobody else sees them.
    """
    return [
        *_NAMESPACES, "sh", "-c", _SETUP, "guestmark-user",
        str(scratch), str(root), program, binary_format(root / _KNOWN_BY),
    ]  # fmt: skip


def binary_format(example: Path) -> str:
    """The magic number and mask by which the kernel knows programs like this one; see its binfmt-misc.rst."""
    with example.open("rb") as stream:
        head = stream.read(20)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        raise MachineError(f"{example} is no program")
    mask = bytearray(b"\xff" * 20)
    mask[7:16] = bytes(9)  # which system's conventions it follows, and padding
    low = 16 if head[5] == 1 else 17  # fixed in place or not: types 2 and 3
    mask[low] = 0xFE
    return ":".join("".join(f"\\x{byte:02x}" for byte in part) for part in (head, bytes(mask)))


def is_static(program: str) -> bool:
    """Whether an ELF program needs no interpreter, and with it no libraries."""
    data = Path(program).read_bytes()
    if data[:4] != b"\x7fELF" or data[4] != 2:
        return False
    return _PT_INTERP not in _segment_types(data)


def _segment_types(data: bytes) -> Iterator[int]:
    order = "<" if data[5] == 1 else ">"
    (start,) = struct.unpack_from(f"{order}Q", data, 32)
    size, number = struct.unpack_from(f"{order}HH", data, 54)
    for index in range(number):
        yield struct.unpack_from(f"{order}I", data, start + index * size)[0]
