"""Describes the rare slow runs that a measurement has to find."""

import re
from dataclasses import dataclass
from typing import Self

from guestmark.core.units import format_share

_RARE = re.compile(r"[x×] ?([0-9.]+) in (?:([0-9.]+%)|1 (?:in|of) ([0-9]+))(?: of (runs|starts))?")
# A run is slow from this multiple of the typical one on: at 2, noise would hide half of the doubled runs.
SLOW = 1.5
_LARGEST_FACTOR, _RAREST = 1e6, 0.001


@dataclass(frozen=True, slots=True)
class Rare:
    """Slow runs to find: they take `factor` times as long as the typical one, and are a `share` of a cell's runs.

    With `starts` they are a share of its machines, on each of which every run is slow.
    """

    factor: float
    share: float
    starts: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `x2 in 5%` or `x2 in 1 of 20`, optionally followed by `of starts`. Raises `ValueError`."""
        found = _RARE.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                f"{text!r} does not describe slow runs (write 'x2 in 5%' or 'x2 in 5% of starts')"
            )
        percent = found[2].removesuffix("%") if found[2] else ""
        try:
            factor = float(found[1])
            share = float(percent) / 100 if percent else 1 / int(found[3])
        except (ValueError, ZeroDivisionError) as error:
            raise ValueError(f"{text!r} does not describe slow runs (write 'x2 in 5%')") from error
        if not SLOW < factor <= _LARGEST_FACTOR:
            raise ValueError(
                f"{text!r}: a slow run must take more than {SLOW} times as long as the typical one"
            )
        if not _RAREST <= share <= 0.5:
            raise ValueError(f"{text!r}: the share must be between {format_share(_RAREST, 1)} and 50 %")
        return cls(factor, share, found[4] == "starts")

    @property
    def frequency_text(self) -> str:
        """How often they occur: `1 of 20 runs`, or the percentage if it is not one part of a whole number."""
        units = "starts" if self.starts else "runs"
        parts = round(1 / self.share)
        if abs(parts * self.share - 1) < 1e-9:
            return f"1 of {parts} {units}"
        return f"{format_share(self.share, 2)} of {units}"
