"""What happened below while bytes were moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from guestmark.plan.model import Measurement
    from guestmark.platforms.base import Machine


@dataclass(frozen=True, slots=True)
class Changes:
    """Nothing is known yet."""

    facts: dict[str, Any] = field(default_factory=dict)

    def measurements(self, amount: int) -> list[Measurement]:
        """As metrics, for `amount` bytes of content."""
        return []


class Below:
    """Counters read before and after."""

    @classmethod
    def before(cls, machine: Machine) -> Self:
        """Reads the counters."""
        return cls()

    def after(self) -> Changes:
        """Reads them again."""
        return Changes()
