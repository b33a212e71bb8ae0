"""The parameters of the libguestfs workloads in plans."""

from typing import Any, Literal

from guestmark.plan.schema import Strict, param
from guestmark.workloads.disk.params import Sourced


class ApiParams(Strict):
    """A session makes a filesystem and then, `rounds` times, a directory with files that it works on and removes."""

    rounds: int = param(16, "directories that are filled and removed", ge=1, le=10_000)


class RunParams(Strict):
    """`phases`: whether each trial holds a second launch, with libguestfs's messages, for them."""

    phases: bool = param(True, "launch a second time for the phases")


class UploadParams(Sourced):
    """`method` is what guestfish does; `fill` allows only `content` one and zero."""

    method: Literal["upload", "copy", "tgz-in", "fill"] = param("upload", "the command of guestfish")

    def to_params(self) -> dict[str, Any]:
        """Its own machine gets the disks, not ours. Raises `ValueError` for a pattern guestfish does not support."""
        if self.method == "fill" and (self.content == "random" or self.file is not None):
            raise ValueError("guestfish fills with zero or one only")
        return super().to_params()
