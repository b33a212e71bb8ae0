"""Moves bytes from the host through the guest's channel into a file, or along half of that path, to split the cost.

An archive takes the same path and is unpacked in the guest by the real tar.
"""

from __future__ import annotations

import gzip
import io
import itertools
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

from guestmark.agent import clocks
from guestmark.agent.wire import Checksum, Pattern
from guestmark.core.cause import Cause, Speaker, classify_message
from guestmark.core.errors import WorkloadError
from guestmark.core.metric import Measurement
from guestmark.core.model import Cell, Plan
from guestmark.disks.image import Image
from guestmark.disks.packed import FILE
from guestmark.disks.page_cache import read_into_cache
from guestmark.disks.scratch import get_scratch_store
from guestmark.platforms.base import Machine
from guestmark.workloads.common import metrics
from guestmark.workloads.common.moved import SourcedBytes, UploadedBytes
from guestmark.workloads.common.moving import MovingTrial, TimedMove, sync_everything

_PIECE = 1 << 20


class UploadTrial(MovingTrial[UploadedBytes]):
    """The trial of `upload` in its three variants: `full`, `channel` (dropped in the guest), `disk` (generated)."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._variant = self.params.variant
        self._image: Image | None = None

    def prepare(self, machine: Machine) -> None:
        """Prepares a disk, unless only the channel is measured."""
        if self._variant == "channel":
            self.prepare_source(machine)
        else:
            super().prepare(machine)

    def prepare_source(self, machine: Machine) -> None:
        """Creates the bytes on the host, which caches them."""
        if self._variant != "disk":
            self._image = self.find_source()
            self._image.read_into_cache()

    def run(self, machine: Machine) -> list[Measurement]:
        """Sends or writes the bytes once."""
        if self._variant != "channel":
            return super().run(machine)
        assert self._image is not None
        sync_everything(machine.agent)
        timed = self._upload_through_channel(machine, self._image)
        self._note_clocks(timed)
        return metrics.to_measurements(
            [
                (metrics.THROUGHPUT, self.amount / timed.wall_s),
                (metrics.WALL, timed.wall_s),
                (metrics.GUEST_WALL, timed.guest_wall_s),
            ]
        )

    def move_bytes(self, machine: Machine, path: str) -> TimedMove:
        """Sends the bytes into the file, or has the guest generate them."""
        if self._variant == "disk":
            return TimedMove.from_reply(
                machine.agent.fill(path, self.amount, Pattern(self.params.content), timeout_s=self.limit_s)
            )
        assert self._image is not None
        return TimedMove.from_reply(
            machine.agent.write_stream(
                path, read_pieces(self._image.path, self.amount), timeout_s=self.limit_s
            )
        )

    def compute_expected_checksum(self, machine: Machine) -> Checksum:
        """Returns the checksum of the bytes that were sent or generated."""
        if self._variant == "disk":
            return (
                get_scratch_store()
                .start_agent()
                .compute_pattern_checksum(Pattern(self.params.content), self.amount)
            )
        assert self._image is not None
        return self._image.checksum()

    def _upload_through_channel(self, machine: Machine, image: Image) -> TimedMove:
        agent = machine.agent
        before = agent.ping()
        sent_ns = time.monotonic_ns()
        done = agent.send_to_sink(read_pieces(image.path, self.amount), timeout_s=self.limit_s)
        received_ns = time.monotonic_ns()
        after = agent.ping()
        if done.bytes != self.amount:
            raise WorkloadError(f"only {done.bytes} of {self.amount} bytes arrived in the guest")
        wall = clocks.convert_to_host_clock(
            (done.started_ns, done.ended_ns), (before, after), (sent_ns, received_ns)
        )
        return TimedMove(
            wall.seconds, wall.error_s, (done.ended_ns - done.started_ns) / 1e9, 0.0, wall.warning
        )


def read_pieces(path: Path, amount: int) -> Iterator[bytes]:
    """Yields the file's first `amount` bytes in pieces. Raises `WorkloadError` if the file has become shorter."""
    left = amount
    with path.open("rb", buffering=0) as stream:
        while left:
            piece = stream.read(min(_PIECE, left))
            if not piece:
                raise WorkloadError(f"{path} is {left} bytes shorter than the {amount} bytes to send")
            left -= len(piece)
            yield piece


_LEVEL = 1
_made: dict[tuple[Path, str], Path] = {}
_number = itertools.count()


def make_tar_gz(image: Image, name: str) -> Path:
    """Returns a compressed archive that holds the bytes of `image` as one file called `name`."""
    key = (image.path, name)
    made = _made.get(key)
    if made is not None and made.exists():
        return made
    # Only this process uses the directory.
    path = get_scratch_store().directory(image.spec.location) / f"archive-{next(_number)}.tar.gz"
    try:
        with (
            path.open("wb") as raw,
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


class TarTrial(MovingTrial[SourcedBytes]):
    """The trial of `tar`. Throughput counts the unpacked bytes."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._image: Image | None = None
        self._archive: Path | None = None

    def prepare_source(self, machine: Machine) -> None:
        """Creates the archive on the host, and runs the guest's programs once, so that they are cached."""
        self._image = self.find_source()
        self._image.checksum()
        self._archive = make_tar_gz(self._image, FILE)
        read_into_cache(self._archive)
        self.moving.archive_bytes = self._archive.stat().st_size
        for program in ("tar", "gzip"):
            done = machine.agent.exec([program, "--version"], timeout_s=60)
            if not done.ok:
                raise WorkloadError(
                    f"{program} does not run in the guest: {done.stderr.decode(errors='replace')}"
                )

    def move_bytes(self, machine: Machine, path: str) -> TimedMove:
        """Sends and unpacks the archive beside `path`, then flushes."""
        assert self._archive is not None
        directory = path.rpartition("/")[0]
        done = machine.agent.exec(
            ["tar", "-xzf", "-", "--no-same-owner", "-C", directory],
            stdin=read_pieces(self._archive, self._archive.stat().st_size),
            timeout_s=self.limit_s,
        )
        if not done.ok:
            said = " ".join(done.stderr.decode(errors="replace").split())
            ending = "exceeded its time limit" if done.timed_out else f"failed: {said[-300:]}"
            hint = ""
            if classify_message(Speaker.TAR, said).cause is Cause.NO_ROOM:
                hint = "the guest's disk is full: use a larger one (--set size=4G)"
            raise WorkloadError(f"tar in the guest {ending}", hint=hint)
        begin = time.monotonic()
        flushed = machine.agent.flush(path, timeout_s=self.limit_s)
        flush_s = time.monotonic() - begin
        guest_flush_s = (flushed.fsync_ns + flushed.syncfs_ns) / 1e9
        return TimedMove(
            done.wall_s + flush_s,
            done.wall_error_s,
            done.guest_wall_s + guest_flush_s,
            guest_flush_s,
            done.clock_warning,
        )

    def compute_expected_checksum(self, machine: Machine) -> Checksum:
        """Returns the checksum of the bytes that were packed."""
        assert self._image is not None
        return self._image.checksum()
