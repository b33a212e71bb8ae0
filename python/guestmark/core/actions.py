"""Lists what a plan would execute: the commands themselves, not their labels, and everything they depend on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from guestmark.core.model import Plan
from guestmark.core.quoting import describe_length, quote_word, quote_words, spell_out


def list_actions(plan: Plan) -> list[tuple[str, str]]:
    """Return the name and value of everything that a run of this plan would execute or open, in the plan's order.

    That includes the user, the directory and the variables of commands. The plan may be untrusted, so invisible
    characters are spelled out, and long values are preceded by their length.
    """
    found: dict[tuple[str, str | tuple[str, ...]], None] = {}
    for cell in plan.cells:
        workload = cell.workload
        name = workload.key or workload.name
        found |= dict.fromkeys(_list_action_values(name, workload.params))
        found[f"where {name} runs", str(cell.platform)] = None
        found |= dict.fromkeys(cell.factors.items())
    around = plan.context.around
    found |= dict.fromkeys(
        _list_action_values("commands on this host", {"run": around.run, "trial": around.trial})
    )
    caller = plan.context.caller
    said = {
        "cwd": caller.cwd or None, "uid": caller.uid, "gid": caller.gid, "groups": caller.groups or None,
        "env": caller.env, "your own variables": plan.context.env_names,
    }  # fmt: skip
    for name, value in said.items():
        found |= dict.fromkeys(_list_action_values(name, value))
    return [(spell_out(name), _format_with_length(value)) for name, value in found]


def _format_with_length(value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        said, length = quote_word(value), describe_length(value)
    else:
        said, length = quote_words(value), describe_length(" ".join(value))
    return f"({length}) {said}" if length else said


def _list_action_values(name: str, value: Any) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """Yield the values of nested tables, each with its dotted name; a list of strings counts as one value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _list_action_values(f"{name}.{key}", inner)
    elif isinstance(value, str):
        yield name, value
    elif isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
        yield name, tuple(value)
    elif value not in ((), [], None):
        yield name, json.dumps(value, default=str)
