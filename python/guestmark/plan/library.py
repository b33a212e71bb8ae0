"""Finds plans by name or file: the built-in ones, those that a plan extends, and values from the command line."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from guestmark.core.errors import UsageError, make_unknown_name_error
from guestmark.core.toml import LARGEST, read_toml

_BUILTIN = Path(__file__).parent / "builtin"


def list_plan_names() -> list[str]:
    """Return the names of the built-in plans in alphabetical order."""
    return sorted(file.stem for file in _BUILTIN.glob("*.toml"))


def read_builtin(name: str) -> str:
    """Return the TOML of a built-in plan. Raises `UsageError` with the nearest name."""
    if name not in list_plan_names():
        raise make_unknown_name_error("plan", name, list_plan_names())
    return (_BUILTIN / f"{name}.toml").read_text(encoding="utf-8")


def find_plan(wanted: str) -> tuple[str, str]:
    """Return a plan's text and its name for users: a built-in plan by its name, else a file. Raises `UsageError`."""
    looks_like_file = "/" in wanted or wanted.endswith(".toml")
    if not looks_like_file and wanted in list_plan_names():
        return read_builtin(wanted), f"the built-in plan {wanted}"
    file = Path(os.path.expanduser(wanted))
    if not looks_like_file and not file.is_file():
        raise make_unknown_name_error("plan", wanted, list_plan_names())
    try:
        with file.open("rb") as stream:
            # One byte more than allowed reveals a file that is too large, without reading all of it.
            data = stream.read(LARGEST + 1)
    except OSError as error:
        raise UsageError(
            f"{wanted} cannot be read: {error.strerror or error}",
            hint=f"built-in plans: {', '.join(list_plan_names())}",
        ) from error
    if len(data) > LARGEST:
        raise UsageError(f"{wanted} is larger than 1 MiB", hint="check that it is a plan")
    try:
        return data.decode("utf-8"), wanted
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{wanted} is not UTF-8 in line {line}", hint="save it as UTF-8, as TOML requires"
        ) from error


_DEEPEST = 10
_HINT = 'e.g. --override repetition.blocks=20, or --override \'workloads.gzip.params.command=["gzip", "-9"]\''
EXTENDS = "extends"


def resolve_extends(data: Mapping[str, Any], where: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the plan merged over the plans it extends: tables key by key, everything else is replaced.

    A path is relative to the plan that names it; a name without a slash or `.toml` is a built-in plan. Raises
    `UsageError` for a plan that cannot be read, or that extends itself.
    """
    wanted = data.get(EXTENDS)
    if wanted is None:
        return dict(data)
    # A plan's name alone is the usual case of a list of one.
    names = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"{where}: extends must be a plan's name or path, or a list of these")
    if len(seen) >= _DEEPEST:
        raise UsageError(f"{where} extends plans more than {_DEEPEST} deep")
    result: dict[str, Any] = {}
    for name in names:
        path = _resolve_name(name, where)
        # The chain of plans that led here, not all plans: two plans may extend the same third one.
        if path in (*seen, where):
            raise UsageError(f"{where} extends itself, through {path}")
        text, called = find_plan(path)
        result = merge_tables(result, resolve_extends(read_toml(text, called), path, (*seen, where)))
    return merge_tables(result, {key: value for key, value in data.items() if key != EXTENDS})


def _resolve_name(name: str, where: str) -> str:
    if "/" not in name and not name.endswith(".toml"):
        return name
    return os.path.normpath(os.path.join(os.path.dirname(where), os.path.expanduser(name)))


def merge_tables(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables; values in `above` take precedence."""
    result = copy.deepcopy(dict(below))
    for key, value in above.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merge_tables(old, value) if both else copy.deepcopy(value)  # type: ignore[arg-type]
    return result


def apply_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the plan with some values replaced, each given as `KEY.KEY=VALUE`.

    A value is TOML, or plain text if it is not valid TOML. Raises `UsageError`.
    """
    result = dict(data)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--override {text!r} is not KEY=VALUE", hint=_HINT)
        # TOML itself splits the key, so that quoted keys with dots work as in a file.
        path = read_toml(f"{key} = 0", f"--override {key[:80]!r}", hint=_HINT)
        result = merge_tables(result, _replace_leaves(path, _parse_value(value.strip())))
    return result


def _parse_value(text: str) -> Any:
    try:
        return read_toml(f"value = {text}", "--override")["value"]
    except (UsageError, KeyError):
        return text


def _replace_leaves(path: Mapping[str, Any], value: Any) -> dict[str, Any]:
    replaced = {}
    for key, rest in path.items():
        replaced[key] = _replace_leaves(rest, value) if isinstance(rest, dict) else value
    return replaced
