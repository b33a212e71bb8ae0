"""Disks that `qemu-storage-daemon` serves over vhost-user: it runs beside the hypervisor, in the guest's memory."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.disks.daemon import DAEMON
from guestmark.disks.image import Image
from guestmark.setting.base import comma, options, switch
from guestmark.setting.disk import DiskSpec
from guestmark.setting.drive import Bus
from guestmark.setting.location import SHARED_MEMORY

if TYPE_CHECKING:
    from guestmark.agent.client import Agent
    from guestmark.platforms.place import Place

_LISTENS_S = 5  # at most until it does


def _driver(image: Image) -> str:
    """A block device has another driver than a file: one of this host, or the outer guest's own disk."""
    path = str(image.path)
    return "host_device" if path.startswith("/dev/") and not path.startswith(f"{SHARED_MEMORY}/") else "file"


def socket_of(spec: DiskSpec) -> str:
    """The name of a disk's socket, in the hypervisor's scratch directory."""
    return f"{spec.name}.socket"


def beside(command: Sequence[str], made: Sequence[Image], scratch: Path, place: "Place") -> list[str]:
    """`command`, which starts a hypervisor in `scratch`, with the daemon for those of its disks that need one.

    The daemon is started first and stays a descendant of the hypervisor: it ends with it, and its work is accounted to
    it. The hypervisor ends with the daemon, too, without which its guest would wait for its disk for ever.
    Images are named by links in the scratch directory, as the daemon has a syntax of its own.
    """
    served = [image for image in made if image.spec.bus is Bus.VHOST_USER]
    if not served:
        return list(command)
    arguments: list[str] = []
    for image in served:
        spec = image.spec
        path = place.link(image.path, scratch, f"disk-{spec.name}")
        blockdev = comma(options(spec, lambda factor: factor.blockdev))
        export = comma(options(spec, lambda factor: factor.export))
        arguments += [
            "--blockdev", f"driver={_driver(image)},node-name={spec.name},"
            f"filename={path},read-only={switch(spec.read_only)}{blockdev}",
            "--export", f"type=vhost-user-blk,id={spec.name},node-name={spec.name},addr.type=unix,"
            f"addr.path={socket_of(spec)},writable={switch(not spec.read_only)}{export}",
        ]  # fmt: skip
    there = " && ".join(f"[ -S {socket_of(image.spec)} ]" for image in served)
    script = (
        # Of a shell that still waits, the first signal is an end in order.
        f"trap 'exit 1' USR1; {{ {shlex.join([DAEMON, *arguments])}; kill -USR1 $$; sleep 0.1; kill -9 $$; }} & n=0; "
        f"until {there}; do [ $((n += 1)) -lt {_LISTENS_S * 100} ] "
        f"|| exit 1; sleep 0.01; done; exec {shlex.join(command)}"
    )
    return ["sh", "-c", script]


def qemu_arguments(spec: DiskSpec) -> list[str]:
    """A disk on QEMU's command line; its guest's memory must be shared."""
    return [
        "-chardev", f"socket,id={spec.name},path={socket_of(spec)}",
        # The daemon serves one queue; QEMU would want one for each processor.
        "-device", f"vhost-user-blk-pci,id={spec.name},chardev={spec.name},num-queues=1",
    ]  # fmt: skip


def shared_memory(size: str) -> list[str]:
    """A guest's memory on QEMU's command line, where others than QEMU have to see it."""
    return [
        "-object", f"memory-backend-memfd,id=memory,size={size},share=on", "-machine", "memory-backend=memory",
    ]  # fmt: skip


def tell_cache(agent: "Agent", device: str, spec: DiskSpec) -> None:
    """Tells the guest that its disk has a cache to flush, which the daemon wrongly denies."""
    path = f"/sys/block/{device.removeprefix('/dev/')}/cache_type"
    agent.write_file(path, f"{spec.cache.write_cache}\n".encode())
