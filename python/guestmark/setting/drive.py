"""How a hypervisor attaches a disk and moves its data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum

from guestmark.core.factor import Machine, one_of
from guestmark.setting.base import Check, DiskSetting, Drive, Served, switch


class CacheMode(StrEnum):
    """QEMU's cache modes, and what each stands for (qemu-system's manual, -drive cache=)."""

    NONE = "none"
    WRITEBACK = "writeback"
    WRITETHROUGH = "writethrough"
    DIRECTSYNC = "directsync"
    UNSAFE = "unsafe"

    @property
    def direct(self) -> bool:
        """Whether the image is opened past the host's page cache."""
        return self in {CacheMode.NONE, CacheMode.DIRECTSYNC}

    @property
    def writethrough(self) -> bool:
        """Whether every write is flushed, so that the guest sees a disk without a cache."""
        return self in {CacheMode.WRITETHROUGH, CacheMode.DIRECTSYNC}

    @property
    def no_flush(self) -> bool:
        """Whether flushes are dropped."""
        return self is CacheMode.UNSAFE

    @property
    def write_cache(self) -> str:
        """What the guest's kernel knows of such a disk's cache (`queue/write_cache` in sysfs)."""
        return "write through" if self.writethrough else "write back"


def _seen_by_qemu(mode: CacheMode, drive: Drive) -> Iterator[Check]:
    asked = {"writeback": not mode.writethrough, "direct": mode.direct, "no-flush": mode.no_flush}
    yield Check(f"cache ({mode})", asked, drive.inserted["cache"])


def _seen_of_daemon(mode: CacheMode, disk: Served) -> Iterator[Check]:
    yield Check("cache in the guest", mode.write_cache, disk.write_cache)
    words = {True: "direct", False: "through the page cache"}
    yield Check("image", words[mode.direct], words[bool(disk.flags & os.O_DIRECT)])


CACHE = DiskSetting(
    "cache",
    "QEMU's cache mode",
    one_of(*CacheMode),
    tuple(CacheMode),
    read=CacheMode,
    machines=Machine.QEMU,
    default=CacheMode.WRITEBACK,
    drive=lambda mode: (f"cache={mode}",),
    blockdev=lambda mode: (f"cache.direct={switch(mode.direct)}", f"cache.no-flush={switch(mode.no_flush)}"),
    export=lambda mode: (f"writethrough={switch(mode.writethrough)}",),
    attest=_seen_by_qemu,
    attest_served=_seen_of_daemon,
)
