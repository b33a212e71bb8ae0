"""The workload `powercut` in plans: how records are made durable, and how many crash states are looked at."""

from typing import Any, Literal

from pydantic import Field

from guestmark.plan.schema import Strict
from guestmark.powercut.records import Method


class Powercut(Strict):
    """`method`: how each of `records` is written and made durable; `states`: how many crash states are judged."""

    method: Literal["append", "replace", "overwrite", "dsync", "sqlite"] = "append"
    records: int = Field(default=100, ge=2, le=100_000)
    states: int = Field(default=300, ge=1, le=100_000)

    def to_params(self) -> dict[str, Any]:
        """As the workload gets them; on the host an image is mounted through a loop device."""
        disk = {"role": "target", "host": "loop", "logged": True}
        return {**self.model_dump(mode="json"), "words": Method(self.method).words, "disks": [disk]}
