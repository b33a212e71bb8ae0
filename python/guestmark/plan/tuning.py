"""Reads `[tune]` and the options of `guestmark tune`: what a race over a plan's cells looks for."""

import re
from collections.abc import Sequence
from typing import Any

from guestmark.core.findings import Durability
from guestmark.core.metric import Better, Metric
from guestmark.core.tuning import Limit, Settings
from guestmark.core.units import parse_fraction
from guestmark.plan import schema
from guestmark.plan.policy_options import select_given_values

_LIMIT = re.compile(r"\s*([A-Za-z0-9_.]+)\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*")


def make_race_settings(model: schema.Tune, metrics: Sequence[Metric]) -> Settings:
    """Return the race that a plan asks for. Raises `ValueError` with one line."""
    known = {metric.name: metric for metric in metrics}
    name = model.objective or next(iter(known), "")
    limits = tuple(parse_limit(limit) for limit in model.limits)
    named = [("objective", name)]
    for limit in limits:
        named.append(("limit of", limit.metric))
    for use, metric in named:
        if metric not in known:
            raise ValueError(f"{use} {metric!r} is not a metric of the plan (known: {', '.join(known)})")
    words = tuple(str(word) for word in Durability)
    for word in model.durability or ():
        if word not in words:
            raise ValueError(f"durability {word!r} is not one of {', '.join(words)}")
    values: dict[str, Any] = {
        "durability": tuple(model.durability or ()),
        "limits": limits,
        "on_disk": model.on_disk,
        "screen": model.screen,
        "margin": None if model.margin is None else parse_fraction(model.margin),
        "max_blocks": model.max_blocks,
        "finalists": model.finalists,
        "confirm": model.confirm,
    }
    return Settings(name, known[name].better, **select_given_values(values))


def parse_limit(text: str) -> Limit:
    """Parse a limit such as `guest_cpu_s < 5`. Raises `ValueError` with one line."""
    match = _LIMIT.fullmatch(text)
    mistake = f"{text!r} is not a limit, such as 'guest_cpu_s < 5'"
    if match is None:
        raise ValueError(mistake)
    metric, sign, number = match.groups()
    try:
        value = float(number)
    except ValueError:
        raise ValueError(mistake) from None
    # An upper limit is for a metric of which lower values are better.
    better = Better.LOWER if sign.startswith("<") else Better.HIGHER
    return Limit(metric, value, better)
