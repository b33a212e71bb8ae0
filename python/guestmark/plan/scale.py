"""`--scale`: multiplies the sizes, durations and counts that a plan marks."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from guestmark.core.errors import UsageError
from guestmark.core.units import format_size, parse_duration, parse_size

_MIB = 1024**2
_SECTOR = 4096
# Shorter times cannot be measured: the clocks and a program's own start dominate.
_SHORTEST_S = 0.01
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_DURATION = re.compile(r"(?:[0-9.]+\s*(?:ms|s|sec|min|h|d)\s*)+", re.ASCII)


def parse_scale(text: str) -> float:
    """Return a factor above 0 from `0.05` or `5%`. Raises `ValueError`."""
    stripped = text.strip()
    number = stripped.removesuffix("%").strip()
    if not _NUMBER.fullmatch(number):
        raise ValueError(f"{text!r} is not a factor (write 0.05 or 5%)")
    value = float(number) / (100 if stripped.endswith("%") else 1)
    if not 0 < value <= 1e6:
        raise ValueError(f"{text!r} must be above 0 and at most a million")
    return value


def scale_value(value: Any, factor: float) -> Any:
    """Return a count, size (`1500M`) or duration (`30s`) times `factor`, in the same form.

    Counts stay at least 1, and durations 10 ms unless they were shorter. Whole MiB stay whole MiB; other sizes stay
    whole blocks of 4096 bytes, at least one. Raises `ValueError` for anything else.
    """
    if isinstance(value, list | tuple):
        return [scale_value(item, factor) for item in value]
    # In Python a bool is an int, but true must not become 1.
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} cannot be scaled: it is not a size, duration or number")  # noqa: TRY004
    if isinstance(value, float):
        return value * factor
    if isinstance(value, int):
        return max(1, round(value * factor))
    if _NUMBER.fullmatch(value.strip()):
        number = float(value) if "." in value else int(value)
        return str(scale_value(number, factor))
    if _DURATION.fullmatch(value.strip()):
        whole_s = parse_duration(value)
        scaled_s = max(whole_s * factor, min(whole_s, _SHORTEST_S))
        return f"{scaled_s:.9f}".rstrip("0").rstrip(".") + "s"
    if value.strip().endswith("m"):
        raise ValueError(
            f"{value!r} could be minutes or MiB: write {value.strip()[:-1]}min or {value.strip()[:-1]}M"
        )
    try:
        size = parse_size(value)
    except ValueError as error:
        raise ValueError(f"{value!r} cannot be scaled: it is not a size, duration or number") from error
    unit = _MIB if size % _MIB == 0 else _SECTOR
    return format_size(max(1, round(size * factor / unit)) * unit)


def split_product(name: str) -> list[str]:
    """Return both names of a product such as `files*size`, else the name alone."""
    return [part.strip() for part in name.split("*", 1)]


def scale_table(table: Mapping[str, Any], names: Iterable[str], factor: float) -> dict[str, Any]:
    """Return the table with the values of `names` multiplied; `a.b` is the key `b` of the table `a`.

    Of `a*b`, the product is multiplied: the count `a` shrinks to a whole number, `b` by the rest. Unknown names are
    ignored. Raises `UsageError` for values that cannot be scaled.
    """
    result = dict(table)
    for name in names:
        if len(parts := split_product(name)) > 1:
            if result.keys() >= set(parts):
                result |= _scale_product(name, [result[part] for part in parts], factor)
            continue
        head, _, rest = name.partition(".")
        if head not in result:
            continue
        if rest:
            if isinstance(result[head], Mapping):
                result[head] = scale_table(result[head], [rest], factor)
            continue
        try:
            result[head] = scale_value(result[head], factor)
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from error
    return result


def _scale_product(name: str, values: Sequence[Any], factor: float) -> dict[str, Any]:
    count, size = values
    if isinstance(count, bool) or not isinstance(count, int):
        raise UsageError(f"{name}: {count!r} is not a count")
    # A little less than the product, as 5 times 0.2 may be above 1.
    scaled = max(1, math.ceil(count * factor - 1e-9))
    try:
        rest = scale_value(size, factor * count / scaled)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
    return dict(zip(split_product(name), (scaled, rest), strict=True))
