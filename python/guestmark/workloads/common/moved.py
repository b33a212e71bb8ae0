"""Parameters of workloads that move bytes: amount, content and method. The disks are given by factors."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, Self

import msgspec

from guestmark.core.params import Params, param
from guestmark.core.units import format_size, parse_size

_BLOCK = 4096
_MOST_IN_FLIGHT = 64


class Source(msgspec.Struct, frozen=True):
    """The origin of the bytes that are moved, described like a disk of `setting.disk`."""

    role: str = "source"
    size: str = ""
    content: str = ""


def _parse_whole_blocks(amount: str) -> str:
    size = parse_size(amount)
    if size < _BLOCK or size % _BLOCK:
        raise ValueError(f"{amount!r} is not a whole number of 4 KiB blocks")
    return format_size(size)


def _find_file(file: str | None) -> str | None:
    if file is None:
        return None
    path = os.path.abspath(os.path.expanduser(file))
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {file!r}")
    return path


def _check_depth(in_flight: int) -> int:
    if not 1 <= in_flight <= _MOST_IN_FLIGHT:
        raise ValueError(f"in_flight must be 1 to {_MOST_IN_FLIGHT}")
    return in_flight


class MovedBytes(Params, frozen=True, kw_only=True):
    """The amount and the content of the bytes that are moved, and the machine's disks."""

    amount: Annotated[
        str, param("amount of data to move", "size", parse=_parse_whole_blocks, default="1500M")
    ]
    content: Annotated[
        str,
        param("what the bytes are: all zeros, all ones or random", accepts=Literal["zero", "one", "random"]),
    ] = "random"
    # The machine's disks, in the form of `setting.disk`.
    disks: list[dict[str, Any]] = []
    source: Source | None = None

    @classmethod
    def make(cls, **given: Any) -> Self:
        """Creates the parameters from a plan's values, and derives the disks and the source."""
        made = cls(**given)
        return msgspec.structs.replace(made, disks=made.list_needed_disks(), source=made.describe_source())

    def list_needed_disks(self) -> list[dict[str, Any]]:
        """Returns the disks that the machine is given."""
        return [{"role": "target"}]

    def describe_source(self) -> Source | None:
        """Returns the source of the bytes; None if the machine generates them."""
        return None

    def to_stored(self) -> dict[str, Any]:
        """Returns the parameters in the order that ledgers have always had: disks and source last."""
        plain = super().to_stored()
        for name in ("disks", "source"):
            if name in plain:
                plain[name] = plain.pop(name)
        return plain

    @property
    def amount_bytes(self) -> int:
        """The number of bytes that are moved."""
        return parse_size(self.amount)

    @property
    def source_content(self) -> str:
        """The content of a source disk."""
        return self.content if self.source is None else self.source.content


def list_packed_files(source: Source | None) -> list[tuple[str, int]]:
    """Returns content and size of a source's file and of its compressed archive, as far as these are known before."""
    if source is None:
        return []
    size = parse_size(source.size)
    # Only equal bytes are certain to become fewer.
    packed = [] if source.content in {"zero", "one"} else [(f"archive of {source.content}", size)]
    return [(source.content, size), *packed]


class ReadBytes(MovedBytes, frozen=True, kw_only=True):
    """Bytes that exist before the measurement: a read-only disk is created with them."""

    def list_needed_disks(self) -> list[dict[str, Any]]:
        """Returns the target disk, with the content that it holds."""
        return [{"role": "target", "content": self.content, "holds": self.amount}]


class SourcedBytes(MovedBytes, frozen=True, kw_only=True):
    """Bytes that come from outside the guest, and so may be read from a file."""

    file: Annotated[
        str | None, param("file whose bytes are moved, in place of `content`", "path", parse=_find_file)
    ] = None

    def describe_source(self) -> Source | None:
        """Returns the source even if no disk holds it."""
        content = self.content if self.file is None else f"file:{self.file}"
        return Source(size=self.amount, content=content)


class UploadedBytes(SourcedBytes, frozen=True, kw_only=True):
    """An upload that is `full`, `channel` (discarded in the guest) or `disk` (generated in the guest)."""

    variant: Annotated[
        str,
        param(
            "the full upload, only its way through the channel, or only the writes to the disk",
            accepts=Literal["full", "channel", "disk"],
        ),
    ] = "full"

    def list_needed_disks(self) -> list[dict[str, Any]]:
        """Returns no disk for the channel alone."""
        return [] if self.variant == "channel" else super().list_needed_disks()


class CopiedBytes(SourcedBytes, frozen=True, kw_only=True):
    """Bytes that are copied from a second disk."""

    def list_needed_disks(self) -> list[dict[str, Any]]:
        """Returns the target and the source."""
        return [*super().list_needed_disks(), msgspec.to_builtins(self.describe_source())]


class DirectBytes(CopiedBytes, frozen=True, kw_only=True):
    """Bytes that are copied with `in_flight` requests at once."""

    # Plans of the first versions lack this parameter; their requests were made one at a time.
    in_flight: Annotated[int, param("requests in flight, 1 to 64", parse=_check_depth, default=4)] = 1
