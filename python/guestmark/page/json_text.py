"""Values and text of JSON documents: strict, and inert wherever they are shown."""

import math
from collections.abc import Mapping
from typing import Any


def strict_json(value: Any) -> Any:
    """Return `value` as strict JSON can hold it: NaN and infinities are null, lone surrogates U+FFFD."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {strict_json(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    return value
