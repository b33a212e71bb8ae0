"""Decides which of the caller's environment variables a ledger stores.

Variables that decide how programs run are stored with their values, others by name only: they may be passwords.
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
    """Return whether the ledger holds the variable's value."""
    return _RECORDED.fullmatch(name) is not None


def strip_unrecorded(context: Context) -> Context:
    """Return the context without the values that the ledger does not store."""
    return strip_values(context, is_recorded)


def strip_values(context: Context, keeps: Callable[[str], bool]) -> Context:
    """Return the context with the values of variables for which `keeps` returns True, and the names of the others."""
    kept = {name: value for name, value in context.env.items() if keeps(name)}
    names = sorted({*context.env_names, *(context.env.keys() - kept.keys())})
    return replace(context, env=kept, env_names=tuple(names))


def restore_values(plan: Plan, variables: Mapping[str, str]) -> tuple[Plan, list[str]]:
    """Return the plan of a resumed run with values that are not recorded taken from `variables`, this process's.

    Also return the names of variables that this process does not have.
    """
    names = plan.context.env_names
    if not names:
        return plan, []
    env = dict(plan.context.env)
    missing = []
    for name in names:
        if name in variables:
            env[name] = variables[name]
        else:
            missing.append(name)
    return replace(plan, context=replace(plan.context, env=env)), missing
