"""Checks that a whole run was measured in one environment, and descriptions of changes between two environments."""

import hashlib
import itertools
import json
import os.path
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from guestmark.core.machine_facts import GuestMachine, NestedMachine
from guestmark.core.model import Trial, TrialStatus
from guestmark.stats.conditions.evidence import WholeRun
from guestmark.stats.validity import Finding, Severity

Environment = Mapping[str, Any]

# Facts that figures depend on: their names, and their paths in an environment.
DECISIVE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("processor", ("processor", "model")),
    ("processors", ("processor", "count")),
    ("microcode", ("processor", "microcode")),
    ("hyper-threads", ("processor", "smt")),
    ("kernel", ("kernel", "release")),
    ("kernel build", ("kernel", "version")),
    ("kernel command line", ("kernel", "command_line")),
    ("governor", ("frequency", "governor")),
    ("frequency driver", ("frequency", "driver")),
    ("lowest frequency", ("frequency", "minimum_khz")),
    ("highest frequency", ("frequency", "maximum_khz")),
    ("boost", ("frequency", "boost")),
)
# Facts that figures may depend on.
OTHER: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("huge pages", ("transparent_hugepages",)),
    ("guestmark", ("guestmark", "version")),
    ("guestmark commit", ("guestmark", "commit")),
    ("agent", ("guestmark", "agent_sha256")),
)
# The memory that kernels reserve for themselves differs from boot to boot by less than this.
_SAME_MEMORY = 0.02
_DIGEST = 12  # digits of a digest that are shown


def compare_environments(
    old: Environment, new: Environment, hypervisors: frozenset[str] | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the differences that change figures and those that may change them, as `old → new` by name.

    Only facts known in both environments count. Programs change figures if they are among `hypervisors` (file names),
    or if that is None; other programs may change them.
    """
    decisive, other = _compare_facts(DECISIVE, old, new), _compare_facts(OTHER, old, new)
    if memory := _describe_memory_change(
        _get_fact(old, ("memory_bytes",)), _get_fact(new, ("memory_bytes",))
    ):
        other["memory"] = memory
    before, after = _get_fact(old, ("programs",)) or {}, _get_fact(new, ("programs",)) or {}
    for name in before:
        change = _describe_difference(
            _parse_program_version(before[name]), _parse_program_version(after.get(name))
        )
        if change:
            if hypervisors is None or name in hypervisors:
                decisive[name] = change
            else:
                other[name] = change
    older, newer = _get_fact(old, ("packages",)) or {}, _get_fact(new, ("packages",)) or {}
    for name in older:
        if change := _describe_difference(older[name], newer.get(name)):
            other[f"package {name}"] = change
    mitigations = _describe_mitigation_changes(
        _get_fact(old, ("mitigations",)), _get_fact(new, ("mitigations",))
    )
    if mitigations:
        decisive["mitigations"] = mitigations
    return decisive, other


def _compare_facts(
    facts: Sequence[tuple[str, tuple[str, ...]]], old: Environment, new: Environment
) -> dict[str, str]:
    """Return the facts that differ, as `old → new` by name."""
    changes = {}
    for name, path in facts:
        if change := _describe_difference(_get_fact(old, path), _get_fact(new, path)):
            changes[name] = change
    return changes


def digest_environment(of: Environment) -> str:
    """Return a digest that is equal for equal environments; if it differs, something may have changed."""
    paths = [path for _, path in (*DECISIVE, *OTHER)] + [("programs",), ("packages",), ("mitigations",)]
    memory = f"{float(_get_fact(of, ('memory_bytes',)) or 0):.1e}"
    text = json.dumps([*(_get_fact(of, path) for path in paths), memory], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def check_environment(whole: WholeRun) -> Iterator[Finding]:
    """Check for a run that was resumed in another environment, or whose guests changed."""
    used = [recorded for recorded in _list_environments_with_trials(whole) if recorded]
    hypervisors = frozenset(
        os.path.basename(trial.command_line[0]) for trial in whole.trials if trial.command_line
    )
    decisive: dict[str, str] = {}
    other: dict[str, str] = {}
    for old, new in itertools.pairwise(used):
        found = compare_environments(old, new, hypervisors)
        decisive |= found[0]
        other |= found[1]
    decisive |= _find_guest_changes(whole)
    if decisive:
        yield Finding(
            "environment changed",
            Severity.SEVERE,
            f"the run mixes two systems: {describe_changes(decisive)}",
            cells=tuple(cell.id for cell in whole.plan.cells if not cell.baseline),
            advice="measure again from the start on the system that you want to measure",
        )
    if other:
        yield Finding(
            "environment differs",
            Severity.WARNING,
            f"the environment changed when the run was resumed: {describe_changes(other)}",
            advice="measure again from the start if the figures before and after differ",
        )


def describe_changes(changed: Mapping[str, str]) -> str:
    """Return text such as `kernel 6.1.0-41 → 6.1.0-43, governor powersave → performance`."""
    return ", ".join(f"{name} {change}" for name, change in changed.items())


def _list_environments_with_trials(whole: WholeRun) -> list[Environment]:
    """Return the environments in which trials with values were measured, in order."""
    begun = [_read_recorded_time(environment) for environment in whole.environments]
    if not begun or any(time is None for time in begun):
        return []
    found = []
    for number, environment in enumerate(whole.environments):
        # Trials that began before the first environment was recorded belong to it.
        first = begun[number] if number else None
        last = begun[number + 1] if number + 1 < len(begun) else None
        if _has_good_trial_between(whole.trials, first, last):
            found.append(environment)
    return found


def _has_good_trial_between(trials: Iterable[Trial], first: float | None, last: float | None) -> bool:
    """Return whether a trial with values began at `first` or later, and before `last`; None is no limit."""
    for trial in trials:
        if trial.status is not TrialStatus.OK or (first is not None and trial.started_at < first):
            continue
        if last is None or trial.started_at < last:
            return True
    return False


def _read_recorded_time(environment: Environment) -> float | None:
    try:
        return datetime.fromisoformat(str(environment.get("recorded_at", ""))).timestamp()
    except ValueError:
        return None


def _find_guest_changes(whole: WholeRun) -> dict[str, str]:
    """Return changes of kernel and hypervisor within the guests of one cell, as their trials attest."""
    seen: dict[str, dict[str, dict[str, None]]] = {}
    for trial in sorted(whole.trials, key=lambda trial: (trial.block, trial.order)):
        if trial.status is TrialStatus.OK:
            for name, version in _yield_attested_versions(trial):
                seen.setdefault(trial.cell_id, {}).setdefault(name, {})[version] = None
    changes = {}
    for cell, names in seen.items():
        for name, versions in names.items():
            if len(versions) > 1:
                changes[f"{name} of {cell}"] = " → ".join(versions)
    return changes


def _yield_attested_versions(trial: Trial) -> Iterator[tuple[str, str]]:
    nested = trial.facts.find_fact(NestedMachine)
    machines: Sequence[GuestMachine | None] = (trial.facts.find_fact(GuestMachine),)
    if nested is not None:
        machines = (nested.outer, nested.inner)
    for where, machine in zip(("", "inner "), machines, strict=False):
        if machine is not None:
            yield f"{where}kernel", machine.guest.kernel
            if machine.vmm is not None:
                yield f"{where}QEMU", machine.vmm.qemu
            if machine.run_by is not None:
                yield f"{where}{machine.run_by.name}", machine.run_by.version


def _get_fact(environment: Environment, path: Sequence[str]) -> Any:
    found: Any = environment
    for name in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


def _describe_difference(old: Any, new: Any) -> str:
    if old is None or new is None or old == new:
        return ""
    return f"{_shorten_digest(old)} → {_shorten_digest(new)}"


def _describe_memory_change(old: Any, new: Any) -> str:
    if not old or not new or abs(new / old - 1) <= _SAME_MEMORY:
        return ""
    return f"{old / 2**30:.4g} GiB → {new / 2**30:.4g} GiB"


def _shorten_digest(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = str(value)
    if isinstance(value, list | tuple):
        text = " and ".join(map(str, value))
    if len(text) in {40, 64} and set(text) <= set("0123456789abcdef"):
        return text[:_DIGEST]
    return text


def _parse_program_version(line: Any) -> Any:
    """Return the version from a program's own version line, such as `7.2.22 (Debian 1:7.2+dfsg-7)`."""
    if not isinstance(line, str):
        return line
    return line.partition(" version ")[2] or line


def _describe_mitigation_changes(old: Any, new: Any) -> str:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return ""
    changes = []
    for name in old:
        if change := _describe_difference(old[name], new.get(name)):
            changes.append(f"{name}: {change}")
    return ", ".join(changes)
