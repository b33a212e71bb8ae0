"""Bytes moved into a guest's disk in every way there is, and read back."""

from __future__ import annotations

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
)

M = TypeVar("M", bound=MovedBytes)


class _DiskWorkload(Workload[M]):
    """The common part of these workloads."""

    measures: ClassVar[tuple[Metric, ...]] = WRITING
    factors: ClassVar[tuple[Factor, ...]] = (BLOCK_SIZE,)
    shares_machine = True
    agent_is_enough = True
    flushes_writes = True
    verb: ClassVar[str]  # what its label says before the amount

    @classmethod
    def describe_params(cls, params: M) -> str:
        """Says how much is moved in which way."""
        return f"{cls.verb} {params.amount}"

    @classmethod
    def moved_bytes(cls, params: M) -> int | None:
        """Returns the bytes that need room on the target."""
        return params.amount_bytes


class UploadWorkload(_DiskWorkload[UploadedBytes]):
    """A whole upload, or one half of it."""

    name = "upload"
    help = "sends bytes from the host through the guest's channel into a file"
    topic = Topic.TRANSFER
    factors = ()

    @classmethod
    def list_metrics(cls, params: UploadedBytes) -> tuple[Metric, ...]:
        """Returns nothing of a disk for the channel alone."""
        return CHANNEL if params.variant == "channel" else WRITING

    @classmethod
    def describe_params(cls, params: UploadedBytes) -> str:
        """Says which part of an upload it is."""
        return {
            "full": f"upload of {params.amount}",
            "channel": f"{params.amount} through the channel only",
            "disk": f"{params.amount} written in the guest only",
        }[params.variant]

    @classmethod
    def trial_class(cls) -> type[Workload[UploadedBytes]]:
        """Returns the class of its trials, whose imports cost time."""
        from guestmark.workloads.disk.upload import UploadTrial

        return UploadTrial


class DdWorkload(_DiskWorkload[CopiedBytes]):
    """A copy through the guest's page cache."""

    name = "dd"
    help = "copies a second disk into a file, one block at a time"
    verb = "dd of"

    @classmethod
    def trial_class(cls) -> type[Workload[CopiedBytes]]:
        """Returns the class of its trials, whose imports cost time."""
        from guestmark.workloads.disk.copying import DdTrial

        return DdTrial


class DirectWorkload(_DiskWorkload[DirectBytes]):
    """A copy past the guest's page cache."""

    name = "direct"
    help = "copies a second disk into a file with O_DIRECT"
    verb = "direct copy of"

    @classmethod
    def trial_class(cls) -> type[Workload[DirectBytes]]:
        """Returns the class of its trials, whose imports cost time."""
        from guestmark.workloads.disk.copying import DirectTrial

        return DirectTrial


class ShareWorkload(_DiskWorkload[SourcedBytes]):
    """A copy from 9p, virtiofs or hostfs."""

    name = "share"
    help = "copies a file from the shared host filesystem"
    verb = "copy from the share of"
    agent_is_enough = False

    @classmethod
    def trial_class(cls) -> type[Workload[SourcedBytes]]:
        """Returns the class of its trials, whose imports cost time."""
        from guestmark.workloads.disk.copying import ShareTrial

        return ShareTrial


class TarWorkload(_DiskWorkload[SourcedBytes]):
    """Packs files into an archive that goes through the channel."""

    name = "tar"
    help = "sends a compressed archive and unpacks it in the guest"
    verb = "tar.gz of"
    factors = ()
    agent_is_enough = False

    @classmethod
    def trial_class(cls) -> type[Workload[SourcedBytes]]:
        """Returns the class of its trials, whose imports cost time."""
        from guestmark.workloads.disk.upload import TarTrial

        return TarTrial


class FillWorkload(_DiskWorkload[MovedBytes]):
    """A pattern that the guest makes itself."""

    name = "fill"
    help = "writes a pattern in the guest"
    verb = "fill of"

    @classmethod
    def trial_class(cls) -> type[Workload[MovedBytes]]:
        """Returns the class of its trials, whose imports cost time."""
        from guestmark.workloads.disk.copying import FillTrial

        return FillTrial


class FilewriteWorkload(_DiskWorkload[MovedBytes]):
    """A file, block by block."""

    name = "filewrite"
    help = "writes a file in the guest, one block after the other"
    verb = "write of"

    @classmethod
    def trial_class(cls) -> type[Workload[MovedBytes]]:
        """Returns the class of its trials, whose imports cost time."""
        from guestmark.workloads.disk.copying import FilewriteTrial

        return FilewriteTrial


class FilereadWorkload(_DiskWorkload[ReadBytes]):
    """A file that is on the disk beforehand."""

    name = "fileread"
    help = "reads a file back in the guest after unmounting and mounting again"
    measures = READING
    verb = "read of"

    @classmethod
    def trial_class(cls) -> type[Workload[ReadBytes]]:
        """Returns the class of its trials, whose imports cost time."""
        from guestmark.workloads.disk.copying import FilereadTrial

        return FilereadTrial
