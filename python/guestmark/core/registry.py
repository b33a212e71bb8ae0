"""The registry of platforms, workloads and factors. Each is described once, in its own package.

Packages are found by walking `guestmark.platforms` and `guestmark.workloads`; those of other distributions are entry
points of the group `guestmark`. A module describes platforms by a tuple, `PLATFORMS`, and workloads by the classes that
it holds. Importing it is cheap: what is costly to import is imported by functions of the description, when needed.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence

from guestmark.core.discovery import index_by_name
from guestmark.core.errors import UsageError, make_unknown_name_error
from guestmark.core.factor import Factor, Labelled
from guestmark.core.model import Cell
from guestmark.core.platform_kind import OWN_PARAMETER, Program, index_platform_kinds, list_platform_names
from guestmark.core.workload_kind import index_workload_kinds, workload_kind

__all__ = [
    "VARIABLE",
    "describe_takers",
    "factors",
    "find_factor",
    "has_several_machines",
    "index_platform_kinds",
    "index_workload_kinds",
    "is_variable",
    "list_platform_names",
    "parse_level",
    "parse_settings",
    "programs",
    "workload_kind",
]

# Prefix of the name of an environment variable of the measured command.
VARIABLE = "env:"
_VARIABLE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PARAMETER = re.compile(r"own\.[a-z][a-z0-9_]{0,30}", re.ASCII)


@functools.cache
def factors() -> Mapping[str, Factor]:
    """Return all factors by name: first the factors of platforms, then of workloads."""
    found: list[Factor] = []
    for platform in index_platform_kinds().values():
        found += [*platform.accepted_factors, *platform.accepted_inside]
    for workload in index_workload_kinds().values():
        found += workload.factors
    return index_by_name(found, "factor")


def programs(
    workloads: Iterable[str] | None = None, platforms: Iterable[str] | None = None
) -> tuple[Program, ...]:
    """Return the programs that these workloads and kinds of platforms (None: all) run on this host."""
    made, hosts = index_workload_kinds(), index_platform_kinds()
    found: list[Program] = []
    for name in hosts if platforms is None else platforms:
        if name in hosts:
            found += hosts[name].programs
    for name in made if workloads is None else workloads:
        if name in made:
            found += made[name].programs
    return tuple(dict.fromkeys(found))


def find_factor(name: str) -> Factor:
    """Return the factor of that name; `-` and `_` are equivalent.

    Raises `UsageError`, which suggests the nearest known name.
    """
    if name.strip().startswith(VARIABLE):
        return _make_variable_factor(name.strip())
    if name.strip().startswith(OWN_PARAMETER):
        return _make_parameter_factor(name.strip())
    factor = factors().get(name.strip().replace("-", "_").lower())
    if factor is None:
        raise make_unknown_name_error("factor", name.strip(), factors())
    return factor


def has_several_machines(cell: Cell) -> bool:
    """Return whether the cell runs several machines at once; False for a workload that is not installed here."""
    kind = index_workload_kinds().get(cell.workload.name)
    return kind is not None and kind.runs_several_machines(cell)


def is_variable(name: str) -> bool:
    """Return whether the factor is an environment variable of the measured command."""
    return name.startswith(VARIABLE)


def _make_variable_factor(name: str) -> Factor:
    if not _VARIABLE.fullmatch(name):
        raise UsageError(
            f"{name!r} is not the name of an environment variable", hint="e.g. --set env:OMP_NUM_THREADS=1,2"
        )
    variable = name.removeprefix(VARIABLE)
    return Factor(name, f"the command's environment variable {variable}", str)


def _make_parameter_factor(name: str) -> Factor:
    if not _PARAMETER.fullmatch(name):
        raise UsageError(
            f"{name!r} is not the name of a machine parameter", hint="e.g. --set own.image=debian,alpine"
        )
    return Factor(
        name, f"the parameter {name.removeprefix(OWN_PARAMETER)} of the machine's definition", str.strip
    )


def describe_takers(factor: Factor) -> str:
    """Describe what takes the factor: kinds of platforms, else workloads."""
    if is_variable(factor.name):
        return "the workload exec"
    kinds = [kind for kind in index_platform_kinds().values() if kind.is_supported]
    if takers := sorted(kind.name for kind in kinds if kind.takes_factor(factor.name)):
        return ", ".join(takers)
    if any(factor in kind.accepted_inside for kind in kinds):
        return "nested platforms such as tcg/kvm"
    users = sorted(kind.name for kind in index_workload_kinds().values() if factor in kind.factors)
    noun = "workloads" if len(users) > 1 else "workload"
    return f"the {noun} {', '.join(users)}"


def parse_settings(settings: Iterable[str]) -> dict[str, tuple[str, ...]]:
    r"""Return canonical levels by factor, in order, from `FACTOR=LEVEL[,LEVEL…]` texts.

    A comma inside a level is written `\,`. Raises `UsageError` for an unknown factor, a bad level, or one given twice.
    """
    result: dict[str, tuple[str, ...]] = {}
    for text in settings:
        name, equals, levels_text = text.partition("=")
        factor = find_factor(name)
        if not equals:
            hint = factor.help
            if factor.levels:
                hint = f"e.g. --set {factor.name}={','.join(factor.levels[:2])}"
            raise UsageError(f"--set {text}: a level is missing", hint=hint)
        if factor.name in result:
            raise UsageError(
                f"--set {factor.name} is given twice", hint=f"give all levels at once: {factor.name}=A,B"
            )
        levels: list[str] = []
        for raw in re.split(r"(?<!\\),", levels_text):
            level = parse_level(factor, raw.replace("\\,", ","))
            if level in levels:
                raise UsageError(
                    f"--set {factor.name}: level {level!r} is given twice", hint="give each level once"
                )
            levels.append(level)
        require_different_labels(factor.name, levels)
        result[factor.name] = tuple(levels)
    return result


def require_different_labels(name: str, levels: Sequence[str]) -> None:
    """Raise `UsageError` if two levels of a factor have the same label, which is all that tables and ids show."""
    by_label: dict[str, str] = {}
    for level in levels:
        label = level.label if isinstance(level, Labelled) else level
        other = by_label.setdefault(label, level)
        if other != level:
            raise UsageError(
                f"{name}: {other} and {level} would both be called {label}",
                hint=f"give them names: {name}=old:{other},new:{level}",
            )


def parse_level(factor: Factor, text: str) -> str:
    """Return one level in canonical spelling. Raises `UsageError`."""
    try:
        return factor.parse_level(text)
    except ValueError as error:
        raise UsageError(f"--set {factor.name}: {error}", hint=factor.help) from error
