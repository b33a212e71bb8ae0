"""Makes values fit for strict JSON, which has no NaN, infinities or lone surrogates."""

import math
from collections.abc import Mapping
from typing import Any


def make_strict_json(value: Any) -> Any:
    """Return `value` as strict JSON can hold it: NaN and infinities are null, lone surrogates U+FFFD."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {make_strict_json(key): make_strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [make_strict_json(item) for item in value]
    return value


def list_interval(ends: tuple[float, float] | None) -> list[float] | None:
    """Return the ends of an interval as JSON can hold them; None without one."""
    return None if ends is None else list(ends)
