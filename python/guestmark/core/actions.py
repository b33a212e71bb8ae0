"""What executing a plan does: its commands, as they are and not as they are labelled, and what else they depend on."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from guestmark.core.model import Plan


def actions(plan: Plan) -> list[tuple[str, str]]:
    """Name and value of everything that a run of this plan would run or open, each once, in the plan's order, and as
    whom, where, and with which variables.
    """
    found: dict[tuple[str, str], None] = {}
    for cell in plan.cells:
        workload = cell.workload
        name = workload.key or workload.name
        found |= dict.fromkeys(_flat(name, workload.params))
        found[f"where {name} runs", str(cell.platform)] = None
        found |= dict.fromkeys((factor, level) for factor, level in cell.factors.items())
    around = plan.context.around
    found |= dict.fromkeys(_flat("on this host, around it", {"run": around.run, "trial": around.trial}))
    caller = plan.context.caller
    if caller.cwd:
        said = {"cwd": caller.cwd, "uid": caller.uid, "gid": caller.gid, "env": caller.env}
        for name, value in said.items():
            found |= dict.fromkeys(_flat(name, value))
    return list(found)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Each value of nested tables, under the names on the way to it; a list of words as a shell would take it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif isinstance(value, str):
        yield name, value
    elif isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
        yield name, shlex.join(value)
    elif value not in ((), [], None):
        yield name, json.dumps(value, default=str)
