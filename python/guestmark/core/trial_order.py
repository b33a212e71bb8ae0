"""One trial as a document for another process of guestmark, which may run inside a guest.

Both processes import this definition, so what one encodes the other decodes.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.workload_kind import workload_kind


class TrialOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a cell's trial depends on: platform, factors, the workload with its final parameters, and its time limit."""

    platform: str
    factors: dict[str, str]
    workload: str
    params: dict[str, Any]
    processors: int
    limit_s: float

    @classmethod
    def from_cell(cls, cell: Cell, limit_s: float, *, platform: PlatformSpec | None = None) -> Self:
        """Return the order for a trial of `cell`, on its own platform or on `platform`."""
        return cls(
            platform=str(platform or cell.platform),
            factors=dict(cell.factors),
            workload=cell.workload.name,
            params=dict(cell.workload.params),
            processors=cell.processors,
            limit_s=limit_s,
        )

    @classmethod
    def decode(cls, text: str | bytes) -> Self:
        """Return the order from the result of `encode`. Raises `msgspec.DecodeError` for anything else."""
        return msgspec.json.decode(text, type=cls)

    def encode(self) -> str:
        """Return the order as one line of JSON."""
        return msgspec.json.encode(self).decode()

    def make_cell(self) -> Cell:
        """Return the only cell of the ordered plan."""
        return Cell(
            "ordered",
            WorkloadSpec(self.workload, self.params),
            PlatformSpec.read(self.platform),
            self.factors,
            baseline=True,
            processors=self.processors,
        )

    def make_plan(self) -> Plan:
        """Return the plan of that cell: one block, with the workload's own metrics."""
        kind = workload_kind(self.workload)
        policy = Policy(blocks=1, trial_limit_s=self.limit_s)
        cell = self.make_cell()
        return Plan(self.workload, (cell,), policy, kind.metrics_of(cell.workload))
