"""A compressed archive sent through the guest's channel and unpacked there by the real tar."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.core.cause import Cause, Speaker, heard
from guestmark.core.errors import WorkloadError
from guestmark.core.model import Cell, Plan
from guestmark.disks.packed import FILE
from guestmark.disks.store import store
from guestmark.workloads.common.moving import MovingWorkload, Timed
from guestmark.workloads.disk.upload import pieces

if TYPE_CHECKING:
    from guestmark.agent.wire import Checksum
    from guestmark.disks.image import Image
    from guestmark.platforms.base import Machine

_LEVEL = 1
_made: dict[tuple[Path, str], Path] = {}


def tar_gz(image: Image, name: str) -> Path:
    """A compressed archive that holds the bytes of `image` as one file called `name`."""
    key = (image.path, name)
    made = _made.get(key)
    if made is not None and made.exists():
        return made
    handle, text = tempfile.mkstemp(
        prefix="archive-", suffix=".tar.gz", dir=store().directory(image.spec.location)
    )
    path = Path(text)
    try:
        with (
            os.fdopen(handle, "wb") as raw,
            gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=_LEVEL, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT, bufsize=1 << 20) as archive,
            image.path.open("rb") as content,
        ):
            member = tarfile.TarInfo(name)
            member.size = image.spec.size
            archive.addfile(member, io.BufferedReader(content.raw, 1 << 20))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    _made[key] = path
    return path


class TarWorkload(MovingWorkload):
    """`tar`. Throughput is of the unpacked bytes."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._image: Image | None = None
        self._archive: Path | None = None

    def get_ready(self, machine: Machine) -> None:
        """Makes the archive on the host, and has the guest load its programs."""
        self._image = self.source()
        self._image.checksum()
        self._archive = tar_gz(self._image, FILE)
        self.moving.archive_bytes = self._archive.stat().st_size
        for program in ("tar", "gzip"):
            done = machine.agent.exec([program, "--version"], timeout_s=60)
            if not done.ok:
                raise WorkloadError(
                    f"{program} does not run in the guest: {done.stderr.decode(errors='replace')}"
                )

    def move(self, machine: Machine, path: str) -> Timed:
        """Sends and unpacks the archive beside `path`, then flushes."""
        assert self._archive is not None
        directory = path.rpartition("/")[0]
        done = machine.agent.exec(
            ["tar", "-xzf", "-", "--no-same-owner", "-C", directory],
            stdin=pieces(self._archive, self._archive.stat().st_size),
            timeout_s=self.limit_s,
        )
        if not done.ok:
            said = " ".join(done.stderr.decode(errors="replace").split())
            ending = "ran past its limit" if done.timed_out else f"failed: {said[-300:]}"
            hint = (
                "the guest's disk is full: take a larger one"
                if heard(Speaker.TAR, said).cause is Cause.NO_ROOM
                else ""
            )
            raise WorkloadError(f"tar in the guest {ending}", hint=hint)
        begin = time.monotonic()
        flushed = machine.agent.flush(path, timeout_s=self.limit_s)
        flush_s = time.monotonic() - begin
        guest_flush_s = (flushed.fsync_ns + flushed.syncfs_ns) / 1e9
        return Timed(
            done.wall_s + flush_s,
            done.wall_error_s,
            done.guest_wall_s + guest_flush_s,
            guest_flush_s,
            done.clock_warning,
        )

    def expected(self, machine: Machine) -> Checksum:
        """What was packed."""
        assert self._image is not None
        return self._image.checksum()
