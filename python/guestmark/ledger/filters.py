"""`runs --filter`: `platform=tcg and label.commit!=abc and since=2d`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime

from guestmark.core.errors import UsageError
from guestmark.core.units import parse_duration
from guestmark.ledger.model import RunOverview

Filter = Callable[[RunOverview], bool]

_HINT = (
    "e.g. 'state=complete and platform=tcg', 'tag=release', 'commit=1a2b3c', 'workload~sysbench', 'since=2d'"
)
_CONDITION = re.compile(r"\s*([A-Za-z][A-Za-z0-9_.-]*)\s*(!=|=|~)\s*(.+?)\s*", re.ASCII | re.DOTALL)
_FIELDS: dict[str, Callable[[RunOverview], tuple[str, ...]]] = {
    "id": lambda run: (run.id,),
    "name": lambda run: (run.given_name,),
    "plan": lambda run: (run.name,),
    "state": lambda run: (run.state.value,),
    "platform": lambda run: run.platforms,
    "workload": lambda run: (run.label,),
    "tag": lambda run: run.tags,
    "note": lambda run: run.notes,
}


def parse_filter(text: str) -> Filter:
    """Conditions joined by `and` or commas: `=` is, `!=` is not, `~` contains. Raises `UsageError`.

    What is not a field of a run is a label; `label.NAME` is always one. `since` and `before` take a duration, counted
    from now, or a date.
    """
    conditions = [_condition(part, text) for part in re.split(r"\s+and(?:\s+|$)|,", text.strip())]
    return lambda run: all(holds(run) for holds in conditions)


def _condition(part: str, whole: str) -> Filter:
    found = _CONDITION.fullmatch(part)
    if found is None:
        raise UsageError(f"--filter {whole!r}: {part.strip()!r} is not NAME=VALUE", hint=_HINT)
    name, sign, value = found.groups()
    if name in {"since", "before"}:
        if sign != "=":
            raise UsageError(f"--filter {whole!r}: {name} takes =", hint=_HINT)
        moment = _moment(value, whole)
        return lambda run: (run.created_at >= moment) == (name == "since")
    values = _FIELDS.get(name) or _label(name.removeprefix("label."))
    if sign == "~":
        return lambda run: any(value.lower() in each.lower() for each in values(run))
    return lambda run: (value in values(run)) == (sign == "=")


def _label(name: str) -> Callable[[RunOverview], tuple[str, ...]]:
    return lambda run: (run.labels[name],) if name in run.labels else ()


def _moment(text: str, whole: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        pass
    try:
        return time.time() - parse_duration(text)
    except ValueError as error:
        raise UsageError(
            f"--filter {whole!r}: {text!r} is neither a date nor a duration",
            hint="e.g. since=2026-11-20, since=2d",
        ) from error
