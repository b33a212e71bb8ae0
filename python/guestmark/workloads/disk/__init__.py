"""Workloads that move bytes into a guest's disk, each in another way, and read them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from guestmark.core.factor import Factor
from guestmark.core.metric import Metric
from guestmark.core.workload_kind import Topic
from guestmark.workloads.base import Workload
from guestmark.workloads.common.factors import BLOCK_SIZE
from guestmark.workloads.common.metrics import CHANNEL, READING, WRITING
from guestmark.workloads.common.moved import (
    CopiedBytes,
    DirectBytes,
    MovedBytes,
    ReadBytes,
    SourcedBytes,
    UploadedBytes,
    list_packed_files,
)

M = TypeVar("M", bound=MovedBytes)


class _DiskWorkload(Workload[M]):
    """The common description of the workloads that move bytes to or from a disk."""

    measures: ClassVar[tuple[Metric, ...]] = WRITING
    factors: ClassVar[tuple[Factor, ...]] = (BLOCK_SIZE,)
    shares_machine = True
    agent_is_enough = True
    flushes_writes = True
    verb: ClassVar[str]  # precedes the amount in labels

    @classmethod
    def describe_params(cls, params: M) -> str:
        """Names the method and the amount."""
        return f"{cls.verb} {params.amount}"

    @classmethod
    def moved_bytes(cls, params: M) -> int | None:
        """Returns the number of bytes that need room on the target."""
        return params.amount_bytes


def _list_source_file(params: SourcedBytes) -> list[tuple[str, int]]:
    """Returns the one file that bytes from outside a guest come from."""
    return [(params.source_content, params.amount_bytes)]


class UploadWorkload(_DiskWorkload[UploadedBytes]):
    """A complete upload, or one half of it."""

    name = "upload"
    help = "sends bytes from the host through the guest's channel into a file"
    topic = Topic.TRANSFER
    factors = ()

    @classmethod
    def list_metrics(cls, params: UploadedBytes) -> tuple[Metric, ...]:
        """Returns the metrics; an upload through the channel alone has no disk metrics."""
        return CHANNEL if params.variant == "channel" else WRITING

    @classmethod
    def list_host_files(cls, params: UploadedBytes) -> Sequence[tuple[str, int]]:
        """Returns the file that is sent, unless the guest generates the bytes."""
        return [] if params.variant == "disk" else _list_source_file(params)

    @classmethod
    def describe_params(cls, params: UploadedBytes) -> str:
        """Names the measured part of the upload."""
        return {
            "full": f"upload of {params.amount}",
            "channel": f"{params.amount} through the channel only",
            "disk": f"{params.amount} written in the guest only",
        }[params.variant]

    @classmethod
    def trial_class(cls) -> type[Workload[UploadedBytes]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.disk.upload import UploadTrial

        return UploadTrial


class DdWorkload(_DiskWorkload[CopiedBytes]):
    """Copies through the guest's page cache."""

    name = "dd"
    help = "copies a second disk into a file, one block at a time"
    verb = "dd of"

    @classmethod
    def trial_class(cls) -> type[Workload[CopiedBytes]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.disk.copying import DdTrial

        return DdTrial


class DirectWorkload(_DiskWorkload[DirectBytes]):
    """Copies with O_DIRECT, bypassing the guest's page cache."""

    name = "direct"
    help = "copies a second disk into a file with O_DIRECT"
    verb = "direct copy of"

    @classmethod
    def trial_class(cls) -> type[Workload[DirectBytes]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.disk.copying import DirectTrial

        return DirectTrial


class ShareWorkload(_DiskWorkload[SourcedBytes]):
    """Copies from 9p, virtiofs or hostfs."""

    name = "share"
    help = "copies a file from the shared host filesystem"
    verb = "share copy of"
    agent_is_enough = False

    @classmethod
    def list_host_files(cls, params: SourcedBytes) -> Sequence[tuple[str, int]]:
        """Returns the file that is copied."""
        return _list_source_file(params)

    @classmethod
    def trial_class(cls) -> type[Workload[SourcedBytes]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.disk.copying import ShareTrial

        return ShareTrial


class TarWorkload(_DiskWorkload[SourcedBytes]):
    """Sends an archive through the channel and unpacks it in the guest."""

    name = "tar"
    help = "sends a compressed archive and unpacks it in the guest"
    verb = "tar.gz of"
    factors = ()
    agent_is_enough = False

    @classmethod
    def list_host_files(cls, params: SourcedBytes) -> Sequence[tuple[str, int]]:
        """Returns the file and its archive."""
        return list_packed_files(params.source)

    @classmethod
    def trial_class(cls) -> type[Workload[SourcedBytes]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.disk.upload import TarTrial

        return TarTrial


class FillWorkload(_DiskWorkload[MovedBytes]):
    """Writes a pattern that the guest generates itself."""

    name = "fill"
    help = "writes a pattern in the guest"
    verb = "fill of"

    @classmethod
    def trial_class(cls) -> type[Workload[MovedBytes]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.disk.copying import FillTrial

        return FillTrial


class FilewriteWorkload(_DiskWorkload[MovedBytes]):
    """Writes a file block by block."""

    name = "filewrite"
    help = "writes a file in the guest, one block after the other"
    verb = "write of"

    @classmethod
    def trial_class(cls) -> type[Workload[MovedBytes]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.disk.copying import FilewriteTrial

        return FilewriteTrial


class FilereadWorkload(_DiskWorkload[ReadBytes]):
    """Reads a file that already exists on the disk."""

    name = "fileread"
    help = "reads a file back in the guest after unmounting and mounting again"
    measures = READING
    verb = "read of"

    @classmethod
    def trial_class(cls) -> type[Workload[ReadBytes]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.disk.copying import FilereadTrial

        return FilereadTrial
