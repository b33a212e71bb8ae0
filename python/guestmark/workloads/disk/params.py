"""The disk workloads in plans: how much is moved, of what, and how; the disks it moves to are factors."""

from typing import Any, Literal

from pydantic import field_validator

from guestmark.core.units import format_size, parse_size
from guestmark.plan.schema import Strict, param

Content = Literal["zero", "one", "random"]


class Moved(Strict):
    """What all disk workloads have: `amount` of `content` (`file`: the first bytes of a file of yours instead)."""

    amount: str = param("1500M", "how much is moved", "size")
    content: Content = param("random", "what the bytes are")

    @field_validator("amount")
    @classmethod
    def _is_a_size(cls, amount: str) -> str:
        size = parse_size(amount)
        if size < 4096 or size % 4096:
            raise ValueError(f"{amount!r} is not a whole number of 4 KiB blocks")
        return format_size(size)

    def disks(self) -> list[dict[str, str]]:
        """The disks the machine is given."""
        return [{"role": "target"}]

    def to_params(self) -> dict[str, Any]:
        """As the workload gets them."""
        return {**self.model_dump(mode="json", exclude_none=True), "disks": self.disks()}


class Read(Moved):
    """Bytes that are there before: where a disk cannot be written, it is made with them."""

    def disks(self) -> list[dict[str, str]]:
        """The target, and what it holds."""
        return [{**disk, "content": self.content, "holds": self.amount} for disk in super().disks()]


class Sourced(Moved):
    """Bytes that come from outside of the guest, so they can be those of a file."""

    file: str | None = param(None, "take the bytes of this file", "path")

    @field_validator("file")
    @classmethod
    def _is_a_file(cls, file: str | None) -> str | None:
        if file is None:
            return None
        import os

        path = os.path.abspath(os.path.expanduser(file))
        if not os.path.isfile(path):
            raise ValueError(f"there is no file {file!r}")
        return path

    def source(self) -> dict[str, str]:
        """The source disk (or file) with the content."""
        content = self.content if self.file is None else f"file:{self.file}"
        return {"role": "source", "size": self.amount, "content": content}

    def to_params(self) -> dict[str, Any]:
        """As the workload gets them; `source` describes the bytes also where no disk holds them."""
        return {**super().to_params(), "source": self.source()}


class Upload(Sourced):
    """`variant`: `full`, `channel` (discarded in the guest) or `disk` (made in the guest, nothing sent)."""

    variant: Literal["full", "channel", "disk"] = param("full", "the whole upload, or one half of it")

    def disks(self) -> list[dict[str, str]]:
        """The channel alone needs none."""
        return [] if self.variant == "channel" else super().disks()


class FromDisk(Sourced):
    """Bytes that come from a second disk."""

    def disks(self) -> list[dict[str, str]]:
        """The target and the source."""
        return [*super().disks(), self.source()]


class Direct(FromDisk):
    """`in_flight`: how many requests are in flight at once."""

    in_flight: int = param(4, "requests at once, 1 to 64")

    @field_validator("in_flight")
    @classmethod
    def _is_a_depth(cls, in_flight: int) -> int:
        if not 1 <= in_flight <= 64:
            raise ValueError("in_flight must be 1 to 64")
        return in_flight
