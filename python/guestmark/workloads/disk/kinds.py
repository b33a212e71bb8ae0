"""The disk workloads in plans: how much is moved, of what, and how; the disks it moves to are factors."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import field_validator

from guestmark.core.model import Metric
from guestmark.core.units import format_size, parse_size
from guestmark.core.workload_kind import WorkloadKind, register, takes_only
from guestmark.plan.schema import Strict
from guestmark.workloads.common.metrics import CHANNEL, LAUNCHING, READING, WRITING

Content = Literal["zero", "one", "random"]


class Moved(Strict):
    """What all disk workloads have: `amount` of `content` (`file`: the first bytes of a file of yours instead)."""

    amount: str = "1500M"
    content: Content = "random"

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


class Sourced(Moved):
    """Bytes that come from outside of the guest, so they can be those of a file."""

    file: str | None = None

    @field_validator("file")
    @classmethod
    def _is_a_file(cls, file: str | None) -> str | None:
        if file is None:
            return None
        import os

        path = os.path.abspath(os.path.expanduser(file))  # noqa: PTH100, PTH111
        if not os.path.isfile(path):  # noqa: PTH113
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

    variant: Literal["full", "channel", "disk"] = "full"

    def disks(self) -> list[dict[str, str]]:
        """The channel alone needs none."""
        return [] if self.variant == "channel" else super().disks()


class FromDisk(Sourced):
    """Bytes that come from a second disk."""

    def disks(self) -> list[dict[str, str]]:
        """The target and the source."""
        return [*super().disks(), self.source()]


class Direct(FromDisk):
    """Requests under way at once."""

    in_flight: int = 4

    @field_validator("in_flight")
    @classmethod
    def _is_a_depth(cls, in_flight: int) -> int:
        if not 1 <= in_flight <= 64:
            raise ValueError("in_flight must be 1 to 64")
        return in_flight


class Guestfish(Sourced):
    """`method`: what guestfish is told to do; `content` one and zero only for `fill`."""

    method: Literal["upload", "copy", "tgz-in", "fill"] = "upload"

    def to_params(self) -> dict[str, Any]:
        """Its own machine gets the disks, not ours. Raises `ValueError` for a pattern guestfish has not."""
        if self.method == "fill" and (self.content == "random" or self.file is not None):
            raise ValueError("guestfish fills with zero or one only")
        return super().to_params()


_GUESTFISH = takes_only(
    "memory",
    "smp",
    "format",
    "preallocation",
    "cluster_size",
    "location",
    "size",
    "filesystem",
    "mkfs",
    "mount",
)


def _writing(_params: Mapping[str, Any]) -> tuple[Metric, ...]:
    return WRITING


def _upload_label(params: Mapping[str, Any]) -> str:
    return {
        "full": f"upload of {params['amount']}",
        "channel": f"{params['amount']} through the channel only",
        "disk": f"{params['amount']} written in the guest only",
    }[params["variant"]]


def _kind(name: str, text: str, model: type[Moved], verb: str) -> WorkloadKind:
    return register(
        WorkloadKind(name, text, lambda: model, _writing, lambda params: f"{verb} {params['amount']}")
    )


UPLOAD = register(
    WorkloadKind(
        "upload",
        "bytes go from the host through the guest's channel into a file",
        lambda: Upload,
        lambda params: CHANNEL if params["variant"] == "channel" else WRITING,
        _upload_label,
    )
)
DD = _kind("dd", "a second disk is copied into a file, one block at a time", FromDisk, "dd of")
DIRECT = _kind("direct", "a second disk is copied into a file with O_DIRECT", Direct, "direct copy of")
SHARE = _kind("share", "a file of the shared host filesystem is copied", Sourced, "copy from the share of")
TAR = _kind("tar", "a compressed archive is sent and unpacked in the guest", Sourced, "tar.gz of")
FILL = _kind("fill", "a pattern is written in the guest", Moved, "fill of")
FILEWRITE = _kind("filewrite", "a file is written in the guest, one block after the other", Moved, "write of")
FILEREAD = register(
    WorkloadKind(
        "fileread",
        "a file is read back in the guest after unmounting and mounting again",
        lambda: Moved,
        lambda _params: READING,
        lambda params: f"read of {params['amount']}",
    )
)
GUESTFISH = register(
    WorkloadKind(
        "guestfish",
        "libguestfs itself does it, in its own guest",
        lambda: Guestfish,
        lambda _params: LAUNCHING,
        lambda params: f"guestfish {params['method']} of {params['amount']}",
        _GUESTFISH,
    )
)
