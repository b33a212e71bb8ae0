"""The trial of `guestfish`, a peer: it moves the same bytes into the same kind of image, in its own guest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from guestmark.agent.wire import Checksum
from guestmark.core.errors import UsageError
from guestmark.core.metric import Measurement
from guestmark.core.model import Cell, Plan
from guestmark.disks import daemon
from guestmark.disks.image import Image, digest_past_guest, make_images
from guestmark.disks.packed import FILE
from guestmark.disks.page_cache import read_into_cache
from guestmark.platforms import libguestfs
from guestmark.platforms.base import Machine
from guestmark.platforms.qemu.accelerators import ACCELERATORS
from guestmark.setting.disk import Disks, DiskSpec, Role
from guestmark.setting.image import Format
from guestmark.workloads.common import metrics
from guestmark.workloads.common.moving import READABLE, check_checksum
from guestmark.workloads.disk.upload import make_tar_gz
from guestmark.workloads.guestfs import GuestfishWorkload, guestfish
from guestmark.workloads.guestfs.guestfish import Guestfs, Mark


class GuestfishTrial(GuestfishWorkload):
    """Runs guestfish's upload, copy of a second disk, tgz-in or fill.

    Times include the flush in its guest and on the host.
    """

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._accelerator = choose_accelerator(cell)
        self._amount = self.params.amount_bytes
        self._target = cell.view(Disks).target
        self._stack = contextlib.ExitStack()
        self._source: Image | None = None
        self._content: Path | None = None

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Checks that guestfish's files can be read back, and that libguestfs can be launched here."""
        for cell in cells:
            for spec in cell.view(Disks):
                if spec.role is Role.TARGET and spec.filesystem not in READABLE:
                    raise UsageError(
                        f"{cell.id}: files that guestfish writes to {spec.filesystem} cannot be checked on the host",
                        hint=f"use {', '.join(READABLE)}, or exclude the cell",
                    )
        for accelerator in {choose_accelerator(cell) for cell in cells}:
            libguestfs.prepare(accelerator)
        return ()

    def prepare(self, machine: Machine) -> None:
        """Creates the content to send; each iteration creates a fresh image."""
        self._source = self._stack.enter_context(make_images([self._build_source_spec()]))[0]
        self._source.checksum()
        method = self.params.method
        if method == "tgz-in":
            self._content = make_tar_gz(self._source, FILE)
        elif method != "fill":
            self._content = self._source.path
        if self._content is not None:
            read_into_cache(self._content)
        libguestfs.prepare(self._accelerator)

    def run(self, machine: Machine) -> list[Measurement]:
        """Runs guestfish once: launch, mount and sync, then the timed part with its flush."""
        with make_images([self._target]) as (made,):
            # What guestfish writes must not be overwritten with zeroes by a thread that still allocates the image.
            image = made.finish_allocation()
            os.sync()
            timeline = guestfish.run(
                self._accelerator, self._make_script(image), self.limit_s, writable=[image.path]
            )
            host_flush_s = image.flush()
            self.facts.add(Guestfs(qemu=list(timeline.qemu), confined=timeline.confined))
            check_checksum(self._read_back(image), self._compute_source_checksum(), "by debugfs on the host")
            image.check_filesystem()
        launch_s = timeline.marks["launched"] - timeline.started_at
        wall_s = timeline.get_seconds_between("begin", "flushed") + host_flush_s
        with_launch_s = launch_s + wall_s
        return metrics.to_measurements(
            [
                (metrics.THROUGHPUT, self._amount / wall_s),
                (metrics.WALL, wall_s),
                (metrics.GUEST_FLUSH, timeline.get_seconds_between("moved", "flushed")),
                (metrics.HOST_FLUSH, host_flush_s),
                (metrics.LAUNCH, launch_s),
                (metrics.THROUGHPUT_WITH_LAUNCH, self._amount / with_launch_s),
                (metrics.WALL_WITH_LAUNCH, with_launch_s),
            ]
        )

    def cleanup(self, machine: Machine) -> None:
        """Deletes the bytes that were sent."""
        self._stack.close()

    def _build_source_spec(self) -> DiskSpec:
        return DiskSpec.from_levels(
            Role.SOURCE, self._amount, content=self.params.source_content, location=self._target.location
        )

    def _make_script(self, image: Image) -> list[str | Mark]:
        spec = image.spec
        method = self.params.method
        script: list[str | Mark] = [*guestfish.build_size_commands(self.cell.levels)]
        script.append(f"add-drive {image.path} format:{spec.format}")
        if method == "copy":
            script.append(f"add-drive {self._content} readonly:true format:raw")
        mount = f"mount-options {spec.mount_options} /dev/sda /" if spec.mount_options else "mount /dev/sda /"
        return [
            *script, "run", Mark("launched"), mount, "sync",
            Mark("begin"), self._build_method_command(method), Mark("moved"), "sync", Mark("flushed"),
            "umount-all", "shutdown",
        ]  # fmt: skip

    def _build_method_command(self, method: str) -> str:
        match method:
            case "upload":
                return f"upload {libguestfs.quote_word(str(self._content))} /{FILE}"
            case "copy":
                return f"copy-device-to-file /dev/sdb /{FILE} size:{self._amount}"
            case "tgz-in":
                return f"tgz-in {libguestfs.quote_word(str(self._content))} /"
            case _:
                value = {"zero": 0, "one": 1}[self.params.content]
                return f"fill {value} {self._amount} /{FILE}"

    def _compute_source_checksum(self) -> Checksum:
        assert self._source is not None
        return self._source.checksum()

    def _read_back(self, image: Image) -> Checksum:
        if image.spec.format is Format.RAW:
            return digest_past_guest(image.path, FILE)
        raw = image.path.with_suffix(".check")
        try:
            daemon.run_program(
                "qemu-img", "convert", "-f", image.spec.format, "-O", "raw", str(image.path), str(raw),
                writable=[raw.parent],
            )  # fmt: skip
            return digest_past_guest(raw, FILE)
        finally:
            raw.unlink(missing_ok=True)


def choose_accelerator(cell: Cell) -> str:
    """Returns the accelerator that guestfish's QEMU must use.

    Raises `UsageError` on platforms where libguestfs is not measured.
    """
    kind = cell.platform.inner.kind
    if cell.platform.is_nested or kind not in ACCELERATORS:
        raise UsageError(
            f"{cell.id}: guestfish runs on tcg and kvm only",
            hint='give the workload platforms = ["tcg", "kvm"]',
        )
    return kind
