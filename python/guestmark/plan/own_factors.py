"""Factors of the user's own in plans: levels that stand in a command as `{name}`."""

import re
from collections.abc import Mapping
from typing import Any

from guestmark.core import factors
from guestmark.plan import schema

HOOKS = ("setup", "prepare", "conclude", "cleanup", "check")  # parameters of the workload exec
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}", re.ASCII)


def own_factors(model: schema.Plan) -> frozenset[str]:
    """Factors of the user's own: names that no machine or workload knows, and that stand in some command as `{name}`.

    The first edition of plans had none.
    """
    if model.schema_ == "guestmark-plan/1":
        return frozenset()
    named = {*model.factors, *(name for workload in model.workloads.values() for name in workload.factors)}
    standing = {name for workload in model.workloads.values() for name in standing_in(workload.params)}
    return frozenset(name for name in named & standing if name not in factors.known())


def standing_in(params: Mapping[str, Any]) -> frozenset[str]:
    """The names that stand in a command, or in what runs around it, as `{name}`."""
    command = params.get("command")
    texts = [*(command if isinstance(command, list) else ()), *(params.get(hook) for hook in HOOKS)]
    return frozenset(name for text in texts if isinstance(text, str) for name in _PLACEHOLDER.findall(text))
