"""Which of the caller's environment variables a ledger holds: those that decide how programs run, by value; others by
name, as passwords and tokens may be among them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from guestmark.core.model import Plan

VARIABLES = "env"  # in a plan's context
NAMED = "env_names"  # variables whose values are not recorded
_RECORDED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|PWD|LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLUMNS|LINES|TMPDIR|HOSTNAME"
    r"|XDG_(CACHE|CONFIG|DATA|STATE|RUNTIME)_(HOME|DIR)"
    r"|LD_(LIBRARY_PATH|PRELOAD|BIND_NOW)|GLIBC_TUNABLES|MALLOC_[A-Z_]+|OMP_[A-Z_]+|GOMAXPROCS|GOGC|JAVA_HOME"
    r"|OPENBLAS_NUM_THREADS|MKL_NUM_THREADS|PYTHON(HASHSEED|PATH|UTF8|OPTIMIZE|MALLOC|DONTWRITEBYTECODE)|VIRTUAL_ENV"
)


def is_recorded(name: str) -> bool:
    """Whether the ledger holds the variable's value."""
    return _RECORDED.fullmatch(name) is not None


def recorded(context: Mapping[str, Any]) -> dict[str, Any]:
    """The context as the ledger holds it."""
    variables = context.get(VARIABLES)
    if not isinstance(variables, Mapping):
        return dict(context)
    names = sorted({*context.get(NAMED, ()), *(name for name in variables if not is_recorded(name))})
    kept = {name: value for name, value in variables.items() if is_recorded(name)}
    return {**context, VARIABLES: kept, **({NAMED: names} if names else {})}


def restored(plan: Plan, variables: Mapping[str, str]) -> tuple[Plan, list[str]]:
    """The plan of a run that is resumed, with the values that are not recorded taken from `variables`, those of this
    process; and the names of those that are not there.
    """
    names = plan.context.get(NAMED, ())
    if not names:
        return plan, []
    values = {name: variables[name] for name in names if name in variables}
    context = {**plan.context, VARIABLES: {**plan.context.get(VARIABLES, {}), **values}}
    return replace(plan, context=context), [name for name in names if name not in variables]
