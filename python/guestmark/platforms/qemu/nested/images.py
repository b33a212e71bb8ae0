"""Disk images of an inner guest, kept in the shared memory of the outer guest.

Formatted images are created on this host, as for any guest, and unpacked in the outer guest. Operations on images
(flush, check, read back) are done in the outer guest by the same programs as on this host.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from guestmark.agent.client import Agent
from guestmark.agent.results import CallError
from guestmark.agent.wire import Checksum, Pattern
from guestmark.core.errors import MachineError, UsageError, WorkloadError
from guestmark.core.model import Cell
from guestmark.core.temporary import replace_file
from guestmark.disks.daemon import find_program
from guestmark.disks.image import Image
from guestmark.disks.template import find_template
from guestmark.setting.disk import Disks, DiskSpec, Role
from guestmark.setting.image import Format
from guestmark.setting.location import SHARED_MEMORY

_PROGRAM_S = 600.0
# The outer guest's only disk.
_ONLY_DISK = Path("/dev/vda")


class ImageHolder(Protocol):
    """The part of an outer guest that images use: its agent, and the files that are already in its memory."""

    # By content and size.
    sources: dict[tuple[str, int], Path]
    templates: dict[str, Path]
    # Images of this host that are disks of the outer guest.
    attached: Mapping[Role, Image]

    def hold_agent(self) -> AbstractContextManager[Agent]:
        """Yields the outer guest's agent, for calls by one thread at a time."""


@contextlib.contextmanager
def make_images(place: ImageHolder, cell: Cell) -> Iterator[tuple[Image, ...]]:
    """Creates fresh images of the cell's disks in an outer guest; leaving the context removes them."""
    specs = cell.view(Disks)
    if not specs:
        yield ()
        return
    if place.attached:
        yield tuple(_find_attached(place, spec) for spec in specs)
        return
    directory = f"{SHARED_MEMORY}/guestmark-{os.urandom(4).hex()}"
    with place.hold_agent() as agent:
        agent.mkdir(directory)
    made = []
    try:
        for spec in specs:
            if spec.role is Role.SOURCE:
                made.append(_make_source(place, spec))
            else:
                made.append(_make_target(place, spec, directory))
        yield tuple(made)
    finally:
        # The outer guest may have ended, and all images with it.
        with contextlib.suppress(Exception), place.hold_agent() as agent:
            agent.remove(directory, recursive=True)


def count_image_bytes(cell: Cell) -> int:
    """Returns the bytes of memory that the cell's images take in the outer guest when they are full."""
    return sum(spec.size for spec in cell.view(Disks))


def check_disks(cell: Cell) -> None:
    """Raises `UsageError` for disks that an inner guest cannot have, `PlatformUnusableError` for missing programs."""
    for spec in cell.view(Disks):
        find_program("qemu-img")
        if spec.filesystem.maker:
            find_program(spec.filesystem.maker)
        if spec.is_packed:
            raise UsageError(
                f"{cell.id}: a {spec.filesystem} image is made on this host, which a nested guest cannot be given",
                hint="use another filesystem for nested platforms, or exclude the combination",
            )
        if spec.logged and spec.format is not Format.RAW:
            raise UsageError(
                f"{cell.id}: the outer guest attaches a logged image as a raw device",
                hint="use format=raw for nested platforms",
            )
        if spec.cache.direct and not spec.logged:
            raise UsageError(
                f"{cell.id}: cache={spec.cache} needs O_DIRECT, but images of inner guests are in the outer "
                "guest's memory, which does not support it",
                hint="use cache=writeback, or measure nested platforms in a separate run",
            )


@dataclass(frozen=True, slots=True)
class InnerImage(Image):
    """An image in the outer guest `place`; `path` is its path there."""

    place: ImageHolder | None = None

    def flush(self) -> float:
        """Flushes the image in the outer guest; returns the seconds, which mean little, as the image is in memory."""
        with self._hold_place() as place, place.hold_agent() as agent:
            done = agent.flush(str(self.path))
        return (done.fsync_ns + done.syncfs_ns) / 1e9

    def evict_from_cache(self) -> None:
        """Does nothing: the image is in memory."""

    def read_into_cache(self) -> None:
        """Does nothing: the image is in memory."""

    def count_allocated_bytes(self) -> int:
        """Returns the bytes allocated for the image, as `stat` reports them in the outer guest."""
        with self._hold_place() as place:
            return int(_run_in_outer_guest(place, "stat", "-c", "%b", str(self.path))) * 512

    def checksum(self) -> Checksum:
        """Returns the image's checksum, computed by the outer guest's agent."""
        with self._hold_place() as place, place.hold_agent() as agent:
            return agent.checksum(str(self.path), timeout_s=_PROGRAM_S)

    def digest_past_guest(self, name: str) -> Checksum:
        """Returns the checksum of a file that `debugfs` writes into a pipe in the outer guest, whose agent reads it."""
        with self._hold_place() as place, place.hold_agent() as agent:
            fifo = f"{self.path}.{name}"
            _run_in_outer_guest(place, "mkfifo", fifo)
            words = " ".join(map(shlex.quote, (find_program("debugfs"), "-R", f"cat {name}", str(self.path))))
            reading = agent.background(["sh", "-c", f"exec {words} > {shlex.quote(fifo)}"])
            found = agent.checksum(fifo, timeout_s=_PROGRAM_S)
            reading.wait(10.0)
            agent.remove(fifo)
        for line in reading.read_text().splitlines():
            if line and not line.startswith("debugfs "):
                raise WorkloadError(f"the data cannot be read back: debugfs: {line}")
        return found

    def run_on_image(self, program: str, *arguments: str, writable: Sequence[Path] = ()) -> None:
        """Runs a program in the outer guest; it may write to all files there."""
        with self._hold_place() as place:
            _run_in_outer_guest(place, find_program(program), *arguments)

    @contextlib.contextmanager
    def _hold_place(self) -> Iterator[ImageHolder]:
        assert self.place is not None
        try:
            yield self.place
        except CallError as error:
            raise MachineError(f"inside the outer guest: {error.message}", cause=error.cause) from error


def _find_attached(place: ImageHolder, spec: DiskSpec) -> Image:
    """Returns an image of this host as the inner hypervisor sees it, which is as the outer guest's only disk."""
    image = place.attached[spec.role]
    return InnerImage(
        spec, _ONLY_DISK, image.prepared_s, image.from_template, None, image.logged, place=place
    )


def _make_target(place: ImageHolder, spec: DiskSpec, directory: str) -> Image:
    begin = time.monotonic()
    original, was_there = find_template(spec)
    path = Path(directory, f"{spec.name}.{spec.format}")
    _run_in_outer_guest(place, "tar", "-xSf", str(_pack_template(original)), "-C", directory)
    _run_in_outer_guest(place, "mv", f"{directory}/{original.name}", str(path))
    if not spec.preallocation.is_sparse:
        # In memory, writing zeroes to a file's blocks does no more than allocating them.
        _run_in_outer_guest(
            place, "fallocate", "-l", _run_in_outer_guest(place, "stat", "-c", "%s", str(path)), str(path)
        )
    made = InnerImage(spec, path, time.monotonic() - begin, was_there, place=place)
    if not spec.preallocation.is_sparse:
        made.check_allocation(spec.size)
    return made


def _pack_template(original: Path) -> Path:
    """Returns a sparse archive of the template: reading its holes through the shared root would take seconds."""
    packed = original.with_name(f"{original.name}.tar")
    if not packed.exists() or packed.stat().st_mtime_ns < original.stat().st_mtime_ns:
        try:
            with replace_file(packed) as part:
                subprocess.run(
                    ["tar", "-cSf", str(part), "-C", str(original.parent), original.name],
                    check=True, capture_output=True, timeout=_PROGRAM_S,
                )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise MachineError(f"{original.name} cannot be packed for an outer guest: {error}") from error
    return packed


def _make_source(place: ImageHolder, spec: DiskSpec) -> Image:
    """Returns a source disk. Sources are read-only, so all inner guests of an outer guest share one file."""
    key = (spec.content, spec.size)
    begin = time.monotonic()
    was_there = key in place.sources
    if not was_there:
        path = Path(SHARED_MEMORY, f"guestmark-source-{len(place.sources)}.raw")
        kind, _, name = spec.content.partition(":")
        with place.hold_agent() as agent:
            try:
                if kind == "file":
                    agent.copy(
                        name,
                        str(path),
                        length=spec.size,
                        preallocate=False,
                        flush=False,
                        timeout_s=_PROGRAM_S,
                    )
                else:
                    agent.fill(str(path), spec.size, Pattern(kind), flush=False, timeout_s=_PROGRAM_S)
            except CallError as error:
                raise MachineError(
                    f"the source disk cannot be created: {error.message}", cause=error.cause
                ) from error
        place.sources[key] = path
    return InnerImage(spec, place.sources[key], time.monotonic() - begin, was_there, place=place)


def _run_in_outer_guest(place: ImageHolder, *command: str) -> str:
    """Runs a program in the outer guest and returns its output. Raises `MachineError` with the program's messages."""
    with place.hold_agent() as agent:
        done = agent.exec(command, timeout_s=_PROGRAM_S)
    if done.status != 0:
        lines = (done.stderr + b"\n" + done.stdout).decode(errors="replace").split("\n")
        what = "; ".join(line.strip() for line in lines if line.strip())[:300]
        raise MachineError(f"inside the outer guest: {command[0]} failed: {what or done.status}")
    return done.stdout.decode(errors="replace").strip()
