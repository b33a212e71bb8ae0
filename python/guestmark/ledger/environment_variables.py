"""Which of the caller's environment variables a ledger holds: those that decide how programs run, by value; others by
name, as passwords and tokens may be among them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from guestmark.core.context import Context
from guestmark.core.model import Plan

_RECORDED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|PWD|LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLUMNS|LINES|TMPDIR|HOSTNAME"
    r"|XDG_(CACHE|CONFIG|DATA|STATE|RUNTIME)_(HOME|DIR)"
    r"|LD_(LIBRARY_PATH|PRELOAD|BIND_NOW)|GLIBC_TUNABLES|MALLOC_[A-Z_]+|OMP_[A-Z_]+|GOMAXPROCS|GOGC|JAVA_HOME"
    r"|OPENBLAS_NUM_THREADS|MKL_NUM_THREADS|PYTHON(HASHSEED|PATH|UTF8|OPTIMIZE|MALLOC|DONTWRITEBYTECODE)|VIRTUAL_ENV"
)


def is_recorded(name: str) -> bool:
    """Whether the ledger holds the variable's value."""
    return _RECORDED.fullmatch(name) is not None


def strip_unrecorded(context: Context) -> Context:
    """The context as the ledger holds it."""
    return strip_values(context, is_recorded)


def strip_values(context: Context, keeps: Callable[[str], bool]) -> Context:
    """The context with the values of those variables that `keeps` holds for, and the names of the others."""
    kept = {name: value for name, value in context.env.items() if keeps(name)}
    names = sorted({*context.env_names, *(context.env.keys() - kept.keys())})
    return replace(context, env=kept, env_names=tuple(names))


def restore_values(plan: Plan, variables: Mapping[str, str]) -> tuple[Plan, list[str]]:
    """The plan of a run that is resumed, with the values that are not recorded taken from `variables`, those of this
    process; and the names of those that are not there.
    """
    names = plan.context.env_names
    if not names:
        return plan, []
    values = {name: variables[name] for name in names if name in variables}
    context = plan.context
    return replace(plan, context=replace(context, env={**context.env, **values})), [
        name for name in names if name not in variables
    ]
